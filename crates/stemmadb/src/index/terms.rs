//! The terms of a document: its collection, every scalar at every covered path, and what it has at each path.
//!
//! A pure function of policy, declared indexes and document, but for the numbers that the dictionary gives to paths. All keys of a document
//! lie in one buffer.

mod difference;
#[cfg(test)]
mod tests;

use super::collection::collection_key;
use super::declared::{Declared, DeclaredKey};
use super::number::PathNumber;
use super::paths::{Field, Paths, Step};
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

/// Room is made at once for so many: most documents have no more.
const TERMS_USUAL: usize = 24;

/// The terms of one document, sorted, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct DocumentTerms {
    keys: Vec<u8>,
    terms: Vec<Place>,
    presence: Vec<(PathNumber, Presence)>,
    /// The terms that no other document may have.
    claims: Vec<(PathNumber, Box<[u8]>)>,
    /// The millisecond from which the document is gone, by whichever rule that is first.
    end_ms: Option<i64>,
}

/// A term whose key is in the buffer.
#[derive(Debug, Clone, Copy)]
struct Place {
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
    declared: &Declared,
    paths: &Paths,
    id: &str,
    document: PackedValue<'_>,
) -> Result<DocumentTerms> {
    let mut terms = DocumentTerms::default();
    terms.collect(policy, declared, paths, id, document)?;
    Ok(terms)
}

impl DocumentTerms {
    /// Forgets these terms and holds those of `document`, whose id is `id`; saves what is allocated.
    ///
    /// # Errors
    /// `Corrupt` if the packed bytes are damaged; there are no terms then.
    pub(crate) fn collect(
        &mut self,
        policy: &Policy,
        declared: &Declared,
        paths: &Paths,
        id: &str,
        document: PackedValue<'_>,
    ) -> Result<()> {
        self.clear();
        self.keys.reserve(2 * document.bytes().len());
        self.terms.reserve(TERMS_USUAL);
        self.presence.reserve(TERMS_USUAL);
        if let Some(key) = collection_key(id).filter(|_| !declared.lacks_collections) {
            self.keys.extend_from_slice(&key);
            self.terms.push(Place { path: PathNumber::ROOT, start: 0, end: self.keys.len() as u32 });
        }
        let mut collector = Collector { policy, paths, terms: self, overflow: false };
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

    /// Every document has a term in each declared index, whatever bounds the others; where one ends, that is a term too.
    fn collect_declared(&mut self, declared: &Declared, id: &str, document: PackedValue<'_>) -> Result<()> {
        for index in &declared.indexes {
            let Some(DeclaredKey { key, is_partial, end_ms }) = index.definition.key(id, document)? else { continue };
            self.end_ms = [self.end_ms, end_ms].into_iter().flatten().min();
            let start = self.keys.len() as u32;
            self.keys.extend_from_slice(&key);
            self.terms.push(Place { path: index.path, start, end: self.keys.len() as u32 });
            if index.definition.is_unique && !is_partial {
                self.claims.push((index.path, key.into()));
            }
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.end_ms = None;
        self.claims.clear();
        self.keys.clear();
        self.terms.clear();
        self.presence.clear();
    }

    fn finish(&mut self, overflow: bool) {
        let keys = &self.keys[..];
        let term = |place: &Place| Term { path: place.path, key: &keys[place.start as usize..place.end as usize] };
        // Numbers are given in the order of first sight, so most documents have their terms in order.
        if !self.terms.is_sorted_by(|a, b| term(a) < term(b)) {
            self.terms.sort_unstable_by(|a, b| term(a).cmp(&term(b)));
            self.terms.dedup_by(|a, b| term(a) == term(b));
        }
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
            .map(|place| Term { path: place.path, key: &self.keys[place.start as usize..place.end as usize] })
    }

    /// The terms that no other document may have: those of unique indexes, but of documents that lack a value.
    pub(crate) fn claims(&self) -> &[(PathNumber, Box<[u8]>)] {
        &self.claims
    }

    /// The millisecond from which the document is gone; none if it never ends.
    pub(crate) fn end_ms(&self) -> Option<i64> {
        self.end_ms
    }

    /// What the document has at each path, in the order of paths.
    pub(crate) fn presence(&self) -> &[(PathNumber, Presence)] {
        &self.presence
    }

    /// Whether the document has more than is here.
    pub(crate) fn overflow(&self) -> bool {
        self.presence.first() == Some(&(PathNumber::ROOT, Presence::Overflow))
    }
}

struct Collector<'c> {
    policy: &'c Policy,
    paths: &'c Paths,
    terms: &'c mut DocumentTerms,
    /// Set at the first thing that is left out; nothing is collected after it.
    overflow: bool,
}

/// Where the collector is.
#[derive(Clone, Copy)]
struct At {
    path: PathNumber,
    coverage: Coverage,
    within_array: bool,
    depth: usize,
}

impl At {
    fn deeper(self, path: PathNumber) -> Result<At> {
        let depth = self.depth + 1;
        if depth > DEPTH_MAX {
            return Err(Error::corrupt("a packed value is damaged: it is nested too deeply"));
        }
        Ok(At { path, depth, ..self })
    }
}

impl Collector<'_> {
    fn document(&mut self, document: PackedValue<'_>) -> Result<()> {
        let coverage = self.policy.coverage([].into_iter());
        let at = At { path: PathNumber::ROOT, coverage, within_array: false, depth: 0 };
        // What the document is tells that it is alive, whatever the policy.
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

    fn object(&mut self, object: PackedObject<'_>, at: At) -> Result<()> {
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

    /// An object that carries its names.
    fn named_object(&mut self, object: PackedObject<'_>, at: At) -> Result<()> {
        for entry in object {
            if self.overflow {
                break;
            }
            let (name, value) = entry?;
            self.field(&Field::of(self.paths, self.policy, at.path, name), value, at)?;
        }
        Ok(())
    }

    fn field(&mut self, field: &Field, value: PackedValue<'_>, parent: At) -> Result<()> {
        let coverage = field.coverage;
        if !coverage.here && !coverage.below {
            return Ok(());
        }
        let Some(path) = field.path else {
            self.overflow = true;
            return Ok(());
        };
        let at = At { path, coverage, ..parent };
        if coverage.here && !parent.within_array {
            self.present(path, value.kind());
        }
        // Matched where it is returned: moving it out first costs as much as reading it.
        match value.read() {
            Ok(Packed::Object(object)) => self.object(object, at.deeper(path)?),
            Ok(Packed::Array(array)) => self.elements(array, field.element(self.paths), at.deeper(path)?),
            Ok(scalar) => self.scalar(&scalar, at),
            Err(error) => Err(error),
        }
    }

    /// The elements of an array, which are at the path `element`; none if the dictionary is full.
    fn elements(&mut self, array: PackedArray<'_>, element: Option<PathNumber>, at: At) -> Result<()> {
        let Some(path) = element else {
            self.overflow |= array.len() > 0;
            return Ok(());
        };
        let at = At { within_array: true, ..at.deeper(path)? };
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

    fn present(&mut self, path: PathNumber, kind: Kind) {
        if self.terms.presence.len() < self.policy.document_terms_max() {
            self.terms.presence.push((path, kind.into()));
        } else {
            self.overflow = true;
        }
    }

    fn scalar(&mut self, value: &Packed<'_>, at: At) -> Result<()> {
        if !at.coverage.here || self.overflow {
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
            Packed::Array(_) | Packed::Object(_) => debug_assert!(false, "not a scalar"),
        }
        self.terms.terms.push(Place { path: at.path, start, end: keys.len() as u32 });
        Ok(())
    }
}
