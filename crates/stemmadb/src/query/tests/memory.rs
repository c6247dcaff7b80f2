//! An in-memory query source: indexes documents by the same rules as the store and keeps them packed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::source::{IndexReader, IndexStatistics, QueryContext, VisitValue};
use crate::document::Document;
use crate::index::{
    DeclaredIndexes, DocumentNumber, DocumentSet, Histogram, Index, PathNumber, Paths, Policy, Presence, Union, Window,
    document_terms,
};
use crate::query::language::interval::KeyRange;
use crate::revision::{DocumentId, Revision, Sequence};
use crate::tree::Direction;
use crate::value::{Body, PackedValue, Shapes, Value, pack};
use crate::{Error, Result};

type Postings<K> = BTreeMap<(PathNumber, K), BTreeSet<DocumentNumber>>;

/// One stored document.
pub(crate) struct Stored {
    pub(crate) id: DocumentId,
    pub(crate) revision: Revision,
    pub(crate) body: Value,
    packed: Vec<u8>,
}

/// Documents and their index.
pub(crate) struct MemorySource {
    paths: Paths,
    policy: Policy,
    declared: DeclaredIndexes,
    shapes: Arc<Shapes>,
    pub(crate) documents: BTreeMap<DocumentNumber, Stored>,
    terms: Postings<Vec<u8>>,
    presence: Postings<Presence>,
    /// Whether its histograms are deliberately wrong: results must not depend on them.
    pub(crate) has_wrong_statistics: bool,
    /// How often the documents with a value at a path were read.
    pub(crate) presence_reads: AtomicU64,
    /// How many documents were read.
    pub(crate) documents_read: AtomicU64,
    /// How many distinct values walks visited.
    pub(crate) values_walked: AtomicU64,
}

impl MemorySource {
    pub(crate) fn new(policy: Policy) -> Self {
        MemorySource {
            paths: Paths::new(),
            policy,
            declared: DeclaredIndexes::default(),
            shapes: Arc::new(Shapes::new()),
            documents: BTreeMap::new(),
            terms: BTreeMap::new(),
            presence: BTreeMap::new(),
            has_wrong_statistics: false,
            presence_reads: AtomicU64::new(0),
            documents_read: AtomicU64::new(0),
            values_walked: AtomicU64::new(0),
        }
    }

    /// Declares indexes and marks them ready.
    pub(crate) fn declare(&mut self, indexes: &[Index]) {
        for index in indexes {
            let number = self.declared.next_number.max(1);
            let definition = index.define(number).expect("a good index");
            self.declared.add(definition, &self.paths).expect("few paths");
            self.declared.set_ready(number);
        }
    }

    /// Stores a document under a number; removes the previous document with this number first.
    pub(crate) fn put(&mut self, number: DocumentNumber, id: &str, body: Value) {
        self.remove(number);
        let mut packed = Vec::new();
        pack(&body, &self.shapes, &mut packed).expect("a good body");
        let view = PackedValue::new(&packed, &self.shapes).expect("packed here");
        let terms = document_terms(&self.policy, &self.declared, &self.paths, id, view).expect("packed here");
        for term in terms.terms() {
            self.terms.entry((term.path, term.key.to_vec())).or_default().insert(number);
        }
        for (path, presence) in terms.presence() {
            self.presence.entry((*path, *presence)).or_default().insert(number);
        }
        let mut canonical = Vec::new();
        body.canonical(&mut canonical);
        let revision = Revision::of_edit(None, false, &canonical);
        let id = DocumentId::new(id).expect("a good id");
        self.documents.insert(number, Stored { id, revision, body, packed });
    }

    pub(crate) fn remove(&mut self, number: DocumentNumber) {
        self.documents.remove(&number);
        self.terms.values_mut().for_each(|documents| {
            documents.remove(&number);
        });
        self.presence.values_mut().for_each(|documents| {
            documents.remove(&number);
        });
    }

    /// The document with its `_id` and `_rev`.
    pub(crate) fn whole(stored: &Stored) -> Value {
        let mut whole = stored.body.clone();
        let object = whole.as_object_mut().expect("bodies are objects");
        object.insert("_id", stored.id.as_str());
        object.insert("_rev", stored.revision.to_string());
        whole
    }
}

fn set(documents: &BTreeSet<DocumentNumber>) -> DocumentSet {
    DocumentSet::from_sorted(documents.iter().copied())
}

impl IndexReader for MemorySource {
    fn paths(&self) -> &Paths {
        &self.paths
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn declared(&self) -> &DeclaredIndexes {
        &self.declared
    }

    fn equal_in(&self, path: PathNumber, key: &[u8], window: Window) -> Result<DocumentSet> {
        Ok(self.terms.get(&(path, key.to_vec())).map(set).unwrap_or_default().within(window))
    }

    fn range(&self, path: PathNumber, range: &KeyRange) -> Result<DocumentSet> {
        let mut union = Union::new();
        self.walk(path, range, Direction::Ascending, &mut |_, documents| {
            documents.add_to(&mut union)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(union.finish())
    }

    fn equal_from(
        &self,
        path: PathNumber,
        key: &[u8],
        from: DocumentNumber,
        count: u64,
    ) -> Result<(DocumentSet, bool)> {
        // Returns whole chunks, as stored sets do.
        let first = DocumentNumber::from_parts(from.chunk(), 0);
        let all: Vec<DocumentNumber> = self.equal(path, key)?.iter().filter(|number| *number >= first).collect();
        let enough = all.get(count as usize - 1).map_or(u64::MAX, |number| number.chunk());
        let (some, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|number| number.chunk() <= enough);
        Ok((DocumentSet::from_sorted(some), !rest.is_empty()))
    }

    fn walk_containing(
        &self,
        path: PathNumber,
        range: &KeyRange,
        direction: Direction,
        _: Option<&str>,
        visit: &mut VisitValue<'_>,
    ) -> Result<()> {
        let bounds = (path, range.lower.clone())..(path, range.upper.clone());
        let mut found: Vec<_> = self.terms.range(bounds).filter(|(_, documents)| !documents.is_empty()).collect();
        if direction == Direction::Descending {
            found.reverse();
        }
        for ((_, key), documents) in found {
            self.values_walked.fetch_add(1, Ordering::Relaxed);
            if visit(key, &mut set(documents))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn presence_in(&self, path: PathNumber, kinds: &[Presence], window: Window) -> Result<DocumentSet> {
        self.presence_reads.fetch_add(1, Ordering::Relaxed);
        let mut union = Union::new();
        for kind in kinds {
            if let Some(documents) = self.presence.get(&(path, *kind)) {
                union.add_set(&set(documents));
            }
        }
        Ok(union.finish().within(window))
    }

    fn number_of(&self, id: &str) -> Result<Option<DocumentNumber>> {
        Ok(self.documents.iter().find(|(_, stored)| stored.id.as_str() == id).map(|(number, _)| *number))
    }

    fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>, ids_max: u64) -> Result<Option<DocumentSet>> {
        let within = |id: &str| {
            (match lower {
                Bound::Included(lower) => id >= lower,
                Bound::Excluded(lower) => id > lower,
                Bound::Unbounded => true,
            }) && (match upper {
                Bound::Included(upper) => id <= upper,
                Bound::Excluded(upper) => id < upper,
                Bound::Unbounded => true,
            })
        };
        let numbers = self.documents.iter().filter(|(_, stored)| within(stored.id.as_str()));
        let found = DocumentSet::from_sorted(numbers.map(|(number, _)| *number));
        Ok((found.len() <= ids_max).then_some(found))
    }

    fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        numbers.iter().map(|number| self.stored(*number).map(|stored| stored.id.clone())).collect()
    }

    fn load(
        &self,
        numbers: &[DocumentNumber],
        visit: &mut dyn FnMut(DocumentNumber, Document) -> Result<()>,
    ) -> Result<()> {
        self.documents_read.fetch_add(numbers.len() as u64, Ordering::Relaxed);
        for number in numbers {
            let stored = self.stored(*number)?;
            let body = Body::new(stored.packed.as_slice());
            let shapes = self.shapes.clone();
            let document = Document::new(stored.id.clone(), stored.revision, Sequence::ZERO, false, body, shapes);
            visit(*number, document)?;
        }
        Ok(())
    }
}

impl IndexStatistics for MemorySource {
    fn histogram(&self, path: PathNumber) -> Option<Arc<Histogram>> {
        let mut histogram = Histogram::default();
        for ((_, key), documents) in self.terms.range((path, Vec::new())..(PathNumber(path.0 + 1), Vec::new())) {
            let count = documents.len() as i64;
            let seed = key.iter().map(|byte| u32::from(*byte)).sum::<u32>() + path.0;
            match self.has_wrong_statistics {
                true => histogram.add(key, i64::from(seed % 5) * 1_000, i64::from(seed % 3)),
                false => histogram.add(key, count, i64::from(count > 0)),
            }
        }
        Some(Arc::new(histogram))
    }
}

impl QueryContext for MemorySource {}

impl MemorySource {
    fn stored(&self, number: DocumentNumber) -> Result<&Stored> {
        self.documents.get(&number).ok_or_else(|| Error::internal("a missing document was requested"))
    }
}
