//! Matching of stored documents: evaluates a selector's normal form on packed records.
//!
//! Only the fields that the selector names are read, and no value is unpacked. In normal form, a condition on an absent
//! value is false.

use std::sync::Arc;

use super::document::{DocumentView, IdentityField, PathLookup, find};
use super::normal::{Check, Leaf, Normal};
use super::selector::Target;
use crate::Result;
use crate::document::Document as StoredDocument;
use crate::value::{Kind, Packed, PackedArray, PackedValue, Path, Value, collate};

/// A selector prepared for matching many documents. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Matcher(Arc<Normal>);

impl Matcher {
    pub(in crate::query) fn new(normal: impl Into<Arc<Normal>>) -> Self {
        Matcher(normal.into())
    }

    /// The selector that is matched.
    pub(in crate::query) fn normal(&self) -> &Normal {
        &self.0
    }

    /// Whether the document matches.
    ///
    /// # Errors
    /// `Corrupt` if its bytes are damaged.
    pub(crate) fn matches(&self, document: &StoredDocument) -> Result<bool> {
        matches(&self.0, DocumentView::of(document)?)
    }
}

/// Whether a document matches.
///
/// # Errors
/// [`Corrupt`](crate::ErrorKind::Corrupt) if its record is damaged.
pub(crate) fn matches(selector: &Normal, document: DocumentView<'_>) -> Result<bool> {
    match selector {
        Normal::Everything => Ok(true),
        Normal::Nothing => Ok(false),
        Normal::All(children) => all(children, |child| matches(child, document)),
        Normal::Any(children) => any(children, |child| matches(child, document)),
        Normal::Leaf(leaf) => match &leaf.target {
            Target::Path(path) => match IdentityField::of(path) {
                Some(identity) => Ok(meets_identity(leaf, identity, document)),
                None => meets_at(leaf, path, document.body),
            },
            Target::Element => meets(leaf, document.body),
        },
    }
}

/// Whether an array element matches.
fn matches_element(selector: &Normal, element: PackedValue<'_>) -> Result<bool> {
    match selector {
        Normal::Everything => Ok(true),
        Normal::Nothing => Ok(false),
        Normal::All(children) => all(children, |child| matches_element(child, element)),
        Normal::Any(children) => any(children, |child| matches_element(child, element)),
        Normal::Leaf(leaf) => match &leaf.target {
            Target::Path(path) => meets_at(leaf, path, element),
            Target::Element => meets(leaf, element),
        },
    }
}

/// Whether a string outside a record matches: an id, a revision, or a field name.
fn matches_text(selector: &Normal, text: &str) -> bool {
    match selector {
        Normal::Everything => true,
        Normal::Nothing => false,
        Normal::All(children) => children.iter().all(|child| matches_text(child, text)),
        Normal::Any(children) => children.iter().any(|child| matches_text(child, text)),
        // A string has no fields.
        Normal::Leaf(leaf) => leaf.target == Target::Element && text_passes(&leaf.check, text) != leaf.negated,
    }
}

fn meets_at(leaf: &Leaf, path: &Path, value: PackedValue<'_>) -> Result<bool> {
    match find(path, value)? {
        PathLookup::Value(found) => meets(leaf, found),
        PathLookup::Missing => Ok(leaf.negated && leaf.check == Check::Exists),
        PathLookup::Unreachable => Ok(false),
    }
}

fn meets_identity(leaf: &Leaf, identity: IdentityField, document: DocumentView<'_>) -> bool {
    match identity {
        IdentityField::Id => text_passes(&leaf.check, document.id) != leaf.negated,
        IdentityField::Revision => text_passes(&leaf.check, &document.revision.to_string()) != leaf.negated,
        IdentityField::Beyond => false,
    }
}

fn meets(leaf: &Leaf, value: PackedValue<'_>) -> Result<bool> {
    Ok(passes(&leaf.check, value)? != leaf.negated)
}

fn passes(check: &Check, value: PackedValue<'_>) -> Result<bool> {
    match check {
        Check::Compare(comparison, operand) => Ok(comparison.holds(collate::compare_packed(value, operand)?)),
        Check::Exists => Ok(true),
        Check::Type(kind) => Ok(value.kind() == *kind),
        Check::OneOf(list) => is_listed(list, value),
        Check::In(list) => match value.read()? {
            Packed::Array(elements) => any(elements, |element| is_listed(list, element?)),
            _ => is_listed(list, value),
        },
        Check::BeginsWith(_) | Check::Regex(_) => match value.read()? {
            Packed::String(text) => Ok(text_passes(check, text)),
            _ => Ok(false),
        },
        Check::Modulo { divisor, remainder } => match value.read()? {
            Packed::Number(number) => {
                Ok(number.to_integer().is_some_and(|integer| integer % i128::from(*divisor) == i128::from(*remainder)))
            }
            _ => Ok(false),
        },
        Check::Size(_) | Check::All(_) | Check::ElemMatch(_) | Check::AllMatch(_) => match value.read()? {
            Packed::Array(elements) => array_passes(check, value, elements),
            _ => Ok(false),
        },
        Check::KeyMapMatch(inner) => match value.read()? {
            Packed::Object(object) => any(object, |field| Ok(matches_text(inner, field?.0))),
            _ => Ok(false),
        },
    }
}

fn array_passes(check: &Check, array: PackedValue<'_>, elements: PackedArray<'_>) -> Result<bool> {
    match check {
        Check::Size(size) => Ok(elements.len() as u64 == *size),
        Check::All(list) => {
            if let [only @ Value::Array(_)] = list.as_slice()
                && collate::compare_packed(array, only)?.is_eq()
            {
                return Ok(true);
            }
            let has = |listed: &Value| any(elements, |element| Ok(collate::compare_packed(element?, listed)?.is_eq()));
            Ok(!list.is_empty() && all(list, has)?)
        }
        Check::ElemMatch(inner) => any(elements, |element| matches_element(inner, element?)),
        Check::AllMatch(inner) => Ok(elements.len() > 0 && all(elements, |element| matches_element(inner, element?))?),
        _ => Ok(false),
    }
}

/// Whether a sorted list contains the value.
fn is_listed(list: &[Value], value: PackedValue<'_>) -> Result<bool> {
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = low.midpoint(high);
        match collate::compare_packed(value, &list[middle])? {
            std::cmp::Ordering::Equal => return Ok(true),
            std::cmp::Ordering::Less => high = middle,
            std::cmp::Ordering::Greater => low = middle + 1,
        }
    }
    Ok(false)
}

fn text_passes(check: &Check, text: &str) -> bool {
    match check {
        Check::Compare(comparison, operand) => comparison.holds(compare_text(text, operand)),
        Check::OneOf(list) | Check::In(list) => {
            list.binary_search_by(|listed| compare_text(text, listed).reverse()).is_ok()
        }
        Check::Exists => true,
        Check::Type(kind) => *kind == Kind::String,
        Check::BeginsWith(prefix) => text.starts_with(prefix.as_str()),
        Check::Regex(pattern) => pattern.is_match(text),
        Check::Modulo { .. }
        | Check::Size(_)
        | Check::All(_)
        | Check::ElemMatch(_)
        | Check::AllMatch(_)
        | Check::KeyMapMatch(_) => false,
    }
}

fn compare_text(text: &str, operand: &Value) -> std::cmp::Ordering {
    match operand {
        Value::String(other) => text.cmp(other.as_str()),
        other => Kind::String.cmp(&other.kind()),
    }
}

fn any<T>(items: impl IntoIterator<Item = T>, mut holds: impl FnMut(T) -> Result<bool>) -> Result<bool> {
    for item in items {
        if holds(item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn all<T>(items: impl IntoIterator<Item = T>, mut holds: impl FnMut(T) -> Result<bool>) -> Result<bool> {
    for item in items {
        if !holds(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}
