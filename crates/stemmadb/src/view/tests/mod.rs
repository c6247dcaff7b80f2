//! Compares views with views built from scratch, after random edits, deletions, conflicts, version changes, crashes and
//! disk failures.
//!
//! `STEMMA_VIEW_EDITS` sets the total number of edits, `STEMMA_VIEW_SEED` the first seed.

mod declared;
mod eager;
mod partials;
mod queries;
mod random;
mod reducers;
mod transaction;

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::read::Snapshot;
use crate::value::Value;
use crate::value::collate::key;
use crate::view::layout::KEY_BYTES_MAX;
use crate::{Database, Emitter, Reduction, Refresh, Result, Selector, View};

/// A view with configurable reduction, version and keys.
///
/// A document `{"tags": [["a", 1], …], "amount": 5}` emits a row for each tag.
#[derive(Debug, Clone)]
struct Tags {
    name: String,
    version: u64,
    reduction: Reduction,
    refresh: Refresh,
}

impl Tags {
    fn new(name: &str, reduction: Reduction) -> Self {
        Tags { name: name.to_owned(), version: 0, reduction, refresh: Refresh::Lazy }
    }

    fn emitted(&self, document: &Document) -> Result<Vec<(Value, Value)>> {
        if document.get("broken")?.is_some() {
            return Err(crate::Error::invalid("a broken document"));
        }
        let Some(Value::Array(tags)) = document.get("tags")? else { return Ok(Vec::new()) };
        let amount = document.get("amount")?.unwrap_or(Value::Null);
        let row = |tag: Value| match self.version {
            0 => (tag, amount.clone()),
            version => (Value::from(vec![tag]), Value::from(vec![Value::from(version), amount.clone()])),
        };
        Ok(tags.into_iter().map(row).collect())
    }
}

impl View for Tags {
    type Key = Value;
    type Value = Value;
    type Reduced = Value;

    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, Value, Value>) -> Result<()> {
        self.emitted(document)?.into_iter().for_each(|(key, value)| rows.emit(key, value));
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Joins the values: associative, and the result depends on the order.
    fn reduce(&self, rows: &[(Value, Value)]) -> Result<Value> {
        Ok(rows.iter().map(|(key, value)| format!("{}={};", key.to_json(), value.to_json())).collect::<String>().into())
    }

    fn rereduce(&self, parts: Vec<Value>) -> Result<Value> {
        assert!(parts.len() > 1, "there is something to join");
        Ok(parts.iter().map(|part| part.as_str().unwrap()).collect::<String>().into())
    }

    fn refresh(&self) -> Refresh {
        self.refresh
    }
}

/// An expected row.
#[derive(Debug, Clone, PartialEq)]
struct Expected {
    key_bytes: Vec<u8>,
    key: Value,
    number: DocumentNumber,
    /// Its ordinal among the document's rows with this key.
    ordinal: u64,
    id: String,
    value: Value,
}

/// Returns the rows that the current documents emit, in order.
fn from_scratch(db: &Database, view: &Tags) -> Vec<Expected> {
    rows_of(&db.snapshot().unwrap(), view)
}

/// Returns the rows that the documents of a snapshot emit, in order.
fn rows_of(snapshot: &Snapshot, view: &Tags) -> Vec<Expected> {
    let mut rows = Vec::new();
    for document in snapshot.find(Selector::everything()).documents().unwrap() {
        if document.id().is_design() {
            continue;
        }
        let number = snapshot.state_by_id(document.id().as_str()).unwrap().unwrap().number;
        let encoded = |key: &Value| {
            let mut bytes = Vec::new();
            key::encode(key, &mut bytes);
            bytes
        };
        let mut emitted = view.emitted(&document).unwrap_or_default();
        if emitted.iter().any(|(key, _)| encoded(key).len() > KEY_BYTES_MAX) {
            emitted.clear();
        }
        for (key, value) in emitted {
            let key_bytes = encoded(&key);
            // Decoded keys represent whole numbers as integers.
            let key = key::decode(&key_bytes).unwrap().0;
            rows.push(Expected { key_bytes, key, number, ordinal: 0, id: document.id().to_string(), value });
        }
    }
    rows.sort_by(|a, b| (&a.key_bytes, a.number).cmp(&(&b.key_bytes, b.number)));
    for at in 1..rows.len() {
        let (before, row) = (&rows[at - 1], &rows[at]);
        if before.key_bytes == row.key_bytes && before.number == row.number {
            rows[at].ordinal = before.ordinal + 1;
        }
    }
    rows
}
