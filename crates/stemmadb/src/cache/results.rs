//! A cache of the results of single-term lookups: the documents that have a term, if they are few.
//!
//! Invariant: a result is used only while no write has changed the term's set of documents, or any of these documents,
//! since the snapshot it was read from. Before it is published, each write stamps its sequence into the slots of the
//! terms it changes, for paths that are *watched*, and into the slot of its document (see [`NumberedCache`]). A path is
//! watched once its first result is cached; a result is cached only if its snapshot includes all writes that did not
//! see the watch.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::cache::documents_by_number::NumberedCache;
use crate::document::Document;
use crate::index::{DocumentNumber, PathNumber};
use crate::revision::Sequence;

/// Slots of write stamps; terms that share one can only cause a miss.
const STAMP_COUNT: usize = 1 << 14;
/// Slots of watched paths; paths that share one are watched together.
const WATCH_COUNT: usize = 1 << 10;
/// The slot value of a path that is not watched.
const UNWATCHED: u64 = u64::MAX;
/// The size of a result besides its documents: key, hash slot, reference counts.
const RESULT_OVERHEAD_BYTES: u64 = 160;
/// The size of each document besides its record.
const DOCUMENT_OVERHEAD_BYTES: u64 = size_of::<(DocumentNumber, Document)>() as u64;

/// The documents that have a term, by number.
pub(crate) type CachedResult = Arc<[(DocumentNumber, Document)]>;

pub(super) struct ResultCache {
    results: Cache<TermKey, ResultEntry, ResultWeighter>,
    /// The last change of each term's set of documents.
    stamps: Box<[AtomicU64]>,
    /// The last write of a document with incomplete terms, which may have any term.
    incomplete: AtomicU64,
    /// The sequence from which results of each path may be cached.
    watched: Box<[AtomicU64]>,
    /// Whether any path is watched; if not, writers need not stamp terms.
    is_watching: AtomicBool,
    /// The newest sequence that a writer has begun to stamp.
    begun: AtomicU64,
    hasher: hashbrown::DefaultHashBuilder,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct TermKey(PathNumber, Box<[u8]>);

/// A borrowed term, with the same hash.
#[derive(Hash)]
struct BorrowedTerm<'a>(PathNumber, &'a [u8]);

#[derive(Clone)]
struct ResultEntry {
    result: CachedResult,
    as_of: Sequence,
    /// The slot of the term's stamp.
    slot: usize,
}

#[derive(Clone)]
struct ResultWeighter;

impl Equivalent<TermKey> for BorrowedTerm<'_> {
    fn equivalent(&self, term: &TermKey) -> bool {
        self.0 == term.0 && self.1 == &*term.1
    }
}

impl Weighter<TermKey, ResultEntry> for ResultWeighter {
    fn weight(&self, term: &TermKey, entry: &ResultEntry) -> u64 {
        let documents = entry.result.iter().map(|(_, document)| document.byte_count() as u64 + DOCUMENT_OVERHEAD_BYTES);
        RESULT_OVERHEAD_BYTES + term.1.len() as u64 + documents.sum::<u64>()
    }
}

impl ResultCache {
    pub(super) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / 512).unwrap_or(usize::MAX).clamp(16, 10_000_000);
        ResultCache {
            results: Cache::with_weighter(expected_count, bytes.max(1), ResultWeighter),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
            incomplete: AtomicU64::new(0),
            watched: (0..WATCH_COUNT).map(|_| AtomicU64::new(UNWATCHED)).collect(),
            is_watching: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            hasher: hashbrown::DefaultHashBuilder::default(),
        }
    }

    /// The current documents of a term, if a valid entry has them.
    pub(super) fn get(&self, path: PathNumber, key: &[u8], numbered: &NumberedCache) -> Option<CachedResult> {
        let ResultEntry { result, as_of, slot } = self.results.get(&BorrowedTerm(path, key))?;
        let is_fresh = self.is_fresh(slot, as_of) && result.iter().all(|(number, _)| numbered.stamp(*number) <= as_of);
        is_fresh.then_some(result)
    }

    /// Caches all documents of a term, read from a snapshot at `as_of`; starts to watch its path if necessary.
    pub(super) fn put(&self, path: PathNumber, key: &[u8], result: &CachedResult, as_of: Sequence) {
        let slot = self.slot(path, key);
        if self.watch(path) <= as_of.0 && self.is_fresh(slot, as_of) {
            self.results.insert(TermKey(path, key.into()), ResultEntry { result: result.clone(), as_of, slot });
        }
    }

    fn is_fresh(&self, slot: usize, as_of: Sequence) -> bool {
        self.stamps[slot].load(Ordering::Acquire) <= as_of.0 && self.incomplete.load(Ordering::Acquire) <= as_of.0
    }

    /// Starts to watch a path if necessary. Returns the sequence from which results of the path may be cached.
    ///
    /// A writer first announces itself, then reads which paths are watched; a reader first sets the watch, then reads
    /// which writers have begun. So a writer that did not see the watch has begun before, and its sequences are not
    /// above the one returned here.
    fn watch(&self, path: PathNumber) -> u64 {
        let slot = &self.watched[path.0 as usize % WATCH_COUNT];
        let known = slot.load(Ordering::SeqCst);
        if known != UNWATCHED {
            return known;
        }
        self.is_watching.store(true, Ordering::SeqCst);
        // Writers see this value; no result is new enough for it.
        _ = slot.compare_exchange(UNWATCHED, UNWATCHED - 1, Ordering::SeqCst, Ordering::SeqCst);
        let from = self.begun.load(Ordering::SeqCst);
        _ = slot.compare_exchange(UNWATCHED - 1, from, Ordering::SeqCst, Ordering::SeqCst);
        from
    }

    /// Announces that terms are about to be stamped with sequences up to `last`. Called under the writer lock, before
    /// any is stamped.
    pub(super) fn begin(&self, last: Sequence) {
        self.begun.fetch_max(last.0, Ordering::SeqCst);
    }

    /// Whether terms have to be stamped. Call it after [`ResultCache::begin`].
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::SeqCst)
    }

    /// Stamps a term whose set of documents a write at `sequence` changes.
    pub(super) fn touch(&self, path: PathNumber, key: &[u8], sequence: Sequence) {
        debug_assert!(sequence.0 <= self.begun.load(Ordering::SeqCst), "stamps are announced before they are set");
        if self.watched[path.0 as usize % WATCH_COUNT].load(Ordering::SeqCst) != UNWATCHED {
            self.stamps[self.slot(path, key)].fetch_max(sequence.0, Ordering::AcqRel);
        }
    }

    /// Records that a write at `sequence` leaves a document with incomplete terms.
    pub(super) fn touch_incomplete(&self, sequence: Sequence) {
        self.incomplete.fetch_max(sequence.0, Ordering::AcqRel);
    }

    fn slot(&self, path: PathNumber, key: &[u8]) -> usize {
        self.hasher.hash_one(BorrowedTerm(path, key)) as usize % STAMP_COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathNumber = PathNumber(3);

    fn is_cached(results: &ResultCache, numbered: &NumberedCache) -> bool {
        results.get(PATH, b"key", numbered).is_some()
    }

    #[test]
    fn a_write_to_a_term_or_with_incomplete_terms_invalidates_a_result() {
        let (results, numbered) = (ResultCache::new(1 << 20), NumberedCache::new(1 << 20));
        let no_documents: CachedResult = Arc::new([]);
        assert!(!is_cached(&results, &numbered));
        results.put(PATH, b"key", &no_documents, Sequence(1));
        assert!(is_cached(&results, &numbered));
        results.begin(Sequence(2));
        results.touch(PathNumber(4), b"key", Sequence(2));
        assert!(is_cached(&results, &numbered));
        results.touch(PATH, b"key", Sequence(2));
        assert!(!is_cached(&results, &numbered));
        // A snapshot from before the write must not restore the entry.
        results.put(PATH, b"key", &no_documents, Sequence(1));
        assert!(!is_cached(&results, &numbered));
        results.put(PATH, b"key", &no_documents, Sequence(2));
        assert!(is_cached(&results, &numbered));
        results.touch_incomplete(Sequence(3));
        assert!(!is_cached(&results, &numbered));
    }

    #[test]
    fn writes_before_a_path_is_watched_are_not_missed() {
        let (results, numbered) = (ResultCache::new(1 << 20), NumberedCache::new(1 << 20));
        // Written, but not published: the write did not stamp the term.
        results.begin(Sequence(5));
        results.touch(PATH, b"key", Sequence(5));
        results.put(PATH, b"key", &(Arc::new([]) as CachedResult), Sequence(4));
        assert!(!is_cached(&results, &numbered));
        results.put(PATH, b"key", &(Arc::new([]) as CachedResult), Sequence(5));
        assert!(is_cached(&results, &numbered));
    }
}
