//! The order of rows: by paths, each ascending or descending, ties by document id.
//!
//! A row's place in that order is a string of bytes, its *sort key*, which compares as the rows do: for each path the
//! ordered key of the value there, or a lowest byte if there is none, turned round bit by bit where the order is
//! descending; then the document id, always ascending.
//!
//! Values decide by the first [`VALUE_BYTES_MAX`] bytes of their key. That bounds memory and tokens; longer values that
//! agree so far count as equal, and the next path or the id decides. No key is the beginning of another, so cut keys
//! still line up.

use std::sync::Arc;

use super::operators::kind_with_article;
use crate::revision::DocumentId;
use crate::value::{Object, PackedValue, Path, Value, collate};
use crate::{Error, Result};

/// How many paths an order may have.
const PATHS_MAX: usize = 16;
/// How many bytes of a value's key take part in the order.
pub(crate) const VALUE_BYTES_MAX: usize = 4096;
/// Stands for the absence of a value: below every value's key.
pub(crate) const MISSING: u8 = 0x00;

/// Where a document stands in a sorted order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sorted {
    /// The sort key without the id.
    pub(crate) key: Arc<[u8]>,
    pub(crate) id: DocumentId,
}

/// The order of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sort {
    pub(crate) keys: Vec<SortPath>,
}

/// One path of an order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SortPath {
    pub(crate) path: Path,
    pub(crate) descending: bool,
}

impl Sort {
    /// The order in which documents were first inserted.
    pub fn by_insertion() -> Self {
        Sort::default()
    }

    /// The order that Mango JSON asks for: an array of paths, or of objects such as `{"year": "desc"}`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), naming the entry.
    pub fn parse(json: &Value) -> Result<Self> {
        let hint = "write for example [\"year\", {\"title\": \"desc\"}]";
        let Value::Array(entries) = json else {
            return Err(
                Error::invalid(format!("sort is an array, not {}", kind_with_article(json.kind()))).with_hint(hint)
            );
        };
        let mut sort = Sort::default();
        for entry in entries {
            let (path, descending) = match entry {
                Value::String(path) => (path.as_str(), false),
                Value::Object(object) => single_field(object).map_err(|error| error.with_hint(hint))?,
                other => {
                    return Err(Error::invalid(format!(
                        "an entry of sort is a path or an object, not {}",
                        kind_with_article(other.kind())
                    ))
                    .with_hint(hint));
                }
            };
            sort.push(path, descending)?;
        }
        Ok(sort)
    }

    /// The order as Mango JSON.
    pub fn to_value(&self) -> Value {
        let entry = |key: &SortPath| {
            let path = key.path.to_string();
            if !key.descending {
                return Value::from(path);
            }
            let mut object = Object::new();
            object.insert(path, "desc");
            Value::Object(object)
        };
        Value::Array(self.keys.iter().map(entry).collect())
    }

    /// Adds a path, which decides where those before it leave a tie.
    pub(crate) fn push(&mut self, path: &str, descending: bool) -> Result<()> {
        let path = Path::parse(path).map_err(|error| error.within("sort"))?;
        if self.keys.iter().any(|key| key.path == path) {
            return Err(Error::invalid(format!("sort names the path {path} twice"))
                .with_hint("each path decides once; leave one of them out"));
        }
        if self.keys.len() == PATHS_MAX {
            return Err(Error::invalid(format!("sort has more than {PATHS_MAX} paths")));
        }
        self.keys.push(SortPath { path, descending });
        Ok(())
    }
}

fn single_field(object: &Object) -> Result<(&str, bool)> {
    let mut fields = object.iter();
    match (fields.next(), fields.next()) {
        (Some((path, Value::String(direction))), None) => match direction.as_str() {
            "asc" => Ok((path, false)),
            "desc" => Ok((path, true)),
            other => {
                let shown: String = other.chars().take(64).collect();
                Err(Error::invalid(format!("sort does not know the direction \"{shown}\"")))
            }
        },
        (Some((_, other)), None) => Err(Error::invalid(format!(
            "the direction of sort is \"asc\" or \"desc\", not {}",
            kind_with_article(other.kind())
        ))),
        _ => Err(Error::invalid("an entry of sort names one path")),
    }
}

/// Appends the part of a sort key for a value at one path, or for its absence.
pub(crate) fn append_value(key: &mut Vec<u8>, value: Option<&Value>, descending: bool) {
    let start = key.len();
    match value {
        Some(value) => collate::key::encode(value, key),
        None => key.push(MISSING),
    }
    finish_value(key, start, descending);
}

/// Appends the part of a sort key for a value of a record, or for its absence.
pub(crate) fn append_packed(key: &mut Vec<u8>, value: Option<PackedValue<'_>>, descending: bool) -> Result<()> {
    let start = key.len();
    match value {
        Some(value) => collate::key::encode_packed(value, key)?,
        None => key.push(MISSING),
    }
    finish_value(key, start, descending);
    Ok(())
}

/// Appends the part of a sort key for a value whose ordered key is known.
pub(crate) fn append_encoded(key: &mut Vec<u8>, encoded: &[u8], descending: bool) {
    let start = key.len();
    key.extend_from_slice(&encoded[..encoded.len().min(VALUE_BYTES_MAX)]);
    finish_value(key, start, descending);
}

fn finish_value(key: &mut Vec<u8>, start: usize, descending: bool) {
    key.truncate(start + VALUE_BYTES_MAX);
    if descending {
        key[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}
