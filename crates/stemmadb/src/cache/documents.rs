//! Documents read lately, found by id or, as rows of queries, by number: a hot read is a hash look-up and touches neither
//! memtable, tree nor log.
//!
//! Invariant: an entry answers only while no write has touched its document since the snapshot it was loaded from. Each write
//! stamps its sequence into the slots of its id's hash and of its number *before* it is published; a reader accepts an entry
//! whose snapshot is at least as new as the slot's stamp. Two documents in one slot can only cause a miss.
//!
//! A document that is read both ways is kept twice. What look-ups of one term gave is kept by [`answers`].

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::cache::documents_by_number::NumberedCache;
use crate::cache::results::{Answer, AnswerCache};
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentTerms, PathNumber, TermDifference};
use crate::revision::{DocumentId, Sequence};

/// Slots of write stamps: 512 KiB, so that few ids share one.
const STAMP_COUNT: usize = 1 << 16;

/// What an entry costs beside its record: key, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

pub(crate) struct DocumentCache {
    by_id: Cache<DocumentId, Entry, ByBytes>,
    stamps: Box<[AtomicU64]>,
    hasher: hashbrown::DefaultHashBuilder,
    by_number: NumberedCache,
    answers: AnswerCache,
    enabled: bool,
}

#[derive(Clone)]
struct Entry {
    document: Document,
    /// The snapshot the document was read from: it holds for every snapshot from its own sequence to this one.
    as_of: Sequence,
}

#[derive(Clone)]
struct ByBytes;

/// A borrowed id, with the same hash.
#[derive(Hash)]
struct Sought<'a>(&'a str);

impl Equivalent<DocumentId> for Sought<'_> {
    fn equivalent(&self, id: &DocumentId) -> bool {
        self.0 == id.as_str()
    }
}

impl Weighter<DocumentId, Entry> for ByBytes {
    fn weight(&self, _: &DocumentId, entry: &Entry) -> u64 {
        ENTRY_OVERHEAD_BYTES + entry.document.id().as_str().len() as u64 + entry.document.byte_count() as u64
    }
}

impl DocumentCache {
    /// A cache of at most `bytes`, a quarter for documents by id and one for answers; zero turns it off.
    pub(crate) fn new(bytes: u64) -> Self {
        let by_id = bytes / 4;
        let expected_count = usize::try_from(by_id / 512).unwrap_or(usize::MAX).clamp(16, 10_000_000);
        DocumentCache {
            by_id: Cache::with_weighter(expected_count, by_id.max(1), ByBytes),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
            hasher: hashbrown::DefaultHashBuilder::default(),
            by_number: NumberedCache::new(bytes / 2),
            answers: AnswerCache::new(bytes / 4),
            enabled: bytes > 0,
        }
    }

    /// The document `id` as of the snapshot `at`, if an entry can tell.
    pub(crate) fn get(&self, id: &str, at: Sequence) -> Option<Document> {
        if !self.enabled {
            return None;
        }
        let Entry { document, as_of } = self.by_id.get(&Sought(id))?;
        let is_fresh = self.stamp(id).load(Ordering::Acquire) <= as_of.0;
        (is_fresh && document.sequence() <= at).then_some(document)
    }

    /// Keeps `document`, which was read from a snapshot at `as_of`, to be found by its id.
    pub(crate) fn put(&self, document: &Document, as_of: Sequence) {
        if self.enabled && self.stamp(document.id().as_str()).load(Ordering::Acquire) <= as_of.0 {
            self.by_id.insert(document.id().clone(), Entry { document: document.clone(), as_of });
        }
    }

    /// Adds to `documents` what is kept of `numbers` as of the snapshot `at`, each at its place.
    pub(crate) fn get_numbers(&self, numbers: &[DocumentNumber], at: Sequence, documents: &mut [Option<Document>]) {
        if self.enabled {
            self.by_number.get(numbers, at, documents);
        }
    }

    /// Keeps documents, which were read from a snapshot at `as_of`, to be found by their numbers.
    pub(crate) fn put_numbers<'d>(
        &self,
        documents: impl Iterator<Item = (DocumentNumber, &'d Document)>,
        as_of: Sequence,
    ) {
        if self.enabled {
            self.by_number.put(documents, as_of);
        }
    }

    /// The documents that have a term now, if that is kept.
    pub(crate) fn answer(&self, path: PathNumber, key: &[u8]) -> Option<Answer> {
        if self.enabled { self.answers.get(path, key, &self.by_number) } else { None }
    }

    /// Keeps what a snapshot at `as_of` has for a term: all its documents.
    pub(crate) fn put_answer(&self, path: PathNumber, key: &[u8], answer: &Answer, as_of: Sequence) {
        if self.enabled {
            self.answers.put(path, key, answer, as_of);
        }
    }

    /// Notes that a transaction is about to touch documents, with sequences up to `last`; under the writer lock.
    pub(crate) fn begin(&self, last: Sequence) {
        self.answers.begin(last);
    }

    /// Notes that a write at `sequence` touches a document, and leaves it with these terms; to be called before that write is published.
    pub(crate) fn touch(
        &self,
        id: &str,
        number: DocumentNumber,
        sequence: Sequence,
        terms: Option<&DocumentTerms>,
        change: TermDifference<'_>,
    ) {
        if !self.enabled {
            return;
        }
        self.stamp(id).fetch_max(sequence.0, Ordering::AcqRel);
        self.by_number.touch(number, sequence);
        if !self.answers.is_watching() {
            return;
        }
        for term in change.removed_terms().chain(change.added_terms()) {
            self.answers.touch(term.path, term.key, sequence);
        }
        if terms.is_some_and(DocumentTerms::overflow) {
            self.answers.touch_incomplete(sequence);
        }
    }

    fn stamp(&self, id: &str) -> &AtomicU64 {
        &self.stamps[self.hasher.hash_one(id) as usize % STAMP_COUNT]
    }
}
