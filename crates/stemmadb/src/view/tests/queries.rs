//! Tests of view queries: keys, ranges, prefixes, order, groups, documents.

use std::time::Duration;

use super::Tags;
use crate::value::Value;
use crate::view::query::Access;
use crate::views::Stats;
use crate::{Database, Document, Emitter, ErrorKind, Reduction, Result, View};

/// Sales by author and year.
struct Sales;

impl View for Sales {
    type Key = (String, i64);
    type Value = u64;
    type Reduced = Stats;

    fn name(&self) -> &str {
        "sales"
    }

    fn map(&self, book: &Document, rows: &mut Emitter<'_, Self::Key, Self::Value>) -> Result<()> {
        if let (Some(author), Some(year), Some(sold)) = (book.get("author")?, book.get("year")?, book.get("sold")?) {
            rows.emit((author.deserialize_into()?, year.deserialize_into()?), sold.deserialize_into()?);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Stats
    }
}

fn library() -> Database {
    let db = Database::in_memory();
    for (id, author, year, sold) in [
        ("solaris", "Lem", 1961, 5),
        ("eden", "Lem", 1958, 1),
        ("fiasco", "Lem", 1986, 2),
        ("dispossessed", "Le Guin", 1974, 4),
        ("lathe", "Le Guin", 1971, 3),
        ("picnic", "Strugatsky", 1972, 9),
    ] {
        db.insert(id, &serde_json::json!({"author": author, "year": year, "sold": sold})).unwrap();
    }
    db.insert("note", &serde_json::json!({"text": "not a book"})).unwrap();
    db
}

fn ids(query: crate::ViewQuery<Sales>) -> Vec<String> {
    query.rows().unwrap().map(|row| row.unwrap().id.to_string()).collect()
}

#[test]
fn rows_by_key_range_and_prefix() {
    let db = library();
    let sales = db.view(Sales).unwrap();
    let all = ["lathe", "dispossessed", "eden", "solaris", "fiasco", "picnic"];
    assert_eq!(ids(sales.query()), all);
    assert_eq!(ids(sales.query().descending()), all.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(ids(sales.query().skip(1).limit(2)), all[1..3]);
    assert_eq!(ids(sales.query().key(("Lem", 1961))), ["solaris"]);
    assert_eq!(ids(sales.query().keys([("Lem", 1986), ("Lem", 1900), ("Lem", 1958)])), ["fiasco", "eden"]);
    assert_eq!(ids(sales.query().prefix(("Lem",))), all[2..5]);
    assert_eq!(ids(sales.query().range(("Le Guin", 1972)..("Lem", 1961))), ["dispossessed", "eden"]);
    assert_eq!(
        ids(sales.query().range(("Le Guin", 1972)..=("Lem", 1961)).descending()),
        ["solaris", "eden", "dispossessed"]
    );
    assert_eq!(ids(sales.query().range(("Lem", 1961)..)), ["solaris", "fiasco", "picnic"]);
    assert_eq!(ids(sales.query().range(..("Le Guin", 1974))), ["lathe"]);
    assert_eq!(sales.query().prefix(5).rows().err().unwrap().kind(), ErrorKind::Invalid);
    let first = sales.query().prefix(("Lem",)).descending().with_documents().first().unwrap().unwrap();
    assert_eq!((first.key, first.value), (("Lem".to_owned(), 1986), 2));
    assert_eq!(first.document.unwrap().get("sold").unwrap(), Some(2.into()));
}

#[test]
fn reductions_and_groups() {
    let db = library();
    let sales = db.view(Sales).unwrap();
    let lem = sales.query().prefix(("Lem",)).reduce().unwrap().unwrap();
    assert_eq!(lem, Stats { sum: 8.0, count: 3, min: Some(1.0), max: Some(5.0), sumsqr: 30.0 });
    assert_eq!(sales.query().prefix(("Nobody",)).reduce().unwrap(), None);
    assert_eq!(sales.query().prefix(("Lem",)).count().unwrap(), 3);
    let groups = |query: crate::ViewQuery<Sales>, level| -> Vec<(String, f64)> {
        let groups = query.group_level(level).unwrap();
        groups.map(|group| group.map(|(key, stats)| (key.to_json(), stats.sum)).unwrap()).collect()
    };
    let by_author =
        [("[\"Le Guin\"]", 7.0), ("[\"Lem\"]", 8.0), ("[\"Strugatsky\"]", 9.0)].map(|(key, sum)| (key.to_owned(), sum));
    assert_eq!(groups(sales.query(), 1), by_author);
    assert_eq!(groups(sales.query().descending().limit(2), 1), [by_author[2].clone(), by_author[1].clone()]);
    assert_eq!(groups(sales.query().skip(1).limit(1), 1), by_author[1..2]);
    assert_eq!(groups(sales.query().range(("Lem", 1960)..("Lem", 1980)), 1), [("[\"Lem\"]".to_owned(), 5.0)]);
    assert_eq!(groups(sales.query(), 0), [("[]".to_owned(), 24.0)]);
    assert_eq!(groups(sales.query(), 9).len(), 6);
    assert_eq!(sales.query().group().unwrap().count(), 6);
    let plain = db.view(Tags::new("plain", Reduction::None)).unwrap();
    assert_eq!(plain.query().reduce().unwrap_err().kind(), ErrorKind::Invalid);
}

/// One row per document, whose key is the document's list.
struct Lists;

impl View for Lists {
    type Key = Vec<String>;
    type Value = u64;
    type Reduced = Stats;

    fn name(&self) -> &str {
        "lists"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, Self::Key, Self::Value>) -> Result<()> {
        if let Some(list) = document.get("list")? {
            rows.emit(list.deserialize_into()?, 1);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Stats
    }
}

#[test]
fn keys_shorter_than_the_group_level_are_groups_of_their_own() {
    let db = Database::in_memory();
    for (id, list) in [("1", &["a"][..]), ("2", &["a", "b"]), ("3", &["a", "b", "c"]), ("4", &["ab"]), ("5", &[])] {
        db.insert(id, &serde_json::json!({ "list": list })).unwrap();
    }
    let lists = db.view(Lists).unwrap();
    let groups = |level| -> Vec<String> {
        let groups = lists.query().group_level(level).unwrap().map(|group| group.unwrap());
        groups.map(|(key, stats)| format!("{} {}", key.to_json(), stats.count)).collect()
    };
    assert_eq!(groups(1), ["[] 1", "[\"a\"] 3", "[\"ab\"] 1"]);
    assert_eq!(groups(2), ["[] 1", "[\"a\"] 1", "[\"a\",\"b\"] 2", "[\"ab\"] 1"]);
}

#[test]
fn access_controls_updates() {
    let db = library();
    let sales = db.view(Sales).unwrap();
    let count = |access| sales.query().access(access).rows().unwrap().count();
    assert_eq!(count(Access::NoUpdate), 0);
    assert!(sales.query().access(Access::NoUpdate).rows().unwrap().is_stale());
    assert_eq!(count(Access::UpdateBefore), 6);
    let eden = db.get("eden").unwrap().unwrap();
    db.delete("eden", eden.revision()).unwrap();
    assert_eq!(count(Access::NoUpdate), 6);
    assert_eq!(count(Access::UpdateAfter), 6);
    for _ in 0..500 {
        if count(Access::NoUpdate) == 5 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(count(Access::NoUpdate), 5);
    assert!(!sales.query().rows().unwrap().is_stale());
}

#[test]
fn linked_documents_are_returned() {
    let db = Database::in_memory();
    let put = |id: &str, json: &str| db.insert(id, &Value::parse(json).unwrap()).unwrap();
    put("lem", r#"{"name": "Stanisław Lem"}"#);
    put("solaris", r#"{"tags": ["novel"], "amount": {"_id": "lem"}}"#);
    put("lost", r#"{"tags": ["novel"], "amount": {"_id": "nobody"}}"#);
    let tags = db.view(Tags::new("linked", Reduction::None)).unwrap();
    let rows: Vec<_> = tags.query().with_documents().rows().unwrap().map(|row| row.unwrap().document).collect();
    assert_eq!(rows[0].as_ref().unwrap().id().as_str(), "lem");
    assert!(rows[1].is_none());
}

#[test]
fn unmappable_documents_have_no_rows_and_are_reported() {
    let db = Database::in_memory();
    let put = |id: &str, json: &str| db.upsert(id, &Value::parse(json).unwrap()).unwrap();
    put("good", r#"{"tags": ["a"]}"#);
    put("bad", r#"{"broken": 1}"#);
    put("long", &format!(r#"{{"tags": ["{}"]}}"#, "x".repeat(500)));
    let tags = db.view(Tags::new("tags", Reduction::Count)).unwrap();
    assert_eq!(tags.query().count().unwrap(), 1);
    let info = tags.info().unwrap();
    assert_eq!((info.row_count, info.failed_count), (1, 2));
    assert_eq!(info.failures[0].0.as_str(), "bad");
    assert!(info.failures[1].1.contains("too long"), "{:?}", info.failures);
    put("bad", r#"{"tags": ["b"]}"#);
    assert_eq!(tags.query().count().unwrap(), 2);
    assert_eq!(tags.info().unwrap().failed_count, 1);
}

#[test]
fn previous_version_answers_until_the_new_one_is_built() {
    let db = Database::in_memory();
    for at in 0..2_000 {
        db.bulk(vec![crate::Edit::Insert {
            id: crate::DocumentId::new(format!("d{at}")).unwrap(),
            body: Value::parse(format!(r#"{{"tags": ["t{}"], "amount": 1}}"#, at % 7)).unwrap(),
        }])
        .unwrap();
    }
    let mut definition = Tags::new("tags", Reduction::Sum);
    let before = db.view(definition.clone()).unwrap();
    assert_eq!(before.query().reduce().unwrap(), Some(2_000.into()));
    definition.version = 3;
    let after = db.view(definition).unwrap();
    assert_eq!(before.query().reduce().unwrap_err().kind(), ErrorKind::Closed);
    // Old rows have strings as keys, new rows have arrays.
    let mut rows = after.query().rows().unwrap();
    let first = rows.next().unwrap().unwrap();
    assert_eq!(rows.is_stale(), first.key.as_str().is_some());
    after.update().unwrap();
    assert_eq!(after.info().unwrap().progress, None);
    let first = after.query().first().unwrap().unwrap();
    assert_eq!(first.key.to_json(), "[\"t0\"]");
    assert!(!after.query().rows().unwrap().is_stale());
}
