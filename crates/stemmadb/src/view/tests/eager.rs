//! Tests of eager and unique views.

use super::Tags;
use crate::value::Value;
use crate::view::query::Access;
use crate::{Database, ErrorKind, Reduction, Refresh};

fn tags(name: &str, refresh: Refresh) -> Tags {
    Tags { refresh, ..Tags::new(name, Reduction::Count) }
}

fn json(text: &str) -> Value {
    Value::parse(text).unwrap()
}

#[test]
fn eager_view_shows_each_write_without_update() {
    let db = Database::in_memory();
    db.insert("before", &json(r#"{"tags": ["a"]}"#)).unwrap();
    let eager = db.view(tags("eager", Refresh::Eager)).unwrap();
    let count = || eager.query().access(Access::NoUpdate).count().unwrap();
    assert_eq!(count(), 1);
    for at in 2..49 {
        let revision = db.upsert("one", &json(&format!(r#"{{"tags": ["a", "t{at}"]}}"#))).unwrap();
        assert_eq!(count(), 3);
        assert!(!eager.query().access(Access::NoUpdate).rows().unwrap().is_stale());
        if at % 7 == 0 {
            db.delete("one", &revision).unwrap();
            assert_eq!(count(), 1);
        }
    }
    db.local_documents().put("_local/seen", None, &json("{}")).unwrap();
    assert_eq!(count(), 3);
    let refused = db.insert("bad", &json(r#"{"broken": true}"#)).unwrap_err();
    assert!(refused.message().contains("view `eager`, document `bad`"), "{refused:?}");
    assert!(db.get("bad").unwrap().is_none());
    let undone = db.write(|tx| {
        tx.insert("never", &json(r#"{"tags": ["z"]}"#))?;
        Err::<(), _>(crate::Error::invalid("given up"))
    });
    assert!(undone.is_err());
    assert_eq!(count(), 3);
}

#[test]
fn unique_view_rejects_a_duplicate_key_and_names_its_holder() {
    let db = Database::in_memory();
    db.insert("ann", &json(r#"{"tags": ["ann@example.org"]}"#)).unwrap();
    let unique = db.view(tags("emails", Refresh::Unique)).unwrap();
    let refused = db.insert("anna", &json(r#"{"tags": ["ann@example.org"]}"#)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().starts_with("document `ann` has the key already that `anna`"), "{refused:?}");
    assert!(db.get("anna").unwrap().is_none());
    // If two documents of one transaction share a key, neither is written.
    let both = db.write(|tx| {
        tx.insert("bob", &json(r#"{"tags": ["bob@example.org"]}"#))?;
        tx.insert("bert", &json(r#"{"tags": ["bob@example.org"]}"#))
    });
    assert_eq!(both.unwrap_err().kind(), ErrorKind::Conflict);
    // A key may move from one document to another within one transaction.
    db.write(|tx| {
        let ann = tx.get("ann")?.unwrap();
        tx.delete("ann", ann.revision())?;
        tx.insert("anna", &json(r#"{"tags": ["ann@example.org"]}"#))
    })
    .unwrap();
    db.upsert("anna", &json(r#"{"tags": ["ann@example.org", "ann@example.org"]}"#)).unwrap();
    assert_eq!(unique.query().count().unwrap(), 2);
    assert_eq!(unique.query().key("ann@example.org").first().unwrap().unwrap().id.as_str(), "anna");
}

#[test]
fn unique_view_over_duplicate_keys_is_rejected() {
    let db = Database::in_memory();
    for id in ["one", "two"] {
        db.insert(id, &json(r#"{"tags": ["same"]}"#)).unwrap();
    }
    let refused = db.view(tags("unique", Refresh::Unique)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("`one` and `two`"), "{refused:?}");
    let two = db.get("two").unwrap().unwrap();
    db.delete("two", two.revision()).unwrap();
    db.view(tags("unique", Refresh::Unique)).unwrap();
}

#[test]
fn concurrent_writers_and_readers_of_an_eager_view() {
    let directory = tempfile::tempdir().unwrap();
    let options = crate::testing::with_small_limits(crate::Options::new(), 1 << 20, 1 << 20, 200);
    let db = Database::open_with(directory.path().join("db"), options).unwrap();
    let eager = db.view(Tags { reduction: Reduction::Sum, ..tags("eager", Refresh::Eager) }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let db = db.clone();
            scope.spawn(move || {
                for at in 0..1_500 {
                    // Two rows that cancel out, in one transaction.
                    db.with_durability(crate::Durability::None)
                        .write(|tx| {
                            tx.upsert(
                                &format!("{writer}-{}", at % 200),
                                &json(&format!(r#"{{"tags": ["a{at}"], "amount": {at}}}"#)),
                            )?;
                            tx.upsert(
                                &format!("{writer}-{}-", at % 200),
                                &json(&format!(r#"{{"tags": ["b{at}"], "amount": -{at}}}"#)),
                            )
                        })
                        .unwrap();
                }
            });
        }
        for _ in 0..300 {
            let sum = eager.query().reduce().unwrap().unwrap_or(0.into());
            assert_eq!(sum, 0.into());
        }
    });
    assert_eq!(eager.query().rows().unwrap().count(), 800);
    assert!(db.maintenance().check().unwrap().is_sound());
}

/// Replicas must be able to converge, as with a unique index.
#[test]
fn unique_view_accepts_replicated_revisions() {
    let db = Database::in_memory();
    let unique = db.view(tags("emails", Refresh::Unique)).unwrap();
    let first = db.insert("ann", &json(r#"{"tags": ["x"]}"#)).unwrap();
    let revision = format!("1-{}", "a".repeat(32)).parse().unwrap();
    let foreign = crate::Edit::Foreign {
        id: crate::DocumentId::new("anna").unwrap(),
        revisions: vec![revision],
        deleted: false,
        body: json(r#"{"tags": ["x"]}"#),
        files: Vec::new(),
    };
    db.edit(foreign).unwrap();
    assert_eq!(unique.query().key("x").rows().unwrap().count(), 2);
    // Each document may keep its key; no other document can get it.
    db.replace("ann", &first, &json(r#"{"tags": ["x"], "amount": 2}"#)).unwrap();
    assert_eq!(db.insert("third", &json(r#"{"tags": ["x"]}"#)).unwrap_err().kind(), ErrorKind::Conflict);
    db.upsert("anna", &json(r#"{"tags": ["y"]}"#)).unwrap();
    assert_eq!(db.upsert("anna", &json(r#"{"tags": ["x"]}"#)).unwrap_err().kind(), ErrorKind::Conflict);
}
