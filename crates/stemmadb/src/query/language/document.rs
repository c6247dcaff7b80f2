//! A stored document as conditions read it: the fields `_id` and `_rev`, and the packed body.

use crate::Result;
use crate::document::Document as StoredDocument;
use crate::revision::Revision;
use crate::value::{Kind, PackedValue, Path, Value, array_position};

/// A borrowed view of a stored document.
#[derive(Clone, Copy)]
pub(crate) struct DocumentView<'a> {
    pub(crate) id: &'a str,
    pub(crate) revision: Revision,
    pub(crate) body: PackedValue<'a>,
}

impl<'a> DocumentView<'a> {
    /// Creates the view of a stored document.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are damaged.
    pub(crate) fn of(stored: &'a StoredDocument) -> Result<Self> {
        Ok(DocumentView { id: stored.id().as_str(), revision: *stored.revision(), body: stored.packed()? })
    }
}

/// The fields that belong to the document rather than to its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdentityField {
    Id,
    Revision,
    /// A path below `_id` or `_rev`, where there is never a value.
    Beyond,
}

impl IdentityField {
    /// Returns the identity field at this path, if it is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let mut names = path.segments();
        let identity = match names.next()? {
            "_id" => IdentityField::Id,
            "_rev" => IdentityField::Revision,
            _ => return None,
        };
        Some(if names.next().is_none() { identity } else { IdentityField::Beyond })
    }
}

/// Returns the value at a path of a document, including `_id` and `_rev`.
pub(crate) fn value_at(path: &Path, document: DocumentView<'_>) -> Result<Option<Value>> {
    match IdentityField::of(path) {
        Some(IdentityField::Id) => Ok(Some(Value::from(document.id))),
        Some(IdentityField::Revision) => Ok(Some(Value::from(document.revision.to_string()))),
        Some(IdentityField::Beyond) => Ok(None),
        None => document.body.get(path)?.map(PackedValue::to_value).transpose(),
    }
}

/// The result of following a path.
pub(crate) enum PathLookup<'a> {
    Value(PackedValue<'a>),
    /// The last object on the path has no such field, or the last array no such position.
    Missing,
    /// The path passes through a scalar, or names a field of an array.
    Unreachable,
}

/// Follows a path through objects and, by decimal names, through arrays.
pub(crate) fn find<'a>(path: &Path, value: PackedValue<'a>) -> Result<PathLookup<'a>> {
    let mut current = value;
    for segment in path.segments() {
        current = match (current.child(segment)?, current.kind()) {
            (Some(next), _) => next,
            (None, Kind::Object) => return Ok(PathLookup::Missing),
            (None, Kind::Array) if array_position(segment).is_some() => return Ok(PathLookup::Missing),
            _ => return Ok(PathLookup::Unreachable),
        };
    }
    Ok(PathLookup::Value(current))
}
