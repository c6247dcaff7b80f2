//! Schemas of collections: asked on every way of writing, also after a crash.

use serde_json::{Value, json};
use stemmadb::testing::{self, Place};
use stemmadb::{
    Database, DocumentId, Durability, Edit, ErrorKind, Foreign, Options, Result, Revision, Schema, Sequence, field,
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
fn refused<T>(result: Result<T>) {
    let error = result.err().expect("it breaks the schema");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("does not meet the schema of `books`: at /title: "), "{error}");
}

#[test]
fn every_way_of_writing_is_asked() {
    let db = Database::in_memory_with(options()).unwrap();
    db.schemas().require("books", schema()).unwrap();
    let (good, bad) = (json!({"title": "Solaris"}), json!({"title": ""}));
    refused(db.insert("books:1", &bad));
    refused(db.upsert("books:1", &bad));
    let first = db.insert("books:1", &good).unwrap();
    refused(db.replace("books:1", &first, &bad));
    refused(db.edit(foreign("books:1", "a", false, &bad)));
    refused(db.write(|tx| tx.insert("books:2", &bad)));
    refused(db.write(|tx| tx.upsert("books:2", &bad)));
    refused(db.optimistic(|tx| tx.insert("books:2", &bad)));
    let books = db.collection::<Value>("books").unwrap();
    refused(books.insert("2", &bad));
    refused(books.push(&bad));
    refused(books.upsert_by("title", &bad));
    refused(books.modify("1", |book| {
        book["title"] = json!("");
        Ok(())
    }));
    refused(db.write(|tx| books.within(tx).upsert("2", &bad)));
    // Of a bulk, each stands for itself.
    let each = ["books:2", "books:3", "films:1"].map(|text| Edit::Insert { id: id(text), body: stemma(&bad) });
    let mut each = db.bulk(each.to_vec()).unwrap().into_iter();
    refused(each.next().unwrap());
    refused(each.next().unwrap());
    each.next().unwrap().unwrap();
    // In a transaction whatever went before is given up with it.
    let half = db.write(|tx| {
        tx.insert("books:4", &good)?;
        tx.insert("books:5", &bad)
    });
    refused(half);
    // Others are not concerned: neither another collection, nor what only looks alike.
    for other in ["films:2", "books", "bookshelf:1", "x books:1"] {
        db.insert(other, &bad).unwrap();
    }
    // Files are no part of the body; deletions are always allowed.
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
fn a_schema_that_members_break_is_not_declared() {
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
    refused(db.replace("books:007", old.revision(), &json!({"title": 5})));
    db.replace("books:007", old.revision(), &json!({"title": "five"})).unwrap();
    assert_eq!(db.schemas().violations("books", 2).unwrap()[0].0.as_str(), "books:107");
    assert_eq!(db.schemas().violations("films", 2).unwrap_err().kind(), ErrorKind::NotFound);
    for name in ["", "_design", "a:b"] {
        assert_eq!(db.schemas().require(name, schema()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn what_is_written_elsewhere_is_taken_if_that_was_said() {
    let db = Database::in_memory_with(options()).unwrap();
    db.schemas().require("books", schema().foreign(Foreign::Accept)).unwrap();
    let bad = json!({"title": ""});
    db.edit(foreign("books:1", "a", false, &bad)).unwrap();
    refused(db.insert("books:2", &bad));
    let found = db.schemas().violations("books", 10).unwrap();
    assert_eq!(found[0].0.as_str(), "books:1");
    assert!(found[0].1.starts_with("at /title: "), "{}", found[0].1);
}

/// Whatever is written while a schema is declared meets it, or was found.
#[test]
fn nothing_slips_through_while_it_is_declared() {
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
fn a_prepared_write_meets_the_schema_that_came_between() {
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
    refused(written);
}

#[test]
fn it_survives_crashes_checkpoints_and_rebuilding() {
    for seed in 0..12 {
        let place = Place::new(seed);
        let options = || testing::small(options(), 96 << 10, 16 << 10, 40);
        let db = place.open(options()).unwrap();
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
        let db = place.crash_image(seed).open(options()).unwrap();
        refused(db.insert("books:new", &json!({"title": ""})));
        assert_eq!(db.schemas().list()[0].1.json(), schema().json());
        assert!(db.changes(Sequence::ZERO).unwrap().run().count() >= 200);
        assert!(db.maintenance().check().unwrap().is_sound());
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("books.stemma");
    let db = Database::open(&path).unwrap();
    db.schemas().require("books", schema()).unwrap();
    db.close().unwrap();
    refused(Database::open(&path).unwrap().insert("books:1", &json!({"title": ""})));
    let db = Database::rebuild(&path, Options::new(), |_| ()).unwrap();
    refused(db.insert("books:1", &json!({"title": ""})));
}
