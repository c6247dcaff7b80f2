//! The order of rows: by paths, each ascending or descending; the document id breaks ties.
//!
//! A row's *sort key* is a byte string that compares as the rows do. For each path it contains the ordered key of the
//! value, or the lowest byte if there is none, with all bits inverted if the path is descending. The document id
//! follows, always ascending. Strings may use the collation order of a language.
//!
//! Only the first [`VALUE_BYTES_MAX`] bytes of a value's key are compared, which bounds memory and tokens. Longer
//! values with the same first bytes count as equal, and the next path or the id decides. No key is a prefix of another,
//! so cut keys still order correctly.

use std::sync::Arc;

use super::operators::kind_with_article;
use crate::revision::DocumentId;
use crate::value::collate::{self, Language};
use crate::value::{Object, PackedValue, Path, Value};
use crate::{Error, Result};

/// The largest number of paths in a sort.
const PATHS_MAX: usize = 16;
/// The number of bytes of a value's key that are compared.
pub(crate) const VALUE_BYTES_MAX: usize = 4096;
pub(crate) use crate::index::MISSING;

/// A row's position in a sorted order: sort key, then id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortedPosition {
    /// The sort key without the id.
    pub(crate) key: Arc<[u8]>,
    pub(crate) id: DocumentId,
}

/// A sort order of rows: paths with directions and languages. See [`Find::sort`](crate::Find::sort).
///
/// ```
/// # use stemmadb::{Sort, Value};
/// # fn main() -> stemmadb::Result<()> {
/// let sort = Sort::parse(&Value::parse(br#"["year", {"title": "desc"}]"#)?)?;
/// assert_eq!(sort.to_value().to_json(), r#"["year",{"title":"desc"}]"#);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sort {
    pub(crate) keys: Vec<SortPath>,
}

/// One path of a sort order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SortPath {
    pub(crate) path: Path,
    pub(crate) descending: bool,
    /// The language whose collation order strings have; `None` for byte order.
    pub(crate) language: Option<Language>,
}

impl Sort {
    /// Returns the order in which documents were first inserted.
    pub fn by_insertion() -> Self {
        Sort::default()
    }

    /// Parses the sort of a Mango query: an array of paths, or of objects such as `{"year": "desc"}`.
    ///
    /// The form `{"title": {"direction": "asc", "collation": "de"}}`, an extension of Mango, sorts strings in the
    /// collation order of a language.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with the invalid entry.
    pub fn parse(json: &Value) -> Result<Self> {
        let hint = "write for example [\"year\", {\"title\": \"desc\"}]";
        let Value::Array(entries) = json else {
            return Err(
                Error::invalid(format!("sort is an array, not {}", kind_with_article(json.kind()))).with_hint(hint)
            );
        };
        let mut sort = Sort::default();
        for entry in entries {
            let (path, descending, language) = match entry {
                Value::String(path) => (path.as_str(), false, None),
                Value::Object(object) => single_field(object).map_err(|error| error.with_hint(hint))?,
                other => {
                    return Err(Error::invalid(format!(
                        "an entry of sort is a path or an object, not {}",
                        kind_with_article(other.kind())
                    ))
                    .with_hint(hint));
                }
            };
            sort.push(path, descending, language)?;
        }
        Ok(sort)
    }

    /// Prints the order as Mango JSON.
    pub fn to_value(&self) -> Value {
        let entry = |key: &SortPath| {
            let path = key.path.to_string();
            let mut object = Object::new();
            match (&key.language, key.descending) {
                (None, false) => return Value::from(path),
                (None, true) => object.insert(path, "desc"),
                (Some(language), descending) => {
                    let mut how = Object::new();
                    how.insert("direction", if descending { "desc" } else { "asc" });
                    how.insert("collation", language.tag());
                    object.insert(path, Value::Object(how))
                }
            };
            Value::Object(object)
        };
        Value::Array(self.keys.iter().map(entry).collect())
    }

    /// Adds a path, which breaks the ties of the paths before it.
    pub(crate) fn push(&mut self, path: &str, descending: bool, language: Option<Language>) -> Result<()> {
        let path = Path::parse_single(path).map_err(|error| error.within("sort"))?;
        if self.keys.iter().any(|key| key.path == path) {
            return Err(Error::invalid(format!("sort names the path {path} twice"))
                .with_hint("each path decides once; leave one of them out"));
        }
        if self.keys.len() == PATHS_MAX {
            return Err(Error::invalid(format!("sort has more than {PATHS_MAX} paths")));
        }
        self.keys.push(SortPath { path, descending, language });
        Ok(())
    }
}

fn single_field(object: &Object) -> Result<(&str, bool, Option<Language>)> {
    let mut fields = object.iter();
    match (fields.next(), fields.next()) {
        (Some((path, Value::String(direction))), None) => Ok((path, is_descending(direction)?, None)),
        (Some((path, Value::Object(how))), None) => {
            let (mut descending, mut language) = (false, None);
            for (name, value) in how.iter() {
                match (name, value) {
                    ("direction", Value::String(direction)) => descending = is_descending(direction)?,
                    ("collation", Value::String(tag)) => language = Some(Language::new(tag)?),
                    _ => return Err(Error::invalid("an order has a direction and a collation, which are strings")),
                }
            }
            Ok((path, descending, language))
        }
        (Some((_, other)), None) => Err(Error::invalid(format!(
            "the direction of sort is \"asc\" or \"desc\", not {}",
            kind_with_article(other.kind())
        ))),
        _ => Err(Error::invalid("an entry of sort names one path")),
    }
}

fn is_descending(direction: &str) -> Result<bool> {
    match direction {
        "asc" => Ok(false),
        "desc" => Ok(true),
        other => {
            let shown: String = other.chars().take(64).collect();
            Err(Error::invalid(format!("sort does not know the direction \"{shown}\"")))
        }
    }
}

/// Appends the sort key of a value at one path, or of its absence.
pub(crate) fn append_value(key: &mut Vec<u8>, value: Option<&Value>, by: &SortPath) {
    let start = key.len();
    match (value, &by.language) {
        (Some(value), None) => collate::key::encode(value, key),
        (Some(value), Some(language)) => language.encode(value, key),
        (None, _) => key.push(MISSING),
    }
    finish_value(key, start, by.descending);
}

/// Appends the sort key of a packed value, or of its absence.
pub(crate) fn append_packed(key: &mut Vec<u8>, value: Option<PackedValue<'_>>, by: &SortPath) -> Result<()> {
    let start = key.len();
    match (value, &by.language) {
        (Some(value), None) => collate::key::encode_packed(value, key)?,
        (Some(value), Some(language)) => language.encode_packed(value, key)?,
        (None, _) => key.push(MISSING),
    }
    finish_value(key, start, by.descending);
    Ok(())
}

/// Appends the sort key of a value whose ordered key is already encoded.
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
