//! The document cache: recently read documents, found by id or by number. A hit costs a hash lookup and touches neither
//! memtable, tree nor log.
//!
//! Invariant: an entry is used only while no write has changed its document since the snapshot it was loaded from. Each
//! write stamps its sequence into the slots of its document's id hash and number *before* it is published; a reader
//! accepts an entry only if the entry's snapshot is at least as new as the slot's stamp. Two documents that share a
//! slot can only cause a miss.
//!
//! A document that is read both by id and by number is cached twice. Results of single-term lookups are cached by
//! [`ResultCache`].

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::cache::documents_by_number::NumberedCache;
use crate::cache::results::{CachedResult, ResultCache};
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentTerms, PathNumber, TermDifference};
use crate::revision::{DocumentId, Sequence};

/// Slots of write stamps: 512 KiB, so that few ids share one.
const STAMP_COUNT: usize = 1 << 16;

/// The size of an entry besides its record: key, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

pub(crate) struct DocumentCache {
    by_id: Cache<DocumentId, DocumentEntry, DocumentWeighter>,
    stamps: Box<[AtomicU64]>,
    hasher: hashbrown::DefaultHashBuilder,
    by_number: NumberedCache,
    results: ResultCache,
    enabled: bool,
}

#[derive(Clone)]
struct DocumentEntry {
    document: Document,
    /// The sequence of the snapshot that the document was read from. The entry is valid for snapshots from the
    /// document's own sequence to this one.
    as_of: Sequence,
}

#[derive(Clone)]
struct DocumentWeighter;

/// A borrowed id, with the same hash.
#[derive(Hash)]
struct BorrowedId<'a>(&'a str);

impl Equivalent<DocumentId> for BorrowedId<'_> {
    fn equivalent(&self, id: &DocumentId) -> bool {
        self.0 == id.as_str()
    }
}

impl Weighter<DocumentId, DocumentEntry> for DocumentWeighter {
    fn weight(&self, _: &DocumentId, entry: &DocumentEntry) -> u64 {
        ENTRY_OVERHEAD_BYTES + entry.document.id().as_str().len() as u64 + entry.document.byte_count() as u64
    }
}

impl DocumentCache {
    /// Creates a cache of at most `bytes`: a quarter for documents by id, half for documents by number, and a quarter
    /// for results. Zero disables it.
    pub(crate) fn new(bytes: u64) -> Self {
        let by_id = bytes / 4;
        let expected_count = usize::try_from(by_id / 512).unwrap_or(usize::MAX).clamp(16, 10_000_000);
        DocumentCache {
            by_id: Cache::with_weighter(expected_count, by_id.max(1), DocumentWeighter),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
            hasher: hashbrown::DefaultHashBuilder::default(),
            by_number: NumberedCache::new(bytes / 2),
            results: ResultCache::new(bytes / 4),
            enabled: bytes > 0,
        }
    }

    /// The document `id` as of the snapshot `at`, if a valid entry has it.
    pub(crate) fn get(&self, id: &str, at: Sequence) -> Option<Document> {
        if !self.enabled {
            return None;
        }
        let DocumentEntry { document, as_of } = self.by_id.get(&BorrowedId(id))?;
        let is_fresh = self.stamp(id).load(Ordering::Acquire) <= as_of.0;
        (is_fresh && document.sequence() <= at).then_some(document)
    }

    /// Caches `document`, read from a snapshot at `as_of`, by its id.
    pub(crate) fn put(&self, document: &Document, as_of: Sequence) {
        if self.enabled && self.stamp(document.id().as_str()).load(Ordering::Acquire) <= as_of.0 {
            self.by_id.insert(document.id().clone(), DocumentEntry { document: document.clone(), as_of });
        }
    }

    /// Fills `documents` with the cached ones among `numbers` as of the snapshot `at`, each at the same index.
    pub(crate) fn get_numbers(&self, numbers: &[DocumentNumber], at: Sequence, documents: &mut [Option<Document>]) {
        if self.enabled {
            self.by_number.get(numbers, at, documents);
        }
    }

    /// Caches documents, read from a snapshot at `as_of`, by their numbers.
    pub(crate) fn put_numbers<'d>(
        &self,
        documents: impl Iterator<Item = (DocumentNumber, &'d Document)>,
        as_of: Sequence,
    ) {
        if self.enabled {
            self.by_number.put(documents, as_of);
        }
    }

    /// The current documents of a term, if they are cached.
    pub(crate) fn result(&self, path: PathNumber, key: &[u8]) -> Option<CachedResult> {
        if self.enabled { self.results.get(path, key, &self.by_number) } else { None }
    }

    /// Caches all documents of a term, read from a snapshot at `as_of`.
    pub(crate) fn put_result(&self, path: PathNumber, key: &[u8], result: &CachedResult, as_of: Sequence) {
        if self.enabled {
            self.results.put(path, key, result, as_of);
        }
    }

    /// Announces that a transaction is about to change documents, with sequences up to `last`. The caller holds the
    /// writer lock.
    pub(crate) fn begin(&self, last: Sequence) {
        self.results.begin(last);
    }

    /// Invalidates the entries of a document that a write at `sequence` changes, and leaves with these terms. Call it
    /// before that write is published.
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
        if !self.results.is_watching() {
            return;
        }
        for term in change.removed_terms().chain(change.added_terms()) {
            self.results.touch(term.path, term.key, sequence);
        }
        if terms.is_some_and(DocumentTerms::overflow) {
            self.results.touch_incomplete(sequence);
        }
    }

    fn stamp(&self, id: &str) -> &AtomicU64 {
        &self.stamps[self.hasher.hash_one(id) as usize % STAMP_COUNT]
    }
}
