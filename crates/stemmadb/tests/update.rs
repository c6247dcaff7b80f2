//! Updates by patches: single, in bulk, in transactions, and of all documents that match a query.

use serde_json::json;
use stemmadb::{
    Database, DocumentId, Durability, Edit, ErrorKind, Expiry, Index, Options, Patch, Revision, Schema, Value, field,
};

fn database() -> Database {
    Database::in_memory_with(Options::new().durability(Durability::None).background(false)).unwrap()
}

fn id(text: &str) -> DocumentId {
    DocumentId::new(text).unwrap()
}

#[track_caller]
fn assert_body(db: &Database, id: &str, expected: &str) {
    assert_eq!(db.get(id).unwrap().expect("the document exists").value().unwrap().to_json(), expected);
}

#[test]
fn an_update_changes_only_what_it_names() {
    let db = database();
    assert_eq!(db.update("solaris", &Patch::new().set("year", 1)).unwrap_err().kind(), ErrorKind::NotFound);
    let first = db.insert("solaris", &json!({"year": 1960, "tags": ["novel"]})).unwrap();
    let second = db.update("solaris", &Patch::new().increment("year", 1).push("tags", "space")).unwrap();
    assert_eq!(second.generation(), 2);
    assert_body(&db, "solaris", r#"{"tags":["novel","space"],"year":1961}"#);
    assert_eq!(db.find(field("year").eq(1961)).count().unwrap(), 1);
    assert_eq!(db.find(field("year").eq(1960)).count().unwrap(), 0);
    db.delete("solaris", &second).unwrap();
    assert_eq!(db.update("solaris", &Patch::new().set("year", 1)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(first.generation(), 1);
}

#[test]
fn an_update_without_a_change_writes_nothing() {
    let db = database();
    let revision = db.insert("solaris", &json!({"year": 1961, "tags": ["novel"]})).unwrap();
    let sequence = db.sequence();
    let patch = Patch::new().set("year", 1961).add_to_set("tags", "novel").unset("missing").maximum("year", 5);
    assert_eq!(patch.check().unwrap_err().kind(), ErrorKind::Invalid, "two operators for `year`");
    let patch = Patch::new().set("year", 1961).add_to_set("tags", "novel").unset("missing");
    assert_eq!(db.update("solaris", &patch).unwrap(), revision);
    assert_eq!(db.update_where(field("year").exists(), &patch).unwrap(), 0);
    assert_eq!(db.sequence(), sequence);
}

#[test]
fn an_update_of_a_revision_conflicts_with_later_ones() {
    let db = database();
    let first = db.insert("solaris", &json!({"year": 1960})).unwrap();
    let update = |revision: Revision, year: i64| Edit::Update {
        id: id("solaris"),
        revision: Some(revision),
        patch: Patch::new().set("year", year),
    };
    let second = db.edit(update(first, 1961)).unwrap();
    assert_eq!(db.edit(update(first, 1962)).unwrap_err().kind(), ErrorKind::Conflict);
    // A losing branch is updated by its revision, on its own body.
    let foreign: Revision = format!("2-{}", "0".repeat(32)).parse().unwrap();
    let body = Value::from_serialize(&json!({"year": 7, "branch": true})).unwrap();
    let (revisions, files) = (vec![foreign, first], Vec::new());
    db.edit(Edit::Foreign { id: id("solaris"), revisions, deleted: false, body, files }).unwrap();
    assert_eq!(db.get("solaris").unwrap().unwrap().revision(), &second, "the greater hash wins");
    let third = db.edit(update(foreign, 8)).unwrap();
    let branch = db.get_revision("solaris", &third).unwrap().unwrap();
    assert_eq!(branch.value().unwrap().to_json(), r#"{"branch":true,"year":8}"#);
}

#[test]
fn updates_keep_attachments() {
    let db = database();
    let revision = db.insert("solaris", &json!({"year": 1})).unwrap();
    db.files().attach("solaris", &revision, "a.txt", "text/plain", &b"hello"[..]).unwrap();
    db.update("solaris", &Patch::new().increment("year", 1)).unwrap();
    let document = db.get("solaris").unwrap().unwrap();
    assert_eq!(document.attachments().unwrap().len(), 1);
    assert_body(&db, "solaris", r#"{"year":2}"#);
}

#[test]
fn constraints_apply_to_updates() {
    let db = database();
    db.indexes().create(Index::on("email").unique()).unwrap();
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer", "maximum": 150}}});
    db.schemas().require("users", Schema::new(&schema).unwrap()).unwrap();
    db.insert("users:ada", &json!({"email": "a", "age": 36})).unwrap();
    db.insert("users:eve", &json!({"email": "e", "age": 36})).unwrap();
    let error = db.update("users:eve", &Patch::new().set("email", "a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    assert_eq!(db.update("users:eve", &Patch::new().set("age", 151)).unwrap_err().kind(), ErrorKind::Invalid);
    let error = db.update("users:eve", &Patch::new().increment("email", 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("users:eve") && error.message().contains("email"), "{error}");
    assert_eq!(db.update("users:eve", &Patch::new().set("a..b", 1)).unwrap_err().kind(), ErrorKind::Invalid);
    assert_body(&db, "users:eve", r#"{"age":36,"email":"e"}"#);
}

#[test]
fn transactions_and_bulk_see_their_own_updates() {
    let db = database();
    db.insert("counter", &json!({"n": 0})).unwrap();
    let one = Patch::new().increment("n", 1);
    db.write(|tx| {
        tx.update("counter", &one)?;
        tx.update("counter", &one)?;
        tx.insert("other", &json!({"n": 5}))?;
        tx.update("other", &one)
    })
    .unwrap();
    assert_body(&db, "counter", r#"{"n":2}"#);
    assert_body(&db, "other", r#"{"n":6}"#);
    let update = |name: &str| Edit::Update { id: id(name), revision: None, patch: one.clone() };
    let results = db.bulk(vec![update("counter"), update("missing"), update("counter")]).unwrap();
    assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_body(&db, "counter", r#"{"n":4}"#);
    db.optimistic(|tx| tx.update("counter", &one)).unwrap();
    assert_body(&db, "counter", r#"{"n":5}"#);
}

#[test]
fn concurrent_updates_are_all_applied() {
    let db = database();
    db.insert("counter", &json!({"n": 0, "m": 0})).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let db = &db;
            scope.spawn(move || {
                let patch = Patch::new().increment(if thread % 2 == 0 { "n" } else { "m" }, 1);
                for _ in 0..100 {
                    match thread {
                        0..4 => db.update("counter", &patch).unwrap(),
                        _ => db.optimistic(|tx| tx.update("counter", &patch)).unwrap(),
                    };
                }
            });
        }
    });
    assert_body(&db, "counter", r#"{"m":400,"n":400}"#);
}

#[test]
fn matching_documents_change_together_or_not_at_all() {
    let db = database();
    for number in 0..10 {
        db.insert(&format!("d{number}"), &json!({"n": number, "even": number % 2 == 0})).unwrap();
    }
    let changed = db.update_where(field("even").eq(true), &Patch::new().increment("n", 100)).unwrap();
    assert_eq!(changed, 5);
    assert_eq!(db.find(field("n").ge(100)).count().unwrap(), 5);
    // One document doesn't fit, so none changes.
    db.insert("d9x", &json!({"n": "text", "even": false})).unwrap();
    let sequence = db.sequence();
    let error = db.update_where(field("even").eq(false), &Patch::new().increment("n", 100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("d9x"), "{error}");
    assert_eq!(db.sequence(), sequence);
    // A query's order and limit choose the rows.
    let oldest = stemmadb::Query::new(field("n").lt(100)).sort("n").limit(2);
    assert_eq!(db.update_where(oldest, &Patch::new().set("old", true)).unwrap(), 2);
    let ids: Vec<_> = db.find(field("old").eq(true)).ids().unwrap().map(|id| id.unwrap().to_string()).collect();
    assert_eq!(ids, ["d1", "d3"]);
    assert_eq!(db.delete_where(field("even").eq(false)).unwrap(), 6);
    assert_eq!(db.delete_where(field("even").eq(false)).unwrap(), 0);
    assert_eq!(db.find(field("even").exists()).count().unwrap(), 5);
}

#[test]
fn expired_documents_are_not_updated() {
    let db = database();
    db.expiration().add_rule(Expiry::at("ends")).unwrap();
    db.insert("session", &json!({"n": 1, "ends": "2001-09-09T01:46:51Z"})).unwrap();
    assert_eq!(db.update("session", &Patch::new().set("n", 2)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(db.update_where(field("n").exists(), &Patch::new().set("n", 2)).unwrap(), 0);
}

#[test]
fn updates_survive_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.stemma");
    let db = Database::open(&path).unwrap();
    db.insert("a", &json!({"n": 1})).unwrap();
    db.update("a", &Patch::new().increment("n", 1)).unwrap();
    assert_eq!(db.update_where(field("n").eq(2), &Patch::new().set("m.x", "y")).unwrap(), 1);
    db.close().unwrap();
    let db = Database::open(&path).unwrap();
    assert_body(&db, "a", r#"{"n":2,"m":{"x":"y"}}"#);
    assert_eq!(db.find(field("m.x").eq("y")).count().unwrap(), 1);
}
