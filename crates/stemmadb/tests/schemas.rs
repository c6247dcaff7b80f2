//! Collection schemas: enforced on every kind of write, also after a crash.

use serde_json::{Value, json};
use stemmadb::testing::{self, TestStorage};
use stemmadb::{
    Database, DocumentId, Durability, Edit, ErrorKind, ForeignPolicy, Options, Result, Revision, Schema, Sequence,
    field,
};

fn schema() -> Schema {
    let json = json!({"type": "object", "required": ["title"], "additionalProperties": false,
        "properties": {"title": {"type": "string", "minLength": 1}, "year": {"type": "integer"}}});
    Schema::new(&json).unwrap()
}

fn options() -> Options {
    Options::new().durability(Durability::None).background(false)
}

fn stemma(body: &Value) -> stemmadb::Value {
    stemmadb::Value::from_serialize(body).unwrap()
}

fn id(text: &str) -> DocumentId {
    DocumentId::new(text).unwrap()
}

fn foreign(text: &str, digit: &str, deleted: bool, body: &Value) -> Edit {
    let revision = format!("7-{}", digit.repeat(32)).parse().unwrap();
    Edit::Foreign { id: id(text), revisions: vec![revision], deleted, body: stemma(body), files: Vec::new() }
}

#[track_caller]
fn assert_rejected<T>(result: Result<T>) {
    let error = result.err().expect("it violates the schema");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("does not meet the schema of `books`: at /title: "), "{error}");
}

#[test]
fn every_kind_of_write_is_checked() {
    let db = Database::in_memory_with(options()).unwrap();
    db.schemas().require("books", schema()).unwrap();
    let (good, bad) = (json!({"title": "Solaris"}), json!({"title": ""}));
    assert_rejected(db.insert("books:1", &bad));
    assert_rejected(db.upsert("books:1", &bad));
    let first = db.insert("books:1", &good).unwrap();
    assert_rejected(db.replace("books:1", &first, &bad));
    assert_rejected(db.edit(foreign("books:1", "a", false, &bad)));
    assert_rejected(db.write(|tx| tx.insert("books:2", &bad)));
    assert_rejected(db.write(|tx| tx.upsert("books:2", &bad)));
    assert_rejected(db.optimistic(|tx| tx.insert("books:2", &bad)));
    let books = db.collection::<Value>("books").unwrap();
    assert_rejected(books.insert("2", &bad));
    assert_rejected(books.push(&bad));
    assert_rejected(books.upsert_by("title", &bad));
    assert_rejected(books.modify("1", |book| {
        book["title"] = json!("");
        Ok(())
    }));
    assert_rejected(db.write(|tx| books.within(tx).upsert("2", &bad)));
    // Each edit of a bulk write is checked separately.
    let each = ["books:2", "books:3", "films:1"].map(|text| Edit::Insert { id: id(text), body: stemma(&bad) });
    let mut each = db.bulk(each.to_vec()).unwrap().into_iter();
    assert_rejected(each.next().unwrap());
    assert_rejected(each.next().unwrap());
    each.next().unwrap().unwrap();
    // A violation aborts the whole transaction.
    let half = db.write(|tx| {
        tx.insert("books:4", &good)?;
        tx.insert("books:5", &bad)
    });
    assert_rejected(half);
    // Documents of other collections and with similar ids are not checked.
    for other in ["films:2", "books", "bookshelf:1", "x books:1"] {
        db.insert(other, &bad).unwrap();
    }
    // Attachments are not part of the body; deletions are always allowed.
    let with_file = db.files().attach("books:1", &first, "cover", "text/plain", &b"an ocean"[..]).unwrap();
    let second = db.replace("books:1", &with_file, &json!({"title": "Fiasco", "year": 1986})).unwrap();
    assert!(db.files().open("books:1", "cover").unwrap().is_some());
    db.delete("books:1", &second).unwrap();
    db.edit(foreign("books:9", "b", true, &json!({}))).unwrap();
    assert_eq!(db.find(field("_id").begins_with("books:")).count().unwrap(), 0);
    db.schemas().remove("books").unwrap();
    db.insert("books:2", &bad).unwrap();
    assert_eq!(db.schemas().remove("books").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn schema_violated_by_existing_documents_is_rejected() {
    let db = Database::in_memory_with(options()).unwrap();
    for n in 0..600 {
        db.insert(&format!("books:{n:03}"), &json!({"title": if n % 100 == 7 { json!(n) } else { json!("x") }}))
            .unwrap();
    }
    let error = db.schemas().require("books", schema()).unwrap_err();
    assert_eq!(
        error.message(),
        "6 documents do not meet the schema of `books`: `books:007`: at /title: value is not of type \"string\"; \
         also `books:107`, `books:207`"
    );
    assert!(db.schemas().list().is_empty());
    db.insert("books:x", &json!({"title": 1})).unwrap();
    db.schemas().require("books", schema().for_new_writes()).unwrap();
    assert_eq!(db.schemas().violations("books", 100).unwrap().len(), 7);
    let old = db.get("books:007").unwrap().unwrap();
    assert_rejected(db.replace("books:007", old.revision(), &json!({"title": 5})));
    db.replace("books:007", old.revision(), &json!({"title": "five"})).unwrap();
    assert_eq!(db.schemas().violations("books", 2).unwrap()[0].0.as_str(), "books:107");
    assert_eq!(db.schemas().violations("films", 2).unwrap_err().kind(), ErrorKind::NotFound);
    for name in ["", "_design", "a:b"] {
        assert_eq!(db.schemas().require(name, schema()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn foreign_revisions_are_accepted_if_configured() {
    let db = Database::in_memory_with(options()).unwrap();
    db.schemas().require("books", schema().foreign(ForeignPolicy::Accept)).unwrap();
    let bad = json!({"title": ""});
    db.edit(foreign("books:1", "a", false, &bad)).unwrap();
    assert_rejected(db.insert("books:2", &bad));
    let found = db.schemas().violations("books", 10).unwrap();
    assert_eq!(found[0].0.as_str(), "books:1");
    assert!(found[0].1.starts_with("at /title: "), "{}", found[0].1);
}

/// A document written during the declaration satisfies the schema, or the declaration fails.
#[test]
fn no_violation_slips_in_during_declaration() {
    for round in 0..20 {
        let db = Database::in_memory_with(options()).unwrap();
        for n in 0..300 {
            db.insert(&format!("books:{n}"), &json!({"title": "x"})).unwrap();
        }
        let declared = std::thread::scope(|scope| {
            let writer = scope
                .spawn(|| (0..40).filter(|n| db.insert(&format!("books:w{n}"), &json!({"title": n})).is_ok()).count());
            let declared = db.schemas().require("books", schema()).is_ok();
            writer.join().unwrap();
            declared
        });
        if declared {
            assert!(db.schemas().violations("books", 10).unwrap().is_empty(), "round {round}");
        }
    }
}

#[test]
fn pending_optimistic_write_is_checked_against_a_new_schema() {
    let db = Database::in_memory_with(options()).unwrap();
    let mut runs = 0;
    let written = db.optimistic(|tx| -> Result<Revision> {
        runs += 1;
        let revision = tx.insert("books:1", &json!({"title": 1}))?;
        if runs == 1 {
            db.schemas().require("books", schema()).unwrap();
        }
        Ok(revision)
    });
    assert_rejected(written);
}

#[test]
fn schema_survives_crashes_checkpoints_and_rebuilds() {
    for seed in 0..12 {
        let storage = TestStorage::new(seed);
        let options = || testing::with_small_limits(options(), 96 << 10, 16 << 10, 40);
        let db = storage.open(options()).unwrap();
        let write = |from: usize| {
            for n in from..from + 200 {
                db.insert(&format!("books:{n}"), &json!({"title": "x".repeat(n % 90 + 1)})).unwrap();
            }
        };
        write(0);
        db.schemas().require("books", schema()).unwrap();
        if seed % 2 == 0 {
            write(200);
            db.maintenance().checkpoint().unwrap();
        }
        if seed % 3 == 0 {
            db.maintenance().compact().unwrap();
        }
        let db = storage.crash_image(seed).open(options()).unwrap();
        assert_rejected(db.insert("books:new", &json!({"title": ""})));
        assert_eq!(db.schemas().list()[0].1.json(), schema().json());
        assert!(db.changes(Sequence::ZERO).unwrap().run().count() >= 200);
        assert!(db.maintenance().check().unwrap().is_sound());
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("books.stemma");
    let db = Database::open(&path).unwrap();
    db.schemas().require("books", schema()).unwrap();
    db.close().unwrap();
    assert_rejected(Database::open(&path).unwrap().insert("books:1", &json!({"title": ""})));
    let db = Database::rebuild(&path, Options::new(), |_| ()).unwrap();
    assert_rejected(db.insert("books:1", &json!({"title": ""})));
}
