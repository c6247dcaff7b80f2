"""Transactions."""

import threading

import pytest

import stemmadb


def test_all_or_nothing(books):
    with books.transaction() as tx:
        tx["new"] = {"year": 2000}
        tx.update("dune", {"$inc": {"year": 1}})
        del tx["emma"]
        assert tx["new"]["year"] == 2000 and "emma" not in tx and tx.get("emma") is None
        assert tx.find(year=1966).ids() == ["dune"] and tx.find().count() == 3
        assert "new" not in books, "nobody else sees it"
    assert sorted(books) == ["dune", "new", "solaris"]
    with pytest.raises(ZeroDivisionError), books.transaction() as tx:
        tx["other"] = {}
        1 / 0
    assert "other" not in books
    with pytest.raises(stemmadb.Invalid, match="has ended"):
        tx["other"] = {}


def test_errors_within_leave_the_rest(books):
    with books.transaction() as tx:
        with pytest.raises(stemmadb.Conflict):
            tx.insert("dune", {})
        with pytest.raises(stemmadb.NotFound):
            tx["none"]
        with pytest.raises(KeyError):
            del tx["none"]
        assert tx.insert_many({"n": n} for n in range(10)) == 10
        assert tx.put("dune", {"year": 1}).revision.startswith("2-")
        assert tx.delete("solaris").revision.startswith("2-")
    assert books.find(n__gte=0).count() == 10


def test_conflicts_are_found_at_the_end(books):
    with pytest.raises(stemmadb.Conflict, match="another write"), books.transaction() as tx:
        year = tx["dune"]["year"]
        books.update("dune", {"$inc": {"year": 1}})
        tx.update("dune", {"year": year + 10})
    assert books["dune"]["year"] == 1966
    with books.transaction() as tx:
        tx["dune"]
        books.update("solaris", {"read": True})
        tx.update("dune", {"read": True})
    assert books["dune"]["read"] and books["solaris"]["read"]


def test_many_threads_increment_one_counter(db):
    db["counter"] = {"n": 0}

    def increment(tx):
        tx["counter"] = {"n": tx["counter"]["n"] + 1}

    def work():
        for _ in range(20):
            db.transact(increment)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db["counter"]["n"] == 80


def test_conflicts_of_the_function_are_its_own(books):
    calls = []

    def insert(tx):
        calls.append(1)
        tx.insert("dune", {})

    with pytest.raises(stemmadb.Conflict, match="exists already"):
        books.transact(insert)
    assert calls == [1]


def test_transactions_that_are_left(db):
    db.transaction()
    tx = db.transaction()
    tx.__enter__()
    tx["a"] = {}
    with pytest.raises(stemmadb.Invalid):
        tx.__enter__()
    del tx
    assert "a" not in db
    with pytest.raises(stemmadb.Closed), db.transaction() as tx:
        db.close()
        tx["b"] = {}
