//! Extraction of the terms of a document: its collection, every scalar at every covered path, its keys in declared
//! indexes, and the type of value at each path.
//!
//! A pure function of policy, declared indexes and document, except for the numbers that the path dictionary assigns.
//! All keys of a document are in one buffer.

mod difference;
#[cfg(test)]
mod tests;

use super::collection::collection_key;
use super::declared::{DeclaredIndexes, DeclaredKey};
use super::number::PathNumber;
use super::paths::{FieldPlan, Paths, Step};
use super::policy::{Coverage, Policy};
use super::posting::Presence;
use crate::value::collate::key;
use crate::value::{DEPTH_MAX, Kind, Packed, PackedArray, PackedObject, PackedValue};
use crate::{Error, Result};
pub(crate) use difference::{TermDifference, difference};

/// A path and the key of a scalar found there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Term<'a> {
    pub(crate) path: PathNumber,
    pub(crate) key: &'a [u8],
}

/// The initial capacity for terms, which suffices for most documents.
const TERMS_CAPACITY: usize = 24;

/// The terms of one document, sorted and unique.
#[derive(Debug, Clone, Default)]
pub(crate) struct DocumentTerms {
    keys: Vec<u8>,
    terms: Vec<TermRange>,
    presence: Vec<(PathNumber, Presence)>,
    /// The terms that are subject to a unique constraint.
    unique_terms: Vec<(PathNumber, Box<[u8]>)>,
    /// The millisecond from which the document is expired, by the rule that applies first.
    end_ms: Option<i64>,
}

/// A term whose key is a range of the key buffer.
#[derive(Debug, Clone, Copy)]
struct TermRange {
    path: PathNumber,
    start: u32,
    end: u32,
}

/// The terms of `document`, whose id is `id`.
///
/// # Errors
/// `Corrupt` if the packed bytes are damaged.
pub(crate) fn document_terms(
    policy: &Policy,
    declared: &DeclaredIndexes,
    paths: &Paths,
    id: &str,
    document: PackedValue<'_>,
) -> Result<DocumentTerms> {
    let mut terms = DocumentTerms::default();
    terms.collect(policy, declared, paths, id, document)?;
    Ok(terms)
}

impl DocumentTerms {
    /// Replaces the terms by those of `document`, whose id is `id`, and reuses the allocated memory.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged; the terms are then empty.
    pub(crate) fn collect(
        &mut self,
        policy: &Policy,
        declared: &DeclaredIndexes,
        paths: &Paths,
        id: &str,
        document: PackedValue<'_>,
    ) -> Result<()> {
        self.clear();
        self.keys.reserve(2 * document.bytes().len());
        self.terms.reserve(TERMS_CAPACITY);
        self.presence.reserve(TERMS_CAPACITY);
        if let Some(key) = collection_key(id).filter(|_| !declared.lacks_collections) {
            self.keys.extend_from_slice(&key);
            self.terms.push(TermRange { path: PathNumber::ROOT, start: 0, end: self.keys.len() as u32 });
        }
        let mut collector = TermCollector { policy, paths, terms: self, overflow: false };
        let collected = collector.document(document);
        let overflow = collector.overflow;
        let collected = collected.and_then(|()| self.collect_declared(declared, id, document));
        if collected.is_err() {
            self.clear();
        } else {
            self.finish(overflow);
        }
        collected
    }

    /// Adds a term for each declared index, regardless of the limit on terms, and one for each expiration rule that
    /// applies.
    fn collect_declared(&mut self, declared: &DeclaredIndexes, id: &str, document: PackedValue<'_>) -> Result<()> {
        for index in &declared.indexes {
            let Some(DeclaredKey { key, is_partial, end_ms }) = index.definition.key(id, document)? else { continue };
            self.end_ms = [self.end_ms, end_ms].into_iter().flatten().min();
            let start = self.keys.len() as u32;
            self.keys.extend_from_slice(&key);
            self.terms.push(TermRange { path: index.path, start, end: self.keys.len() as u32 });
            if index.definition.is_unique && !is_partial {
                self.unique_terms.push((index.path, key.into()));
            }
        }
        Ok(())
    }

    /// Removes all terms, and keeps the allocated memory.
    pub(crate) fn clear(&mut self) {
        self.end_ms = None;
        self.unique_terms.clear();
        self.keys.clear();
        self.terms.clear();
        self.presence.clear();
    }

    fn finish(&mut self, overflow: bool) {
        assert!(u32::try_from(self.keys.len()).is_ok(), "the keys of a document fit 32-bit offsets");
        let keys = &self.keys[..];
        let term = |range: &TermRange| Term { path: range.path, key: &keys[range.start as usize..range.end as usize] };
        // Path numbers are assigned in the order of first use, so the terms of most documents are sorted already.
        if !self.terms.is_sorted_by(|a, b| term(a) < term(b)) {
            self.terms.sort_unstable_by(|a, b| term(a).cmp(&term(b)));
            self.terms.dedup_by(|a, b| term(a) == term(b));
        }
        debug_assert!(
            self.terms.is_sorted_by(|a, b| term(a) < term(b)),
            "the terms of a document are sorted and unique"
        );
        if overflow {
            self.presence.push((PathNumber::ROOT, Presence::Overflow));
        }
        if !self.presence.is_sorted() {
            self.presence.sort_unstable();
        }
    }

    /// The terms in the order of paths and values.
    pub(crate) fn terms(&self) -> impl ExactSizeIterator<Item = Term<'_>> + Clone {
        self.terms
            .iter()
            .map(|range| Term { path: range.path, key: &self.keys[range.start as usize..range.end as usize] })
    }

    /// The terms in unique indexes, except those of a document that lacks a value and so is exempt.
    pub(crate) fn unique_terms(&self) -> &[(PathNumber, Box<[u8]>)] {
        &self.unique_terms
    }

    /// The millisecond from which the document is expired; `None` if it never expires.
    pub(crate) fn end_ms(&self) -> Option<i64> {
        self.end_ms
    }

    /// The type of value at each path, in the order of paths.
    pub(crate) fn presence(&self) -> &[(PathNumber, Presence)] {
        &self.presence
    }

    /// Whether the document has more terms than are indexed.
    pub(crate) fn overflow(&self) -> bool {
        self.presence.first() == Some(&(PathNumber::ROOT, Presence::Overflow))
    }
}

struct TermCollector<'c> {
    policy: &'c Policy,
    paths: &'c Paths,
    terms: &'c mut DocumentTerms,
    /// Set when the first term is omitted. No term is collected after that.
    overflow: bool,
}

/// The position of the collector in the document.
#[derive(Clone, Copy)]
struct CollectorPosition {
    path: PathNumber,
    coverage: Coverage,
    within_array: bool,
    depth: usize,
}

impl CollectorPosition {
    fn deeper(self, path: PathNumber) -> Result<CollectorPosition> {
        let depth = self.depth + 1;
        if depth > DEPTH_MAX {
            return Err(Error::corrupt("a packed value is damaged: it is nested too deeply"));
        }
        Ok(CollectorPosition { path, depth, ..self })
    }
}

impl TermCollector<'_> {
    fn document(&mut self, document: PackedValue<'_>) -> Result<()> {
        let coverage = self.policy.coverage([].into_iter());
        let at = CollectorPosition { path: PathNumber::ROOT, coverage, within_array: false, depth: 0 };
        // Recorded whatever the policy: the presence at the root marks the document as living.
        self.terms.presence.push((PathNumber::ROOT, document.kind().into()));
        match document.read()? {
            Packed::Object(object) => self.object(object, at),
            Packed::Array(array) => {
                let element = self.paths.intern(PathNumber::ROOT, Step::Element);
                self.elements(array, element, at)
            }
            scalar => self.scalar(&scalar, at),
        }
    }

    fn object(&mut self, object: PackedObject<'_>, at: CollectorPosition) -> Result<()> {
        let (Some(number), Some(shape)) = (object.shape_number(), object.shape()) else {
            return self.named_object(object, at);
        };
        let plan = self.paths.plan(self.policy, at.path, number, shape);
        for (field, entry) in plan.iter().zip(object) {
            if self.overflow {
                break;
            }
            match entry {
                Ok((_, value)) => self.field(field, value, at)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Collects the terms of an object that stores its names.
    fn named_object(&mut self, object: PackedObject<'_>, at: CollectorPosition) -> Result<()> {
        for entry in object {
            if self.overflow {
                break;
            }
            let (name, value) = entry?;
            self.field(&FieldPlan::new(self.paths, self.policy, at.path, name), value, at)?;
        }
        Ok(())
    }

    fn field(&mut self, field: &FieldPlan, value: PackedValue<'_>, parent: CollectorPosition) -> Result<()> {
        let coverage = field.coverage;
        if !coverage.covers_self && !coverage.covers_below {
            return Ok(());
        }
        let Some(path) = field.path else {
            self.overflow = true;
            return Ok(());
        };
        let at = CollectorPosition { path, coverage, ..parent };
        if coverage.covers_self && !parent.within_array {
            self.add_presence(path, value.kind());
        }
        // Match the returned value directly: moving it to a variable first costs as much as reading it.
        match value.read() {
            Ok(Packed::Object(object)) => self.object(object, at.deeper(path)?),
            Ok(Packed::Array(array)) => self.elements(array, field.element(self.paths), at.deeper(path)?),
            Ok(scalar) => self.scalar(&scalar, at),
            Err(error) => Err(error),
        }
    }

    /// Collects the terms of the elements of an array at the path `element`, which is `None` if the dictionary is full.
    fn elements(&mut self, array: PackedArray<'_>, element: Option<PathNumber>, at: CollectorPosition) -> Result<()> {
        let Some(path) = element else {
            self.overflow |= array.len() > 0;
            return Ok(());
        };
        let at = CollectorPosition { within_array: true, ..at.deeper(path)? };
        for element in array {
            if self.overflow {
                break;
            }
            match element?.read() {
                Ok(Packed::Object(object)) => self.object(object, at)?,
                Ok(Packed::Array(array)) => {
                    let inner = self.paths.intern(path, Step::Element);
                    self.elements(array, inner, at)?;
                }
                Ok(scalar) => self.scalar(&scalar, at)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add_presence(&mut self, path: PathNumber, kind: Kind) {
        if self.terms.presence.len() < self.policy.document_terms_max() {
            self.terms.presence.push((path, kind.into()));
        } else {
            self.overflow = true;
        }
    }

    fn scalar(&mut self, value: &Packed<'_>, at: CollectorPosition) -> Result<()> {
        if !at.coverage.covers_self || self.overflow {
            return Ok(());
        }
        if self.terms.terms.len() >= self.policy.document_terms_max() {
            self.overflow = true;
            return Ok(());
        }
        let keys = &mut self.terms.keys;
        let start = keys.len() as u32;
        match value {
            Packed::Null => key::encode_null(keys),
            Packed::Bool(truth) => key::encode_bool(*truth, keys),
            Packed::Number(number) => key::encode_number(*number, keys),
            Packed::String(text) => {
                key::encode_string_bounded(text, self.policy.text_bytes_max(), keys);
            }
            Packed::Array(_) | Packed::Object(_) => debug_assert!(false, "`scalar` is called for scalars only"),
        }
        self.terms.terms.push(TermRange { path: at.path, start, end: keys.len() as u32 });
        Ok(())
    }
}
