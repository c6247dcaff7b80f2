"""DataFrames and Arrow, in and out."""

import datetime

import pytest

import stemmadb

ROWS = [
    {"_id": "a", "n": 1, "x": 0.5, "ok": True, "name": "ü", "tags": ["p", "q"], "at": {"x": 1, "y": 2.5}},
    {"_id": "b", "n": 2, "x": 2, "ok": False, "name": "", "tags": [], "at": {"x": 3}},
    {"_id": "c", "n": 3, "mixed": 1, "nothing": None},
    {"_id": "d", "n": 4, "x": 1.0, "mixed": "two", "tags": ["r"], "at": {"y": -1.0}},
    {"_id": "e", "n": 5, "mixed": [3], "deep": [[1], [], [2, 3]], "list": [{"k": 1}, {"k": None}, {"l": "x"}]},
]


@pytest.fixture
def table(db):
    db.insert_many(ROWS)
    return db.find(sort="n")


def test_polars(table, db):
    polars = pytest.importorskip("polars")
    frame = table.to_polars()
    assert frame["_id"].to_list() == ["a", "b", "c", "d", "e"] and frame["n"].dtype == polars.Int64
    assert frame["x"].to_list() == [0.5, 2.0, None, 1.0, None] and frame["x"].dtype == polars.Float64
    assert frame["ok"].to_list() == [True, False, None, None, None]
    assert frame["name"].to_list() == ["ü", "", None, None, None]
    assert frame["tags"].to_list() == [["p", "q"], [], None, ["r"], None]
    assert frame["at"].to_list()[:2] == [{"x": 1, "y": 2.5}, {"x": 3, "y": None}]
    assert frame["mixed"].to_list() == [None, None, "1", '"two"', "[3]"]
    assert frame["nothing"].to_list() == [None] * 5
    assert frame["deep"].to_list()[4] == [[1], [], [2, 3]]
    assert frame["list"].to_list()[4] == [{"k": 1, "l": None}, {"k": None, "l": None}, {"k": None, "l": "x"}]
    assert polars.DataFrame(db.find(n__lt=3)).height == 2
    assert table.fields("n", "x").to_polars().columns == ["n", "x"]
    assert db.find(n=99).to_polars().height == 0
    other = stemmadb.open(":memory:")
    assert other.insert_many(frame.select("_id", "n", "x", "tags")) == 5
    assert other["a"] == {"n": 1, "x": 0.5, "tags": ["p", "q"]} and other["c"] == {"n": 3}
    assert other.insert_many(polars.LazyFrame({"_id": ["z"], "t": [datetime.date(2026, 1, 1)]})) == 1
    assert other["z"] == {"t": "2026-01-01"}


def test_pandas(table):
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert list(frame["_id"]) == ["a", "b", "c", "d", "e"] and frame["n"].dtype == "int64"
    assert frame["x"].dtype == "float64" and frame["x"].isna().tolist() == [False, False, True, False, True]
    assert frame["ok"].dtype == "boolean" and frame["ok"].tolist()[:2] == [True, False]
    assert frame["tags"][0] == ["p", "q"] and frame["at"][0] == {"x": 1, "y": 2.5}
    frame["when"] = pandas.Timestamp("2026-11-24T12:00:00Z")
    other = stemmadb.open(":memory:")
    assert other.insert_many(frame[["_id", "n", "x", "ok", "name", "when"]]) == 5
    assert other["a"] == {"n": 1, "x": 0.5, "ok": True, "name": "ü", "when": "2026-11-24T12:00:00.000000Z"}
    assert "x" not in other["c"]
    named = frame[["_id", "n"]].set_index("_id")
    assert other.insert_many(named, existing="replace") == 5 and other["a"] == {"n": 1}


def test_pyarrow(table, db):
    pyarrow = pytest.importorskip("pyarrow")
    found = table.to_arrow()
    found.validate(full=True)
    assert found.column("n").to_pylist() == [1, 2, 3, 4, 5]
    other = stemmadb.open(":memory:")
    assert other.insert_many(found.select(["_id", "at"])) == 5 and other["a"]["at"] == {"x": 1, "y": 2.5}
    assert pyarrow.table(db.find(n=99)).num_rows == 0


def test_types_of_arrow_streams(db):
    polars = pytest.importorskip("polars")
    moments = [datetime.datetime(2026, 11, 24, 12, 0, 0, 5), datetime.datetime(1969, 12, 31, 23, 59, 59)]
    columns = {
        "_id": ["a", "b"],
        "i8": polars.Series([-1, None], dtype=polars.Int8),
        "u8": polars.Series([255, 0], dtype=polars.UInt8),
        "i16": polars.Series([-300, 300], dtype=polars.Int16),
        "u32": polars.Series([2**32 - 1, 0], dtype=polars.UInt32),
        "u64": polars.Series([2**64 - 1, 0], dtype=polars.UInt64),
        "f32": polars.Series([0.5, float("nan")], dtype=polars.Float32),
        "ok": [True, False],
        "text": ["", "a text that is longer than twelve bytes ü"],
        "raw": [b"\0\xff", b"x" * 20],
        "day": [datetime.date(2026, 11, 24), datetime.date(1, 1, 1)],
        "naive": moments,
        "utc": polars.Series(moments, dtype=polars.Datetime("ms", "UTC")),
        "nanoseconds": polars.Series(moments, dtype=polars.Datetime("ns")),
        "clock": [datetime.time(1, 2, 3, 4), None],
        "price": polars.Series(["-0.05", "12.50"]).cast(polars.Decimal(10, 2)),
        "kind": polars.Series(["x", "y"], dtype=polars.Categorical),
        "list": [[1, None], []],
        "fixed": polars.Series([[1, 2], [3, 4]], dtype=polars.Array(polars.Int64, 2)),
        "deep": [{"x": 1, "y": [{"z": "q"}]}, {"x": None, "y": None}],
        "nothing": [None, None],
    }
    frame = polars.DataFrame(columns)
    assert db.insert_many(frame) == 2
    assert db["a"] == {
        "i8": -1, "u8": 255, "i16": -300, "u32": 2**32 - 1, "u64": 2**64 - 1, "f32": 0.5, "ok": True, "text": "",
        "raw": "AP8=", "day": "2026-11-24", "naive": "2026-11-24T12:00:00.000005", "utc": "2026-11-24T12:00:00.000000Z",
        "nanoseconds": "2026-11-24T12:00:00.000005", "clock": "01:02:03.000004", "price": "-0.05", "kind": "x",
        "list": [1, None], "fixed": [1, 2], "deep": {"x": 1, "y": [{"z": "q"}]},
    }  # fmt: skip
    assert db["b"] == {
        "u8": 0, "i16": 300, "u32": 0, "u64": 0, "ok": False, "text": "a text that is longer than twelve bytes ü",
        "raw": "eHh4eHh4eHh4eHh4eHh4eHh4eHg=", "day": "0001-01-01", "naive": "1969-12-31T23:59:59.000000",
        "utc": "1969-12-31T23:59:59.000000Z", "nanoseconds": "1969-12-31T23:59:59.000000", "price": "12.50", "kind": "y",
        "list": [], "fixed": [3, 4], "deep": {},
    }  # fmt: skip
    parts = polars.concat([polars.DataFrame({"n": range(k, k + 1000)}) for k in range(0, 20_000, 1000)], rechunk=False)
    assert db.insert_many(parts.slice(1_500, 15_000)) == 15_000
    assert db.find().sum("n") == sum(range(1_500, 16_500))
    with pytest.raises(stemmadb.Invalid, match="Arrow type"):
        db.insert_many(polars.DataFrame({"_id": ["c"], "for": [datetime.timedelta(1)]}))
    with pytest.raises(stemmadb.Invalid, match="is not text"):
        db.insert_many(polars.DataFrame({"_id": [1]}))
    with pytest.raises(stemmadb.Conflict):
        db.insert_many(frame)
    other = stemmadb.open(":memory:")
    assert other.insert_many(db.find({"kind": {"$exists": True}})) == 2 and other["a"] == db["a"]


def test_slices_of_pyarrow(db):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({
        "_id": [str(n) for n in range(100)],
        "n": pyarrow.array([None if n % 3 == 0 else n for n in range(100)], pyarrow.int16()),
        "ok": [n % 2 == 0 for n in range(100)],
        "s": pyarrow.array([{"x": n, "l": [n] * (n % 4)} for n in range(100)]),
        "d": pyarrow.array([f"v{n % 5}" for n in range(100)]).dictionary_encode(),
    })  # fmt: skip
    assert db.insert_many(table.slice(37, 20)) == 20
    assert db["41"] == {"n": 41, "ok": False, "s": {"x": 41, "l": [41]}, "d": "v1"}
    assert db["42"] == {"ok": True, "s": {"x": 42, "l": [42, 42]}, "d": "v2"} and "36" not in db


def test_large_tables_and_unread_streams(db):
    db.insert_many({"_id": f"{n:06}", "n": n, "text": f"text {n % 100}"} for n in range(20_000))
    db.find().__arrow_c_stream__()
    columns = {name: data for name, _, data, _ in db.find(sort="n")._columns()}
    assert columns["text"][123] == "text 23" and len(columns["n"]) == 8 * 20_000
    polars = pytest.importorskip("polars")
    frame = db.find().to_polars()
    assert frame["n"].sum() == sum(range(20_000)) and frame["_id"].n_unique() == 20_000
    assert polars.DataFrame(db.find()).height == 20_000


def test_many_names_become_text(db):
    db["a"] = {"counts": {f"key{n}": n for n in range(3_000)}}
    db["b"] = {"counts": {f"other{n}": n for n in range(3_000)}}
    (_, _, data, _) = dict((column[0], column) for column in db.find()._columns())["counts"]
    assert len(data) == 2
