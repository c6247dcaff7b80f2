"""Queries, aggregates and groups."""

import pytest

import stemmadb


def test_selectors_and_keywords(books):
    assert books.find({"year": {"$gt": 1960}}, sort="-year", limit=1).to_list() == [books["dune"]]
    assert books.find(year=1961).one().id == "solaris"
    assert books.find(author__name="Austen").one().id == "emma"
    assert sorted(books.find(year__gte=1815, year__lt=1965).ids()) == ["emma", "solaris"]
    assert books.find({"year": {"$gt": 1900}}, title__regex="^S").ids() == ["solaris"]
    assert books.find(title__in=["Dune", "Emma"]).count() == 2
    assert books.find(author__exists=True).ids() == ["emma"]
    assert books.find({"tags": {"$all": ["space"]}}).ids() == ["solaris"]
    with pytest.raises(stemmadb.Invalid) as wrong:
        books.find({"year": {"$gtt": 1}})
    assert "$gt" in wrong.value.hint


def test_a_query_is_refined_step_by_step(books):
    modern = books.find(year__gt=1900)
    assert [book.id for book in modern.sort("-year")] == ["dune", "solaris"]
    assert [book.id for book in modern.sort(["title"])] == ["dune", "solaris"]
    assert [book.id for book in modern.sort("year").skip(1)] == ["dune"]
    assert modern.where(price__lt=10).ids() == ["solaris"]
    assert modern.where({"title": "Dune"}).sort("year").limit(5).ids() == ["dune"]
    assert modern.sort("year").fields("title", "_id").to_list() == [
        {"title": "Solaris", "_id": "solaris"},
        {"title": "Dune", "_id": "dune"},
    ]
    assert "year" in repr(modern) and "$gt" in repr(modern)
    books["new"] = {"year": 2000}
    assert modern.count() == 3, "each run reads the newest state"


def test_results(books):
    assert books.find(sort="year").first().id == "emma"
    assert books.find(year=1).first() is None and books.find(year=1).first(7) == 7
    assert books.find(sort="year", fields="year").first() == {"year": 1815}
    with pytest.raises(stemmadb.NotFound):
        books.find(year=1).one()
    with pytest.raises(stemmadb.Invalid):
        books.find().one()
    assert books.find(year=1961).exists() and not books.find(year=1).exists()
    assert books.find().count() == 3
    rows = iter(books.find(sort="year"))
    assert next(rows).id == "emma" and [row.id for row in rows] == ["solaris", "dune"] and list(rows) == []


def test_pages_continue(db):
    db.insert_many({"n": n} for n in range(100))
    seen, token = [], None
    while True:
        rows = iter(db.find(sort="n", limit=30, after=token))
        seen += [row["n"] for row in rows]
        token = rows.token
        if token is None:
            break
    assert seen == list(range(100))


def test_aggregates(books):
    assert books.find().distinct("tags[]") == ["novel", "space"]
    assert books.find().min("year") == 1815 and books.find().max("year") == 1965
    assert books.find().min("none") is None
    assert books.find().sum("year") == 5741 and books.find().sum("price") == 21.5
    assert books.find(year__gt=1900).average("year") == 1963.0 and books.find().average("none") is None
    summary = books.find().summary("price")
    assert summary == (2, 21.5, 9.5, 12) and summary.average == 10.75
    assert books.find().aggregate(n="count", mean=("average", "year"), tags=("count_distinct", "tags[]"))["n"] == 3
    with pytest.raises(stemmadb.Invalid):
        books.find().aggregate(mean=("mean", "year"))


def test_groups(books):
    tags = books.find().group_by("tags[]")
    assert tags.counts() == [("novel", 3), ("space", 1)] and list(tags) == tags.counts()
    assert tags.summaries("price")[0] == ("novel", (2, 21.5, 9.5, 12))
    assert tags.aggregate(n="count", last=("max", "year")) == [
        {"tags[]": "novel", "n": 3, "last": 1965},
        {"tags[]": "space", "n": 1, "last": 1961},
    ]
    pairs = books.find(year__gt=1900).group_by("title", "year")
    assert pairs.counts() == [(["Dune", 1965], 1), (["Solaris", 1961], 1)]
    assert pairs.aggregate(n="count")[0] == {"title": "Dune", "year": 1965, "n": 1}


def test_writes_of_queries(books):
    assert books.find(year__gt=1900).update({"$set": {"modern": True}}) == 2
    assert books.find(modern=True).count() == 2
    assert books.find(modern=True).delete() == 2
    assert list(books) == ["emma"]


def test_plans_and_tables(books):
    plan = books.find(year__gt=1900).explain()
    assert "year" in str(plan) and plan.tree["filter"] and "<pre>" in plan._repr_html_()
    assert books.find(year__gt=1900).explain(analyze=True).tree["rows"] == 2
    books["hostile"] = {"title": "<script>alert(1)</script>", "year": 2000}
    table = books.find(sort="year")._repr_html_()
    assert "<th>title</th>" in table and "&lt;script&gt;" in table and "<script>" not in table
    books.insert_many({"year": n} for n in range(100))
    assert "of 104" in books.find()._repr_html_()
    assert books.find(limit=3)._repr_html_().count("<tr>") == 4


def test_a_query_stops_at_its_time(db):
    db.insert_many({"a": n % 7, "text": "x" * 200} for n in range(20_000))
    with pytest.raises(stemmadb.Stopped):
        db.find({"text": {"$regex": "(x+x+)+y"}}, timeout=0.000_001).to_list()


def test_snapshots_do_not_change(books):
    before = books.snapshot()
    books["new"] = {"year": 2000}
    del books["emma"]
    assert len(before) == 3 and "emma" in before and "new" not in before
    assert before["emma"]["year"] == 1815 and before.get("new") is None
    assert before.find(year__lt=1900).count() == 1 and before.sequence < books.sequence
    with pytest.raises(stemmadb.Invalid):
        before.find().delete()
