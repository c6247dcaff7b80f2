"""Documents: the methods of a mapping, writes with revisions, and errors."""

import collections.abc
import copy
import datetime
import pickle

import pytest

import stemmadb


def test_a_database_is_a_mapping(db):
    assert isinstance(db, collections.abc.MutableMapping)
    assert len(db) == 0 and list(db) == [] and db
    db["a"] = {"n": 1}
    db["b"] = {"n": 2}
    assert db["a"] == {"n": 1} and type(db["a"]) is stemmadb.Document
    assert "a" in db and "c" not in db and 7 not in db
    assert sorted(db) == ["a", "b"] and len(db) == 2
    assert dict(db.items()) == {"a": {"n": 1}, "b": {"n": 2}}
    assert sorted(document["n"] for document in db.values()) == [1, 2]
    assert db.get("c") is None and db.get("c", 7) == 7
    assert db.setdefault("c", {"n": 3}) == {"n": 3}
    assert db.pop("c") == {"n": 3} and "c" not in db
    db.update({"d": {"n": 4}}, e={"n": 5})
    assert sorted(db) == ["a", "b", "d", "e"]
    del db["a"]
    with pytest.raises(KeyError):
        db["a"]
    with pytest.raises(KeyError):
        del db["a"]
    db.clear()
    assert len(db) == 0


def test_a_file_keeps_its_documents(tmp_path):
    path = tmp_path / "library.stemma"
    with stemmadb.open(path) as db:
        db["solaris"] = {"year": 1961}
        with pytest.raises(stemmadb.Locked):
            stemmadb.open(path)
    with pytest.raises(stemmadb.Closed):
        db["solaris"]
    db.close()
    with stemmadb.open(str(path), create=False, read_only=True) as db:
        assert db["solaris"]["year"] == 1961
        with pytest.raises(stemmadb.StemmaError):
            db["emma"] = {}
    with pytest.raises(stemmadb.StemmaError) as missing:
        stemmadb.open(tmp_path / "none", create=False)
    assert missing.value.hint or missing.value.message


def test_a_database_that_nothing_refers_to_is_closed(tmp_path):
    db = stemmadb.open(tmp_path / "a")
    db["a"] = {}
    del db
    assert "a" in stemmadb.open(tmp_path / "a")


def test_documents_know_their_id_and_revision(db):
    written = db.insert("solaris", {"year": 1961})
    book = db["solaris"]
    assert (book.id, book.revision) == (written.id, written.revision)
    assert written.revision.startswith("1-") and book.sequence == db.sequence and not book.deleted
    for copied in (copy.copy(book), copy.deepcopy(book), pickle.loads(pickle.dumps(book))):
        assert copied == book and copied.revision == book.revision
    with pytest.raises(AttributeError):
        stemmadb.Document(a=1).id


def test_writes_check_revisions(db):
    first = db.insert("a", {"n": 1})
    with pytest.raises(stemmadb.Conflict) as conflict:
        db.insert("a", {"n": 2})
    assert "exists already" in conflict.value.message and "upsert" in str(conflict.value)
    read = db["a"]
    read["n"] = 2
    second = db.put(read)
    with pytest.raises(stemmadb.Conflict):
        db.put(read)
    with pytest.raises(stemmadb.Conflict):
        db.put("a", {"n": 3}, revision=first.revision)
    assert db.put("a", {"n": 3}, revision=second.revision).revision.startswith("3-")
    assert db.put("a", read).revision.startswith("4-"), "an id beside the document: whatever the revision"
    with pytest.raises(stemmadb.Conflict):
        db.delete("a", first.revision)
    with pytest.raises(stemmadb.Conflict):
        db.update("a", {"n": 9}, revision=first.revision)
    assert db.delete("a").revision.startswith("5-")
    with pytest.raises(stemmadb.NotFound):
        db.delete("a")
    with pytest.raises(stemmadb.NotFound):
        db.update("a", {"n": 9})
    assert db.get_revision("a", second.revision) == {"n": 2}
    assert db.get_revision("a", "7-" + "0" * 32) is None


def test_ids_are_named_or_made(db):
    assert db.insert({"_id": "x", "n": 1}).id == "x" and db["x"] == {"n": 1}
    made = db.insert({"n": 2}).id
    assert len(made) == 36 and db[made] == {"n": 2}
    assert db.put({"_id": "x", "_rev": db["x"].revision, "n": 3}).revision.startswith("2-")
    assert db.get_many(["x", "none", made]) == [{"n": 3}, None, {"n": 2}]
    with pytest.raises(stemmadb.Invalid):
        db.insert("only-an-id")
    with pytest.raises(ValueError):
        db.insert("", {})


def test_patches(db):
    db["a"] = {"n": 1, "tags": ["x"]}
    db.update("a", {"title": "A"})
    db.update("a", {"$inc": {"n": 2}, "$push": {"tags": "y"}})
    assert db["a"] == {"n": 3, "tags": ["x", "y"], "title": "A"}
    with pytest.raises(stemmadb.Invalid):
        db.update("a", {"$nonsense": {"n": 1}})


def test_insert_many(db):
    assert db.insert_many({"_id": f"d{n}", "n": n} for n in range(12_000)) == 12_000
    assert len(db) == 12_000 and db.find().sum("n") == sum(range(12_000))
    with pytest.raises(stemmadb.Conflict):
        db.insert_many([{"_id": "d1"}, {"_id": "new"}])
    assert "new" in db, "documents of a batch are independent"
    assert db.insert_many([{"_id": "d1"}, {"_id": "newer"}], existing="skip") == 1
    assert db["d1"] == {"n": 1}
    assert db.insert_many({"d1": {"n": -1}, "newest": {}}, existing="replace") == 2
    assert db["d1"] == {"n": -1}
    with pytest.raises(stemmadb.Invalid):
        db.insert_many([{"_id": "before"}, {"n": object()}])
    assert "before" in db

    def failing():
        yield {"_id": "earlier"}
        raise RuntimeError("from the iterable")

    with pytest.raises(RuntimeError, match="from the iterable"):
        db.insert_many(failing())
    assert "earlier" in db
    with pytest.raises(TypeError):
        db.insert_many(7)
    with pytest.raises(stemmadb.Invalid):
        db.insert_many([], existing="perhaps")


def test_unique_indexes(db):
    db.create_index("email", unique=True)
    db["ada"] = {"email": "ada@example.org"}
    with pytest.raises(stemmadb.Duplicate):
        db["eve"] = {"email": "ada@example.org"}
    db.create_index("city", "-year", name="by-city")
    assert [(index["name"], index["paths"], index["unique"]) for index in db.indexes()][1:] == [
        ("by-city", ["city", "year"], False)
    ]
    db.drop_index("by-city")
    with pytest.raises(stemmadb.NotFound):
        db.drop_index("by-city")


def test_schemas_files_and_expiration(db):
    db.require_schema("book", {"type": "object", "required": ["title"]})
    with pytest.raises(stemmadb.Invalid):
        db["book:1"] = {}
    db["book:1"] = {"title": "Solaris"}
    db.require_schema("book", None)
    revision = db.attach("book:1", "cover.png", b"\x89PNG" * 40_000, content_type="image/png")
    assert revision == db["book:1"].revision and db["book:1"] == {"title": "Solaris"}
    assert db.read_file("book:1", "cover.png") == b"\x89PNG" * 40_000
    assert db.read_file("book:1", "none") is None
    assert db.attachments("book:1") == [{"name": "cover.png", "content_type": "image/png", "length": 160_000}]
    db.add_expiration("until", collection="book")
    db["book:2"] = {"title": "Emma", "until": datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)}
    assert "book:2" not in db and len(db) == 1
    db.expire("book:1", 3600)
    assert "book:1" in db and db["book:1"]["until"]


def test_files_are_read_from_open_files(db, tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(256)) * 1000)
    db["a"] = {}
    with (tmp_path / "text").open("rb") as file:
        db.attach("a", "text", file)
    assert db.read_file("a", "text") == bytes(range(256)) * 1000


def test_encrypted_databases(tmp_path):
    with stemmadb.open(tmp_path / "secret", key="correct horse battery staple") as db:
        db["a"] = {"n": 1}
    with pytest.raises(stemmadb.KeyRequired):
        stemmadb.open(tmp_path / "secret")
    with pytest.raises(stemmadb.WrongKey):
        stemmadb.open(tmp_path / "secret", key="another passphrase than this one")
    with stemmadb.open(tmp_path / "secret", key="correct horse battery staple") as db:
        assert db["a"] == {"n": 1}


def test_maintenance(tmp_path):
    with stemmadb.open(tmp_path / "a", durability="none") as db:
        db["a"] = {"n": 1}
        db.flush()
        assert db.check() == [] and db.compact() >= 0
        assert db.info()["documents"] == 1
        assert db.paths() == [{"path": "n", "documents": 1, "values": 1, "types": {"number": 1}}]
        db.backup(tmp_path / "backup")
        assert any((tmp_path / "backup").iterdir())
        assert repr(db).startswith("Database(") and db.location == str(tmp_path / "a")
    assert "closed" in repr(db)
    with pytest.raises(stemmadb.Invalid):
        stemmadb.open(tmp_path / "b", durability="hopefully")


def test_errors_have_kinds_messages_and_hints():
    kinds = [stemmadb.Conflict, stemmadb.Duplicate, stemmadb.Stopped, stemmadb.Closed, stemmadb.Forked]
    assert all(issubclass(kind, stemmadb.StemmaError) for kind in kinds)
    assert issubclass(stemmadb.NotFound, KeyError) and issubclass(stemmadb.Invalid, ValueError)
    error = pickle.loads(pickle.dumps(stemmadb.NotFound("there is none", "look elsewhere")))
    assert str(error) == "there is none\nhint: look elsewhere" and error.hint == "look elsewhere"
