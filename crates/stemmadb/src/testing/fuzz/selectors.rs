//! Selector fuzz target: queries against the naive evaluator, on a database of a few documents.

use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};

use super::generate;
use crate::value::{Object, Value};
use crate::{Database, Durability, Options, Selector};

const DOCUMENTS_MAX: usize = 8;
/// Maximum number of queries per database.
const SELECTORS_MAX: usize = 8;

/// A query, answered from indexes, memtables and tree, finds exactly the documents that match the selector.
pub fn selectors(data: &[u8]) {
    let mut input = Unstructured::new(data);
    if input.ratio(1, 4).unwrap_or(false) {
        return check_text(input.take_rest());
    }
    let Ok((db, documents)) = database(&mut input) else { return };
    for _ in 0..SELECTORS_MAX.min(input.len()) {
        let Ok(selector) = generate::selector(&mut input, 3) else { break };
        if let Ok(selector) = Selector::parse(&selector) {
            compare(&db, &documents, &selector);
        }
    }
}

/// Generates a database with documents, some of them in its tree, and the list of documents.
fn database(input: &mut Unstructured<'_>) -> Result<(Database, Vec<Value>)> {
    let options = Options::new().background(false).durability(Durability::None);
    let db = Database::in_memory_with(options).expect("in memory");
    let count = input.int_in_range(1..=DOCUMENTS_MAX)?;
    let merged = input.int_in_range(0..=count)?;
    let mut documents = Vec::new();
    for number in 0..count {
        if number == merged {
            db.maintenance().checkpoint().expect("in memory");
        }
        let body = generate::object(input)?;
        let id = format!("{}{number}", ["b:", "a:", "c"][number % 3]);
        let revision = match db.insert(&id, &body) {
            Ok(revision) => revision,
            // A random name may be invalid in documents.
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
        assert!(db.find(selector.clone()).count().is_err(), "{selector} is rejected by only one of the two");
        return;
    };
    let expected: BTreeSet<String> = expected.into_iter().map(|whole| id_of(whole).to_owned()).collect();
    let found = db.find(selector.clone()).ids().expect("a valid selector");
    let found: BTreeSet<String> = found.map(|id| id.expect("an intact database").to_string()).collect();
    assert_eq!(found, expected, "{selector} over {documents:?}");
    let sorted = db.find(selector.clone()).sort("a").ids().expect("a valid selector");
    let sorted: Vec<String> = sorted.map(|id| id.expect("an intact database").to_string()).collect();
    assert_eq!(sorted.len(), expected.len(), "{selector} sorted");
    assert_eq!(sorted.into_iter().collect::<BTreeSet<_>>(), expected, "{selector} sorted");
    assert_eq!(
        db.find(selector.clone()).count().expect("a valid selector"),
        expected.len() as u64,
        "{selector} counted"
    );
    // Printing and parsing gives the same selector.
    let again = Selector::parse_text(&selector.to_string()).expect("a printed selector parses");
    assert_eq!(again.to_string(), selector.to_string());
}

/// Checks a selector given as text.
fn check_text(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(selector) = Selector::parse_text(text) else { return };
    let db =
        Database::in_memory_with(Options::new().background(false).durability(Durability::None)).expect("in memory");
    let body =
        Value::parse(br#"{"a": [1, {"b": "x"}, "ab"], "b": {"a": null, "0": 2.5}, "c": "abc"}"#).expect("valid JSON");
    let revision = db.insert("a", &body).expect("in memory");
    let mut whole = Object::new();
    whole.insert("_id", "a");
    whole.insert("_rev", revision.to_string());
    whole.extend(body.as_object().cloned().unwrap_or_default());
    compare(&db, &[Value::Object(whole)], &selector);
}
