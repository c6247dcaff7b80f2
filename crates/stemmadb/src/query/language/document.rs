//! A stored document as queries see it: its own fields `_id` and `_rev`, and its packed body.

use crate::Result;
use crate::document::Document as StoredDocument;
use crate::revision::Revision;
use crate::value::{Kind, PackedValue, Path, Value};

/// A document as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct Document<'a> {
    pub(crate) id: &'a str,
    pub(crate) revision: Revision,
    pub(crate) body: PackedValue<'a>,
}

impl<'a> Document<'a> {
    /// A stored document as queries see it.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are damaged.
    pub(crate) fn of(stored: &'a StoredDocument) -> Result<Self> {
        Ok(Document { id: stored.id().as_str(), revision: *stored.revision(), body: stored.packed()? })
    }
}

/// The fields that are a document's own, not its body's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    Id,
    Revision,
    /// A path through one of them, where nothing is.
    Beyond,
}

impl Identity {
    /// The document's own field at this path, if it is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let mut names = path.segments();
        let identity = match names.next()? {
            "_id" => Identity::Id,
            "_rev" => Identity::Revision,
            _ => return None,
        };
        Some(if names.next().is_none() { identity } else { Identity::Beyond })
    }
}

/// The value at a path of a document, its own fields included.
pub(crate) fn value_at(path: &Path, document: Document<'_>) -> Result<Option<Value>> {
    match Identity::of(path) {
        Some(Identity::Id) => Ok(Some(Value::from(document.id))),
        Some(Identity::Revision) => Ok(Some(Value::from(document.revision.to_string()))),
        Some(Identity::Beyond) => Ok(None),
        None => document.body.get(path)?.map(PackedValue::to_value).transpose(),
    }
}

/// What a path leads to.
pub(crate) enum Found<'a> {
    Value(PackedValue<'a>),
    /// The last object on the way has no such field.
    Missing,
    /// The way leads through something that has no fields, or an array without such an element.
    NoWay,
}

/// Follows a path through objects, and by decimal names through arrays.
pub(crate) fn find<'a>(path: &Path, value: PackedValue<'a>) -> Result<Found<'a>> {
    let mut here = value;
    for segment in path.segments() {
        here = match (here.child(segment)?, here.kind()) {
            (Some(next), _) => next,
            (None, Kind::Object) => return Ok(Found::Missing),
            _ => return Ok(Found::NoWay),
        };
    }
    Ok(Found::Value(here))
}
