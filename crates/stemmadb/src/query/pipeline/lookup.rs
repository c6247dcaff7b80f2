//! `$lookup`: adds to each row the documents whose value at one path equals the row's value at another.
//!
//! Rows are taken in batches, and the documents of a batch are found by one query, so an index on the foreign path
//! (every path has one) or the ids decide which documents are read.

use std::collections::{BTreeMap, BTreeSet};

use super::measure::{bounded, measure};
use super::reshape::set;
use super::stage::Lookup;
use crate::Result;
use crate::query::execute::aggregate::canonical;
use crate::query::execute::rows;
use crate::query::language::field::field;
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::value::{ElementPath, Path, Value, visit_steps};

/// The number of rows whose documents are looked up together.
pub(super) const BATCH_COUNT: usize = if cfg!(test) { 3 } else { 256 };
/// The largest number of values that one query looks up.
const VALUES_MAX: usize = 10_000;

/// The documents of a batch, in order of their ids, and which of them have each value.
#[derive(Default)]
struct FoundDocuments {
    documents: Vec<Value>,
    by_value: BTreeMap<Vec<u8>, BTreeSet<usize>>,
}

/// Adds the documents to each row of a batch.
pub(super) fn join<S: QuerySource + Clone>(batch: Vec<Value>, lookup: &Lookup, source: &S) -> Result<Vec<Value>> {
    let keys = batch.iter().map(|row| local_values(row, lookup)).collect::<Result<Vec<_>>>()?;
    let wanted: BTreeMap<Vec<u8>, Value> = keys.iter().flatten().cloned().collect();
    let found = find(&wanted, lookup, source)?;
    let join = |(mut row, keys): (Value, Vec<(Vec<u8>, Value)>)| {
        let positions: BTreeSet<usize> =
            keys.iter().filter_map(|(key, _)| found.by_value.get(key)).flatten().copied().collect();
        let documents = positions.into_iter().map(|position| found.documents[position].clone()).collect();
        set(&mut row, &lookup.output, Value::Array(documents))?;
        bounded(row)
    };
    batch.into_iter().zip(keys).map(join).collect()
}

/// The values of a row to look up: its value or, if that is an array, the elements. A missing value finds nothing.
fn local_values(row: &Value, lookup: &Lookup) -> Result<Vec<(Vec<u8>, Value)>> {
    match lookup.local.get(row) {
        None => Ok(Vec::new()),
        Some(Value::Array(elements)) => elements.iter().map(canonical).collect(),
        Some(value) => Ok(vec![canonical(value)?]),
    }
}

fn find<S: QuerySource + Clone>(
    wanted: &BTreeMap<Vec<u8>, Value>,
    lookup: &Lookup,
    source: &S,
) -> Result<FoundDocuments> {
    let values: Vec<&Value> = wanted.values().collect();
    let mut by_id: BTreeMap<String, Value> = BTreeMap::new();
    let mut bytes = 0;
    for values in values.chunks(VALUES_MAX) {
        let equal = field(&lookup.foreign).one_of(values.iter().copied());
        let query = Query::new(equal.and(lookup.selector.clone()));
        for document in rows::values(source.clone(), &query)? {
            let document = document?;
            bytes += measure(&document)?;
            source.check_memory(bytes)?;
            let id = document.get("_id").and_then(Value::as_str).unwrap_or_default().to_owned();
            by_id.insert(id, document);
        }
    }
    let mut found = FoundDocuments::default();
    for document in by_id.into_values() {
        for key in foreign_keys(&document, &lookup.foreign)? {
            if wanted.contains_key(&key) {
                found.by_value.entry(key).or_default().insert(found.documents.len());
            }
        }
        found.documents.push(document);
    }
    Ok(found)
}

/// The keys of the values that a document has at the foreign path, and of their elements.
fn foreign_keys(document: &Value, path: &str) -> Result<BTreeSet<Vec<u8>>> {
    let mut values = Vec::new();
    if ElementPath::is_in(path) {
        let path = ElementPath::parse(path)?;
        visit_steps(document, path.steps(), &mut |value| values.push(value));
    } else {
        values.extend(Path::parse(path)?.get(document));
    }
    let mut keys = BTreeSet::new();
    for value in values {
        match value {
            Value::Array(elements) => {
                for element in elements {
                    keys.insert(canonical(element)?.0);
                }
            }
            value => {
                keys.insert(canonical(value)?.0);
            }
        }
    }
    Ok(keys)
}
