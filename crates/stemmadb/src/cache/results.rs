//! What look-ups of one term gave: the documents that have it, where they are few. DODB's cached index and cached data, in one.
//!
//! Invariant: an answer is given only while no write has changed whom the term has, nor one of its documents, since the snapshot it was
//! taken from. Each write stamps its sequence into the slots of the terms it changes, of paths that are *watched*, and of its document
//! (see [`NumberedCache`]), before it is published. A path is watched from its first answer on; an answer
//! counts only from a snapshot that has all that was written unseen.

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
/// A path that nobody watches.
const UNWATCHED: u64 = u64::MAX;
/// What an answer costs beside its documents: key, hash slot, reference counts.
const ANSWER_OVERHEAD_BYTES: u64 = 160;
/// What each document costs beside its record.
const DOCUMENT_OVERHEAD_BYTES: u64 = size_of::<(DocumentNumber, Document)>() as u64;

/// The documents that have a term, by number.
pub(crate) type Answer = Arc<[(DocumentNumber, Document)]>;

pub(super) struct AnswerCache {
    answers: Cache<TermKey, Entry, ByBytes>,
    /// When what a term has was changed last.
    stamps: Box<[AtomicU64]>,
    /// When a document whose terms are incomplete was written last: it may have any.
    incomplete: AtomicU64,
    /// From which state on answers about a path count.
    watched: Box<[AtomicU64]>,
    /// Whether any path is watched: else writers need not look at terms.
    is_watching: AtomicBool,
    /// The newest sequence that a writer has begun to stamp.
    begun: AtomicU64,
    hasher: hashbrown::DefaultHashBuilder,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct TermKey(PathNumber, Box<[u8]>);

/// A borrowed term, with the same hash.
#[derive(Hash)]
struct Sought<'a>(PathNumber, &'a [u8]);

#[derive(Clone)]
struct Entry {
    answer: Answer,
    as_of: Sequence,
    /// Where its term is stamped.
    slot: usize,
}

#[derive(Clone)]
struct ByBytes;

impl Equivalent<TermKey> for Sought<'_> {
    fn equivalent(&self, term: &TermKey) -> bool {
        self.0 == term.0 && self.1 == &*term.1
    }
}

impl Weighter<TermKey, Entry> for ByBytes {
    fn weight(&self, term: &TermKey, entry: &Entry) -> u64 {
        let documents = entry.answer.iter().map(|(_, document)| document.byte_count() as u64 + DOCUMENT_OVERHEAD_BYTES);
        ANSWER_OVERHEAD_BYTES + term.1.len() as u64 + documents.sum::<u64>()
    }
}

impl AnswerCache {
    pub(super) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / 512).unwrap_or(usize::MAX).clamp(16, 10_000_000);
        AnswerCache {
            answers: Cache::with_weighter(expected_count, bytes.max(1), ByBytes),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
            incomplete: AtomicU64::new(0),
            watched: (0..WATCH_COUNT).map(|_| AtomicU64::new(UNWATCHED)).collect(),
            is_watching: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            hasher: hashbrown::DefaultHashBuilder::default(),
        }
    }

    /// The documents that have a term now, if an answer can tell.
    pub(super) fn get(&self, path: PathNumber, key: &[u8], numbered: &NumberedCache) -> Option<Answer> {
        let Entry { answer, as_of, slot } = self.answers.get(&Sought(path, key))?;
        let is_fresh = self.is_fresh(slot, as_of) && answer.iter().all(|(number, _)| numbered.stamp(*number) <= as_of);
        is_fresh.then_some(answer)
    }

    /// Keeps what a snapshot at `as_of` has for a term; watches its path, if that was not done.
    pub(super) fn put(&self, path: PathNumber, key: &[u8], answer: &Answer, as_of: Sequence) {
        let slot = self.slot(path, key);
        if self.watch(path) <= as_of.0 && self.is_fresh(slot, as_of) {
            self.answers.insert(TermKey(path, key.into()), Entry { answer: answer.clone(), as_of, slot });
        }
    }

    fn is_fresh(&self, slot: usize, as_of: Sequence) -> bool {
        self.stamps[slot].load(Ordering::Acquire) <= as_of.0 && self.incomplete.load(Ordering::Acquire) <= as_of.0
    }

    /// From which sequence on answers about a path count.
    ///
    /// A writer notes that it begins, then looks who is watched; whoever watches does so first, then looks who has begun. So a
    /// writer that did not see the watch has begun before, and what it writes is not beyond what is returned here.
    fn watch(&self, path: PathNumber) -> u64 {
        let slot = &self.watched[path.0 as usize % WATCH_COUNT];
        let known = slot.load(Ordering::SeqCst);
        if known != UNWATCHED {
            return known;
        }
        self.is_watching.store(true, Ordering::SeqCst);
        // Seen by writers, and good for no answer.
        _ = slot.compare_exchange(UNWATCHED, UNWATCHED - 1, Ordering::SeqCst, Ordering::SeqCst);
        let from = self.begun.load(Ordering::SeqCst);
        _ = slot.compare_exchange(UNWATCHED - 1, from, Ordering::SeqCst, Ordering::SeqCst);
        from
    }

    /// Notes that terms are about to be stamped with sequences up to this one; under the writer lock, before any is.
    pub(super) fn begin(&self, last: Sequence) {
        self.begun.fetch_max(last.0, Ordering::SeqCst);
    }

    /// Whether any term is to be stamped; to be asked after [`AnswerCache::begin`].
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::SeqCst)
    }

    /// Notes that a write at `sequence` changes which documents have a term.
    pub(super) fn touch(&self, path: PathNumber, key: &[u8], sequence: Sequence) {
        if self.watched[path.0 as usize % WATCH_COUNT].load(Ordering::SeqCst) != UNWATCHED {
            self.stamps[self.slot(path, key)].fetch_max(sequence.0, Ordering::AcqRel);
        }
    }

    /// Notes that a write at `sequence` leaves a document whose terms are incomplete.
    pub(super) fn touch_incomplete(&self, sequence: Sequence) {
        self.incomplete.fetch_max(sequence.0, Ordering::AcqRel);
    }

    fn slot(&self, path: PathNumber, key: &[u8]) -> usize {
        self.hasher.hash_one(Sought(path, key)) as usize % STAMP_COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathNumber = PathNumber(3);

    fn kept(answers: &AnswerCache, numbered: &NumberedCache) -> bool {
        answers.get(PATH, b"key", numbered).is_some()
    }

    #[test]
    fn an_answer_ends_with_a_write_to_its_term_or_one_that_may_have_it() {
        let (answers, numbered) = (AnswerCache::new(1 << 20), NumberedCache::new(1 << 20));
        let nobody: Answer = Arc::new([]);
        assert!(!kept(&answers, &numbered));
        answers.put(PATH, b"key", &nobody, Sequence(1));
        assert!(kept(&answers, &numbered));
        answers.begin(Sequence(2));
        answers.touch(PathNumber(4), b"key", Sequence(2));
        assert!(kept(&answers, &numbered));
        answers.touch(PATH, b"key", Sequence(2));
        assert!(!kept(&answers, &numbered));
        // A snapshot of before the write does not bring it back.
        answers.put(PATH, b"key", &nobody, Sequence(1));
        assert!(!kept(&answers, &numbered));
        answers.put(PATH, b"key", &nobody, Sequence(2));
        assert!(kept(&answers, &numbered));
        answers.touch_incomplete(Sequence(3));
        assert!(!kept(&answers, &numbered));
    }

    #[test]
    fn what_was_written_before_a_path_was_watched_is_not_missed() {
        let (answers, numbered) = (AnswerCache::new(1 << 20), NumberedCache::new(1 << 20));
        // Written, not yet published: no stamp tells of it.
        answers.begin(Sequence(5));
        answers.touch(PATH, b"key", Sequence(5));
        answers.put(PATH, b"key", &(Arc::new([]) as Answer), Sequence(4));
        assert!(!kept(&answers, &numbered));
        answers.put(PATH, b"key", &(Arc::new([]) as Answer), Sequence(5));
        assert!(kept(&answers, &numbered));
    }
}
