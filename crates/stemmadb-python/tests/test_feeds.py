"""The changes feed, live queries, and history."""

import asyncio
import datetime
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import stemmadb


def test_changes_that_exist(books):
    changes = books.changes(timeout=0)
    assert [(change.id, change.deleted) for change in changes] == [("solaris", False), ("dune", False), ("emma", False)]
    assert changes.reached == books.sequence
    del books["dune"]
    (change,) = books.changes(changes.reached, timeout=0, documents=True)
    assert change.id == "dune" and change.deleted and change.sequence == books.sequence
    assert change.leaves == [change.revision] and "deleted" in repr(change)
    assert [change.document["year"] for change in books.changes(0, documents=True, ids=["emma"], timeout=0)] == [1815]
    assert [change.id for change in books.changes(selector={"year": {"$gt": 1900}}, timeout=0)] == ["solaris"]
    assert list(books.changes("now", timeout=0)) == []


def test_changes_are_waited_for(db):
    feed = db.changes("now")
    timer = threading.Timer(0.2, lambda: db.insert("late", {"n": 1}))
    timer.start()
    assert next(feed).id == "late"
    timer.join()
    assert feed.next_within(0.01) is None
    closer = threading.Timer(0.2, db.close)
    closer.start()
    assert list(feed) == []
    closer.join()


def test_live_queries(db):
    db["a"] = {"state": "open"}
    watch = db.watch(state="open")
    first = next(watch)
    assert first.is_first and [document.id for document in first.added] == ["a"]
    db["b"] = {"state": "open"}
    delta = next(watch)
    assert [document.id for document in delta.added] == ["b"] and delta.sequence == db.sequence
    db.update("b", {"n": 1})
    assert next(watch).changed == [{"state": "open", "n": 1}]
    db.update("b", {"state": "done"})
    assert next(watch).removed == ["b"]
    assert watch.next_within(0.01) is None
    db.close()
    assert list(watch) == []


def test_feeds_are_awaited(db):
    async def follow():
        watch, deltas = db.watch({"n": {"$gte": 0}}), []
        async for delta in watch:
            deltas.append(len(delta.added))
            if sum(deltas) == 5:
                return deltas
        raise AssertionError("the database was closed")

    async def write():
        for n in range(5):
            db[f"d{n}"] = {"n": n}
            await asyncio.sleep(0.01)

    async def both():
        deltas, _ = await asyncio.gather(follow(), write())
        return deltas

    assert sum(asyncio.run(both())) == 5


def test_a_cancelled_wait_loses_nothing(db):
    async def main():
        feed = db.changes("now").__aiter__()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(feed.__anext__(), 0.02)
        db["a"] = {}
        assert (await asyncio.wait_for(feed.__anext__(), 60)).id == "a"
        db.close()
        return [change async for change in feed]

    assert asyncio.run(main()) == []


def test_ctrl_c_ends_a_wait(tmp_path):
    code = (
        # Ctrl-C may be ignored in whatever started the tests.
        "import signal, stemmadb\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"db = stemmadb.open({str(tmp_path / 'a')!r})\n"
        "print('ready', flush=True)\n"
        "try:\n    next(db.changes('now'))\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        assert child.communicate(timeout=120)[0] == "interrupted\n" and child.returncode == 0
    finally:
        child.kill()


def test_the_past(db):
    db.keep_history("everything")
    db["a"] = {"n": 1}
    then, moment = db.sequence, datetime.datetime.now(datetime.timezone.utc)
    db["a"] = {"n": 2}
    db["b"] = {}
    assert db.as_of(then)["a"] == {"n": 1} and "b" not in db.as_of(str(then))
    assert db.as_of(moment).find(n=1).ids() == ["a"] and db.as_of(then).sequence == then
    assert len(db.as_of(datetime.timedelta(0))) == 2 and len(db.as_of("-0s")) == 2
    revisions = db.history("a")
    assert [revision.document["n"] for revision in revisions] == [2, 1]
    assert revisions[0].time.tzinfo and revisions[0].time >= revisions[1].time
    (changed, added) = db.differences(then, db.sequence)
    assert changed.id == "a" and changed.before == {"n": 1} and changed.after == {"n": 2} and changed.paths == ["n"]
    assert added.id == "b" and added.before is None
    assert len(db.differences(then, db.sequence, {"n": 2})) == 1
    del db["a"]
    db.undelete("a")
    assert db["a"] == {"n": 2}
    for wrong in ("yesterday", 10**9, object()):
        with pytest.raises(stemmadb.StemmaError):
            db.as_of(wrong)
    db.keep_history(datetime.timedelta(days=7))
    db.keep_history(5)
    db.keep_history(None)
    with pytest.raises(stemmadb.Invalid):
        db.keep_history("a while")
