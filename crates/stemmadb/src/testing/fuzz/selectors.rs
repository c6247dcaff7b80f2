//! Selectors against the naive evaluator, over a database of a few documents.

use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};

use super::given;
use crate::value::{Object, Value};
use crate::{Database, Durability, Options, Selector};

const DOCUMENTS_MAX: usize = 8;
/// Questions to one database.
const SELECTORS_MAX: usize = 8;

/// Whatever a selector asks for, from indexes, memtables and tree, is what a look at every document finds.
pub fn selectors(data: &[u8]) {
    let mut given = Unstructured::new(data);
    if given.ratio(1, 4).unwrap_or(false) {
        return as_text(given.take_rest());
    }
    let Ok((db, documents)) = database(&mut given) else { return };
    for _ in 0..SELECTORS_MAX.min(given.len()) {
        let Ok(selector) = given::selector(&mut given, 3) else { break };
        if let Ok(selector) = Selector::parse(&selector) {
            compare(&db, &documents, &selector);
        }
    }
}

/// A database with documents, some of them in its tree, and what they are.
fn database(given: &mut Unstructured<'_>) -> Result<(Database, Vec<Value>)> {
    let options = Options::new().background(false).durability(Durability::None);
    let db = Database::in_memory_with(options).expect("in memory");
    let count = given.int_in_range(1..=DOCUMENTS_MAX)?;
    let merged = given.int_in_range(0..=count)?;
    let mut documents = Vec::new();
    for number in 0..count {
        if number == merged {
            db.maintenance().checkpoint().expect("in memory");
        }
        let body = given::object(given)?;
        let id = format!("{}{number}", ["b:", "a:", "c"][number % 3]);
        let revision = match db.insert(&id, &body) {
            Ok(revision) => revision,
            // A name at random may be one that documents can't have.
            Err(_) => continue,
        };
        let mut whole = Object::new();
        whole.insert("_id", id.as_str());
        whole.insert("_rev", revision.to_string());
        whole.extend(body.as_object().cloned().unwrap_or_default());
        documents.push(Value::Object(whole));
    }
    Ok((db, documents))
}

fn id_of(document: &Value) -> &str {
    document.get("_id").and_then(Value::as_str).unwrap_or_default()
}

fn compare(db: &Database, documents: &[Value], selector: &Selector) {
    let expected: std::result::Result<Vec<&Value>, _> = documents
        .iter()
        .filter_map(|whole| selector.matches(whole).map(|yes| yes.then_some(whole)).transpose())
        .collect();
    let Ok(expected) = expected else {
        assert!(db.find(selector.clone()).count().is_err(), "{selector} is refused by one and not the other");
        return;
    };
    let expected: BTreeSet<String> = expected.into_iter().map(|whole| id_of(whole).to_owned()).collect();
    let found = db.find(selector.clone()).ids().expect("a good selector");
    let found: BTreeSet<String> = found.map(|id| id.expect("sound").to_string()).collect();
    assert_eq!(found, expected, "{selector} over {documents:?}");
    let sorted = db.find(selector.clone()).sort("a").ids().expect("a good selector");
    let sorted: Vec<String> = sorted.map(|id| id.expect("sound").to_string()).collect();
    assert_eq!(sorted.len(), expected.len(), "{selector} sorted");
    assert_eq!(sorted.into_iter().collect::<BTreeSet<_>>(), expected, "{selector} sorted");
    assert_eq!(db.find(selector.clone()).count().expect("good"), expected.len() as u64, "{selector} counted");
    // As it is printed it is the same question.
    let again = Selector::parse_text(&selector.to_string()).expect("printed by us");
    assert_eq!(again.to_string(), selector.to_string());
}

/// A selector that somebody wrote, and its text.
fn as_text(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(selector) = Selector::parse_text(text) else { return };
    let db =
        Database::in_memory_with(Options::new().background(false).durability(Durability::None)).expect("in memory");
    let body = Value::parse(br#"{"a": [1, {"b": "x"}, "ab"], "b": {"a": null, "0": 2.5}, "c": "abc"}"#).expect("good");
    let revision = db.insert("a", &body).expect("in memory");
    let mut whole = Object::new();
    whole.insert("_id", "a");
    whole.insert("_rev", revision.to_string());
    whole.extend(body.as_object().cloned().unwrap_or_default());
    compare(&db, &[Value::Object(whole)], &selector);
}
