"""The same code with a database in this process and one of a server."""

import threading

import pytest

import stemmadb


def test_documents(anywhere):
    db = anywhere
    db["a"] = {"n": 1, "deep": {"list": [1, 2.5, None, "ü"]}}
    assert db["a"] == {"n": 1, "deep": {"list": [1, 2.5, None, "ü"]}} and "a" in db and len(db) == 1
    read = db["a"]
    assert db.put({**read, "n": 2, "_id": "a", "_rev": read.revision}).revision.startswith("2-")
    with pytest.raises(stemmadb.Conflict):
        db.put(read)
    with pytest.raises(stemmadb.Conflict):
        db.insert("a", {})
    with pytest.raises(KeyError):
        db["none"]
    db.update("a", {"$inc": {"n": 5}})
    assert db.get("a")["n"] == 7 and db.get_many(["none", "a"])[0] is None
    assert db.get_revision("a", read.revision)["n"] == 1
    del db["a"]
    assert list(db) == [] and db.get("a") is None


def test_queries(anywhere):
    db = anywhere
    assert db.insert_many({"_id": f"d{n:04}", "n": n, "even": n % 2 == 0} for n in range(2_000)) == 2_000
    assert db.find(n__gte=1_990).sort("-n").ids()[0] == "d1999" and db.find(even=True).count() == 1_000
    assert [row["n"] for row in db.find(sort="n", limit=3)] == [0, 1, 2]
    assert sum(row["n"] for row in db.find()) == sum(range(2_000))
    assert db.find(n=7, fields=["n"]).to_list() == [{"n": 7}] and db.find(n=7).one().id == "d0007"
    assert db.find().group_by("even").counts() == [(False, 1_000), (True, 1_000)]
    assert db.find(even=True).aggregate(total=("sum", "n"))["total"] == sum(range(0, 2_000, 2))
    assert db.find().group_by("even").aggregate(n="count")[1] == {"even": True, "n": 1_000}
    assert db.find().max("n") == 1_999 and db.find().summary("n").average == 999.5
    assert db.find(n__lt=3).distinct("n") == [0, 1, 2] and str(db.find(n=1).explain())
    assert db.find(even=True).update({"$set": {"seen": 1}}) == 1_000 and db.find(n__lt=10).delete() == 10
    assert len(db) == 1_990
    rows = iter(db.find(sort="n", limit=10))
    assert len(list(rows)) == 10
    assert db.find(sort="n", after=rows.token).first()["n"] == 20
    assert len({column[0] for column in db.find()._columns()}) == 4


def test_views(anywhere):
    db = anywhere
    db.insert_many({"_id": f"d{n}", "by": "ab"[n % 2], "year": 2000 + n % 3, "sold": n} for n in range(6))
    definition = {"key": ["by", "year"], "value": "sold", "reduce": "_sum"}
    sales = db.define_view("sales", definition)
    assert sales.name == "sales" and [row.key for row in sales.rows(limit=2)] == [["a", 2000], ["a", 2001]]
    assert sales.reduce() == 15 and sales.reduce(prefix=["a"]) == 6 and sales.reduce(key=["b", 2000]) == 3
    assert sales.reduce(start=["a", 2001], end=["b"]) == 6 and sales.reduce(keys=[["a", 2000], ["b", 2002]]) == 5
    assert sales.groups(level=1) == [(["a"], 6), (["b"], 9)] and sales.groups(descending=True, limit=1) == [(["b", 2002], 5)]
    db.update("d0", {"sold": 10})
    (row,) = db.view("sales").rows(key=["a", 2000], documents=True)
    assert row.id == "d0" and row.value == 10 and row.document["sold"] == 10
    assert db.views()["sales"]["reduce"] == "_sum" and "sales" in repr(sales)
    with pytest.raises(stemmadb.Invalid):
        sales.rows(key=["a", 2000], prefix=["a"])
    db.drop_view("sales")
    with pytest.raises(stemmadb.NotFound):
        db.view("sales")


def test_transactions(anywhere):
    db = anywhere
    db["a"], db["b"] = {"n": 1}, {"n": 2}
    with db.transaction() as tx:
        tx.update("a", {"n": tx["a"]["n"] + tx["b"]["n"]})
        tx.insert("c", {"n": 3})
        assert len(tx.find(n__gte=1).to_list()) >= 2
    assert db["a"]["n"] == 3 and "c" in db
    with pytest.raises(stemmadb.Conflict), db.transaction() as tx:
        n = tx["a"]["n"]
        db.update("a", {"$inc": {"n": 1}})
        tx.put("a", {"n": n + 1})
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx["d"] = {}
        1 / 0
    assert db["a"]["n"] == 4 and "d" not in db


def test_feeds(anywhere):
    db = anywhere
    db["a"] = {"n": 1}
    assert [change.id for change in db.changes(timeout=0)] == ["a"]
    watch = db.watch(n__gte=0, timeout=60)
    assert [document.id for document in next(watch).added] == ["a"]
    timer = threading.Timer(0.1, lambda: db.insert("b", {"n": 2}))
    timer.start()
    assert [document.id for document in next(watch).added] == ["b"]
    timer.join()
    (change,) = db.changes(1, documents=True, ids=["b"], timeout=0)
    assert change.document == {"n": 2}


def test_the_past_and_files(anywhere):
    db = anywhere
    db.keep_history("everything")
    db["a"] = {"n": 1}
    then = db.sequence
    db["a"] = {"n": 2}
    assert db.as_of(then)["a"] == {"n": 1} and db.as_of(then).find(n=1).count() == 1
    assert [revision.document["n"] for revision in db.history("a")] == [2, 1]
    assert db.differences(then, db.sequence)[0].paths == ["n"]
    db.attach("a", "file", b"content" * 100)
    assert db.read_file("a", "file") == b"content" * 100
    db.create_index("n", unique=True)
    with pytest.raises(stemmadb.Duplicate):
        db["b"] = {"n": 2}


def test_closed_databases(anywhere):
    anywhere.close()
    for use in (lambda: anywhere["a"], lambda: len(anywhere), lambda: anywhere.insert({})):
        with pytest.raises(stemmadb.Closed):
            use()


def test_wrong_urls():
    for location in ("stemma://127.0.0.1:1/db", "stemma+unix:///nowhere/socket?database=db"):
        with pytest.raises(stemmadb.Unavailable):
            stemmadb.open(location, timeout=0.2)
    with pytest.raises(stemmadb.Invalid):
        stemmadb.open("ftp://somewhere/db")
