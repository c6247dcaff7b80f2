"""Python objects in documents."""

import base64
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import uuid

import pytest

import stemmadb

UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.0, 0.1, 1e300, 5e-324, "", "ü€😀\0",
        [], {}, [1, [2, [3]]], {"a": {"b": {}}}, {"": 1, "a.b": 2, "$c": 3}, ["x"] * 1000,
        {f"name{n}": n for n in range(300)},
    ],
)  # fmt: skip
def test_json_values_come_back(db, value):
    db["a"] = {"value": value}
    found = db["a"]["value"]
    assert found == value and type(found) is type(value)
    assert math.copysign(1, found) == math.copysign(1, value) if isinstance(value, float) else True


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (datetime.datetime(2026, 11, 24, 12, tzinfo=UTC), "2026-11-24T12:00:00.000000Z"),
        (
            datetime.datetime(2026, 11, 24, 12, 0, 0, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            "2026-11-24T10:00:00.000005Z",
        ),
        (datetime.datetime(2026, 11, 24, 12), "2026-11-24T12:00:00.000000"),
        (datetime.date(2026, 11, 24), "2026-11-24"),
        (decimal.Decimal("12.50"), "12.50"),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (b"\0\xff", base64.b64encode(b"\0\xff").decode()),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (enum.Enum("Color", {"RED": "red"}).RED, "red"),
        (enum.IntEnum("Size", {"SMALL": 3}).SMALL, 3),
        (stemmadb.Document(a=1), {"a": 1}),
    ],
)
def test_other_objects_have_a_convention(db, value, stored):
    db["a"] = {"value": value}
    assert db["a"]["value"] == stored
    assert db.find(value=value).ids() == ["a"], "queries use the same convention"


def test_times_sort_as_text(db):
    moments = [datetime.datetime(2026, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=n * 400_000) for n in range(5)]
    db.insert_many({"at": moment, "n": n} for n, moment in enumerate(moments))
    assert [row["n"] for row in db.find(at__gt=moments[1], sort="at")] == [2, 3, 4]


def cyclic():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "not a JSON number"), (float("inf"), "not a JSON number"), (2**64, "outside"),
        (object(), "class `object`"), ("\ud800", "surrogate"), (cyclic(), "within each other"), (len, "can't be stored"),
    ],
)  # fmt: skip
def test_what_can_not_be_stored(db, value, message):
    with pytest.raises(stemmadb.Invalid, match=message) as wrong:
        db["a"] = {"outer": [{"inner": value}]}
    assert wrong.value.message.startswith("at `outer.0.inner") or "within" in message
    assert "a" not in db


def test_names_are_strings(db):
    with pytest.raises(stemmadb.Invalid, match="not a string"):
        db["a"] = {1: 2}
    with pytest.raises(stemmadb.Invalid):
        db["a"] = {"_reserved": 1}
    with pytest.raises(stemmadb.Invalid):
        db["a"] = [1, 2]


def test_the_convention_can_be_extended(db):
    class Point:
        def __init__(self, x, y):
            self.x, self.y = x, y

    stemmadb.register(Point, lambda point: [point.x, point.y])
    db["a"] = {"at": Point(1, 2)}
    assert db["a"] == {"at": [1, 2]}


class Genre(enum.Enum):
    NOVEL = "novel"
    POEM = "poem"


@dataclasses.dataclass
class Edition:
    isbn: str
    printed: datetime.date


@dataclasses.dataclass
class Book:
    title: str
    genre: Genre
    price: decimal.Decimal
    read_at: datetime.datetime | None = None
    editions: list[Edition] = dataclasses.field(default_factory=list)
    cover: bytes = b""
    key: uuid.UUID | None = None
    id: str | None = None


def test_dataclasses_come_back(db):
    book = Book(
        "Solaris", Genre.NOVEL, decimal.Decimal("9.50"), datetime.datetime(2026, 11, 24, tzinfo=UTC),
        [Edition("978", datetime.date(1961, 1, 1))], b"\x89PNG", uuid.UUID(int=7), "solaris",
    )  # fmt: skip
    assert db.insert(book).id == "solaris"
    assert "id" not in db["solaris"] and db["solaris"]["editions"][0]["printed"] == "1961-01-01"
    assert db.get("solaris", into=Book) == book
    assert db.find(genre=Genre.NOVEL, into=Book).one() == book
    assert list(db.find().into(Book)) == [book]
    made = db.insert(dataclasses.replace(book, id=None)).id
    assert db.get(made, into=Book) == dataclasses.replace(book, id=made)
    db.put("solaris", {"title": "Solaris", "genre": "novel", "price": "1", "unknown": 1})
    assert db.get("solaris", into=Book) == Book("Solaris", Genre.NOVEL, decimal.Decimal(1), id="solaris")
    db["solaris"] = {"title": "incomplete"}
    with pytest.raises(TypeError):
        db.get("solaris", into=Book)
    assert db.get("solaris", into=lambda document: document["title"]) == "incomplete"


def test_pydantic_models_come_back(db):
    pydantic = pytest.importorskip("pydantic")

    class Author(pydantic.BaseModel):
        name: str
        born: datetime.date

    class Novel(pydantic.BaseModel):
        id: str | None = None
        title: str
        price: decimal.Decimal
        author: Author
        read_at: datetime.datetime

    novel = Novel(
        id="emma", title="Emma", price="7.25", author=Author(name="Austen", born="1775-12-16"),
        read_at=datetime.datetime(2026, 11, 24, tzinfo=UTC),
    )  # fmt: skip
    assert db.insert(novel).id == "emma" and db["emma"]["price"] == "7.25"
    assert db.get("emma", into=Novel) == novel
    assert db.find({"author.name": "Austen"}, into=Novel).to_list() == [novel]
    db["emma"] = {"title": "Emma"}
    with pytest.raises(pydantic.ValidationError):
        db.get("emma", into=Novel)
