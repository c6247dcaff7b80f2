"""Threads, forks, and memory."""

import gc
import multiprocessing
import os
import resource
import threading
import traceback

import pytest

import stemmadb


def test_threads_read_and_write(tmp_path):
    with stemmadb.open(tmp_path / "a", durability="none") as db:
        failures = []

        def work(number):
            try:
                for n in range(200):
                    db[f"{number}-{n}"] = {"n": n, "by": number}
                    assert db[f"{number}-{n}"]["n"] == n
                assert db.find(by=number).count() == 200
            except Exception:
                failures.append(traceback.format_exc())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and len(db) == 1600


def test_waiting_calls_release_the_lock(db):
    """A thread waits for a change that only another thread, which needs the interpreter, makes."""
    found = []
    waiter = threading.Thread(target=lambda: found.append(next(db.changes("now", timeout=60)).id))
    waiter.start()
    while not found:
        db.insert({"n": 1})
    waiter.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_harms_nothing(tmp_path):
    db = stemmadb.open(tmp_path / "a")
    db["a"] = {"n": 1}
    rows, feed, snapshot, query = iter(db.find()), db.changes(), db.snapshot(), db.find(n=1)
    tx = db.transaction()
    tx.__enter__()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            uses = [
                lambda: db["a"], lambda: db.insert({}), lambda: next(rows), lambda: next(feed), lambda: snapshot["a"],
                lambda: query.count(), lambda: tx["a"], lambda: db.close(), lambda: len(db),
            ]  # fmt: skip
            for use in uses:
                try:
                    use()
                    os._exit(2)
                except stemmadb.Forked as error:
                    assert "parent" in error.message and error.hint
            del db, rows, feed, snapshot, query, tx, uses, use
            gc.collect()
            with stemmadb.open(tmp_path / "b") as own:
                own["b"] = {}
                status = 0 if len(own) == 1 else 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tx["b"] = {"n": 2}
    tx.__exit__(None, None, None)
    assert len(db) == 2 and query.count() == 1 and db.check() == []
    db.close()


def _spawned(path):
    with stemmadb.open(path) as db:
        db["child"] = {"pid": os.getpid()}


def test_spawned_processes(tmp_path):
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_spawned, args=(str(tmp_path / "a"),))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    with stemmadb.open(tmp_path / "a") as db:
        assert db["child"]["pid"] == child.pid


def _resident_bytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_memory_does_not_grow(db):
    db.insert_many({"_id": f"d{n}", "n": n, "text": f"text {n}", "tags": ["a", {"b": n}]} for n in range(100))
    # Each has names that no other document has: they must not stay once they were read.
    db.insert_many({"_id": f"names{k}", **{f"name {k} {n}": 1 for n in range(300)}} for k in range(50))

    def calls(count):
        for n in range(count):
            document = db[f"d{n % 100}"]
            assert document.revision and document.id
            db.get("none")
            if n % 20 == 0:
                db.find({"n": n % 100}).to_list()
                db.find(n__lt=3).first()
                assert db.find(n__lt=3).group_by("n").counts()
                for wrong in (document, {"wrong": object()}):
                    try:
                        db.insert("d1", wrong)
                    except (stemmadb.Conflict, stemmadb.Invalid):
                        pass
                list(db.changes(timeout=0, documents=True, ids=["d1"]))
                assert len(db[f"names{n // 20 % 50}"]) == 300
            if n % 500 == 0:
                with db.transaction() as tx:
                    tx["d1"]

    calls(15_000)
    before = _resident_bytes()
    calls(int(os.environ.get("STEMMA_PYTHON_CALLS", "50000")))
    # A leak of 100 bytes in each of both calls would be 10 MB, and 200 MB with the million of `just nightly-python`.
    assert _resident_bytes() - before < 5 << 20
