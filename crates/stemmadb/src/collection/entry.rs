//! Entries of a collection (a typed document and its key), and key generation.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::document::Document;
use crate::revision::Revision;
use crate::value::{Kind, Path, Value};
use crate::{Error, Result};

/// A document of a collection: its key, the revision that was read, and its content. See
/// [`Collection`](super::Collection) for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<T> {
    /// The key: the document's id without the collection's name.
    pub key: String,
    /// The revision that was read. An update or deletion names it, and fails if the document was written since.
    pub revision: Revision,
    /// The document's content.
    pub content: T,
}

/// Where the key of a pushed document comes from.
#[derive(Debug, Clone)]
pub(super) enum KeySource {
    /// A new UUID version 7 each: later ones sort after earlier ones as long as the clock does not go back.
    Generated,
    /// The string or integer at a path of the document.
    Natural(Path),
}

impl KeySource {
    /// Returns the key of a document with this body.
    pub(super) fn key_for(&self, body: &Value) -> Result<String> {
        let KeySource::Natural(path) = self else { return Ok(uuid::Uuid::now_v7().to_string()) };
        let hint =
            "the collection's keys are taken from there: put a text or a whole number, or give the key with `insert`";
        match path.get(body) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            Some(Value::Number(number)) if number.is_integer() => Ok(number.to_string()),
            Some(other) if other.kind() == Kind::String => {
                Err(Error::invalid(format!("the text at `{path}` is empty")).with_hint(hint))
            }
            Some(other) => Err(Error::invalid(format!("`{path}` is no key but {}", other.kind())).with_hint(hint)),
            None => Err(Error::invalid(format!("there is nothing at `{path}`")).with_hint(hint)),
        }
    }
}

/// Serializes the content of an entry.
pub(super) fn serialize_body<T: Serialize + ?Sized>(content: &T) -> Result<Value> {
    Value::from_serialize(content)
}

/// Converts a document of the collection whose ids begin with `prefix`.
pub(super) fn entry_from<T: DeserializeOwned>(prefix: &str, document: &Document) -> Result<Entry<T>> {
    let id = document.id().as_str();
    let key = id.strip_prefix(prefix).unwrap_or(id).to_owned();
    let content = document
        .to()
        .map_err(|error| error.within(format!("`{id}` does not fit the type {}", std::any::type_name::<T>())))?;
    Ok(Entry { key, revision: *document.revision(), content })
}
