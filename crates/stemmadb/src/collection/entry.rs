//! One member of a collection, as one of your types, and the key it goes by.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::document::Document;
use crate::revision::Revision;
use crate::value::{Kind, Path, Value};
use crate::{Error, Result};

/// A document of a collection: its key, the revision that was read, and its content.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<T> {
    /// The key: the document's id without the collection's name.
    pub key: String,
    /// The revision that was read: an update names it, and fails if another has come since.
    pub revision: Revision,
    /// What is in it.
    pub content: T,
}

/// How members come by their keys when they give none.
#[derive(Debug, Clone)]
pub(super) enum Keys {
    /// A new UUID each, of version 7: later ones sort behind earlier ones, as far as the clock goes forward.
    Generated,
    /// The text or whole number at a path.
    Natural(Path),
}

impl Keys {
    /// The key of a member with this body.
    pub(super) fn key_of(&self, body: &Value) -> Result<String> {
        let Keys::Natural(path) = self else { return Ok(uuid::Uuid::now_v7().to_string()) };
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

/// The body of a member.
pub(super) fn body_of<T: Serialize + ?Sized>(content: &T) -> Result<Value> {
    Value::from_serialize(content)
}

/// The entry of a document in the collection whose ids begin with `prefix`.
pub(super) fn entry<T: DeserializeOwned>(prefix: &str, document: &Document) -> Result<Entry<T>> {
    let id = document.id().as_str();
    let key = id.strip_prefix(prefix).unwrap_or(id).to_owned();
    let content = document
        .to()
        .map_err(|error| error.within(format!("`{id}` does not fit the type {}", std::any::type_name::<T>())))?;
    Ok(Entry { key, revision: *document.revision(), content })
}
