//! Collections: keys, type mismatches, membership, and the same methods in every context.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::typed::EntryEvent;
use stemmadb::{Collection, Database, ErrorKind, Sequence, field};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct User {
    name: String,
    email: String,
}

fn user(name: &str) -> User {
    User { name: name.to_owned(), email: format!("{name}@example.org") }
}

fn users(db: &Database) -> Collection<User> {
    db.collection("users").unwrap()
}

#[test]
fn ambiguous_names_are_rejected() {
    for name in ["", "_design", "a:b", ":"] {
        let error = Database::in_memory().collection::<User>(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}");
    }
    let users = users(&Database::in_memory());
    assert_eq!(users.name(), "users");
    assert_eq!(users.insert("", &user("ada")).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn keys_are_explicit_natural_or_generated() {
    let db = Database::in_memory();
    let made: Vec<String> = (0..20).map(|n| users(&db).push(&user(&format!("u{n}"))).unwrap()).collect();
    assert!(made.is_sorted(), "later keys sort after earlier ones");
    let natural = users(&db).keyed_by("email").unwrap();
    assert_eq!(natural.push(&user("ada")).unwrap(), "ada@example.org");
    assert_eq!(natural.push(&user("ada")).unwrap_err().kind(), ErrorKind::Conflict);
    assert!(db.get("users:ada@example.org").unwrap().is_some());
    let by_missing = users(&db).keyed_by("passport").unwrap();
    assert_eq!(by_missing.push(&user("eve")).unwrap_err().kind(), ErrorKind::Invalid);
    let numbered = db.collection::<serde_json::Value>("rooms").unwrap().keyed_by("number").unwrap();
    assert_eq!(numbered.push(&json!({"number": 12})).unwrap(), "12");
    for wrong in [json!({"number": 1.5}), json!({"number": ""}), json!({"number": [1]})] {
        assert_eq!(numbered.push(&wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
    }
}

#[test]
fn similar_ids_are_not_members() {
    let db = Database::in_memory();
    let users = users(&db);
    users.insert("ada", &user("ada")).unwrap();
    for other in ["users", "users2:ada", "user:ada", "Users:ada"] {
        db.insert(other, &user("ada")).unwrap();
    }
    assert_eq!(users.all().count().unwrap(), 1);
    assert_eq!(users.find(field("name").eq("ada")).entries().unwrap().len(), 1);
    assert_eq!(users.changes(Sequence::ZERO).unwrap().count(), 1);
}

#[test]
fn type_mismatch_names_the_document() {
    let db = Database::in_memory();
    db.insert("users:eve", &json!({"name": 5})).unwrap();
    let error = users(&db).all().entries().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("users:eve"), "{error}");
}

#[test]
fn upsert_by_replaces_one_match_and_rejects_two() {
    let db = Database::in_memory();
    let users = users(&db);
    let key = users.upsert_by("email", &user("ada")).unwrap();
    let renamed = User { name: "Ada".to_owned(), ..user("ada") };
    assert_eq!(users.upsert_by("email", &renamed).unwrap(), key);
    assert_eq!(users.all().count().unwrap(), 1);
    assert_eq!(users.get(&key).unwrap().unwrap().content.name, "Ada");
    users.insert("another", &user("ada")).unwrap();
    assert_eq!(users.upsert_by("email", &user("ada")).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(users.upsert_by("phone", &user("ada")).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn stale_entries_conflict_on_update() {
    let db = Database::in_memory();
    let users = users(&db);
    users.insert("ada", &user("ada")).unwrap();
    let mut first = users.get("ada").unwrap().unwrap();
    let mut second = first.clone();
    first.content.name = "one".to_owned();
    users.update(&mut first).unwrap();
    users.update(&mut first).unwrap();
    assert_eq!(users.update(&mut second).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(users.delete(&second).unwrap_err().kind(), ErrorKind::Conflict);
    users.delete(&first).unwrap();
    assert!(users.get("ada").unwrap().is_none());
    assert!(!users.remove("ada").unwrap());
    assert!(users.modify("ada", |_| Ok(())).unwrap().is_none());
}

#[test]
fn collections_work_in_both_kinds_of_transactions() {
    let db = Database::in_memory();
    let users = users(&db);
    db.write(|tx| {
        let mut users = users.within(tx);
        users.insert("ada", &user("ada"))?;
        assert_eq!(users.find(field("name").eq("ada"))?.count()?, 1);
        users.upsert_by("email", &user("bob")).map(|_| ())
    })
    .unwrap();
    let gone = db.optimistic(|tx| {
        let mut users = users.within(tx);
        let bob = users.find(field("name").eq("bob"))?.first()?.expect("upserted");
        users.delete(&bob)?;
        assert_eq!(users.find(field("name").exists())?.count()?, 1);
        users.remove("ada")
    });
    assert!(gone.unwrap());
    assert_eq!(users.all().count().unwrap(), 0);
}

#[test]
fn changes_and_live_queries_are_typed() {
    let db = Database::in_memory();
    let users = users(&db);
    let mut watch = users.watch(field("name").begins_with("a")).unwrap();
    assert!(watch.next_delta().unwrap().unwrap().is_first);
    let mut feed = users.subscribe(Sequence::ZERO).unwrap();
    db.insert("other:1", &json!({"name": "a"})).unwrap();
    users.insert("ada", &user("ada")).unwrap();
    let delta = watch.next_within(Duration::from_secs(60)).unwrap().unwrap();
    assert!(matches!(&delta.events[..], [EntryEvent::Added(entry)] if entry.content == user("ada")));
    let change = feed.next_within(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!((change.key.as_str(), change.entry.unwrap().content), ("ada", user("ada")));
    users.remove("ada").unwrap();
    let delta = watch.next_within(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!(delta.events, [EntryEvent::Removed("ada".to_owned())]);
    let change = feed.next_within(Duration::from_secs(60)).unwrap().unwrap();
    assert_eq!((change.key.as_str(), change.entry), ("ada", None));
}
