//! Write stamps: for each document and each term, the last write that changed it. They decide whether a cached document
//! or result is still current.
//!
//! Before it is published, each write stamps its sequence into the slot of its document's number and into the slots of
//! the terms it changes, for paths that are *watched*. A path is watched once its first result is cached; a result is
//! cached only if its snapshot includes all writes that did not see the watch. Documents or terms that share a slot can
//! only cause a miss.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::index::{DocumentNumber, PathNumber};
use crate::revision::Sequence;

/// The fewest and the most slots of documents. Numbers that differ by their count share one.
const SLOTS_MIN: usize = 1 << 8;
const SLOTS_MAX: usize = 1 << 16;
/// There is one slot of documents for this many bytes of the cache.
const BYTES_A_SLOT: u64 = 512;
/// There are this many times fewer slots of terms, and of watched paths; paths that share one are watched together.
const TERM_SHARE: usize = 4;
const WATCH_SHARE: usize = 64;
/// The slot value of a path that is not watched.
const UNWATCHED: u64 = u64::MAX;

/// The number of slots that are allocated together.
const CHUNK_SLOTS: usize = 256;

/// Slots that begin at zero. They take memory from their first write on: a process may have thousands of databases.
struct Slots(Box<[OnceLock<Box<[AtomicU64]>>]>);

impl Slots {
    fn new(count: usize) -> Self {
        Slots((0..count.div_ceil(CHUNK_SLOTS)).map(|_| OnceLock::new()).collect())
    }

    fn count(&self) -> usize {
        self.0.len() * CHUNK_SLOTS
    }

    #[inline]
    fn load(&self, slot: usize) -> u64 {
        self.0[slot / CHUNK_SLOTS].get().map_or(0, |chunk| chunk[slot % CHUNK_SLOTS].load(Ordering::Acquire))
    }

    fn raise(&self, slot: usize, value: u64) {
        let chunk = self.0[slot / CHUNK_SLOTS].get_or_init(|| (0..CHUNK_SLOTS).map(|_| AtomicU64::new(0)).collect());
        chunk[slot % CHUNK_SLOTS].fetch_max(value, Ordering::AcqRel);
    }

    /// Memory used once all slots are written, in bytes.
    fn byte_count(&self) -> usize {
        size_of_val(&*self.0) + self.count() * size_of::<AtomicU64>()
    }
}

pub(super) struct WriteStamps {
    documents: Slots,
    /// The last change of each term's set of documents.
    terms: Slots,
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

/// The slot of a term.
#[derive(Clone, Copy)]
pub(super) struct TermSlot(usize);

impl WriteStamps {
    /// Creates stamps for a cache of this size.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let count = usize::try_from(cache_bytes / BYTES_A_SLOT).unwrap_or(SLOTS_MAX);
        let count = count.clamp(SLOTS_MIN, SLOTS_MAX).next_power_of_two();
        WriteStamps {
            documents: Slots::new(count),
            terms: Slots::new(count / TERM_SHARE),
            incomplete: AtomicU64::new(0),
            watched: (0..count / WATCH_SHARE).map(|_| AtomicU64::new(UNWATCHED)).collect(),
            is_watching: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            hasher: hashbrown::DefaultHashBuilder::default(),
        }
    }

    /// Memory used, in bytes.
    pub(super) fn byte_count(&self) -> u64 {
        (self.documents.byte_count() + self.terms.byte_count() + size_of_val(&*self.watched)) as u64
    }

    /// The newest write of a document, or of one that shares its slot.
    pub(super) fn document(&self, number: DocumentNumber) -> Sequence {
        Sequence(self.documents.load(self.document_slot(number)))
    }

    /// Stamps a document that a write at `sequence` changes. Call it before that write is published.
    pub(super) fn touch_document(&self, number: DocumentNumber, sequence: Sequence) {
        self.documents.raise(self.document_slot(number), sequence.0);
    }

    fn document_slot(&self, number: DocumentNumber) -> usize {
        number.0 as usize % self.documents.count()
    }

    /// Whether no write has changed the set of documents that have a term since `as_of`.
    pub(super) fn is_term_unchanged(&self, slot: TermSlot, as_of: Sequence) -> bool {
        self.terms.load(slot.0) <= as_of.0 && self.incomplete.load(Ordering::Acquire) <= as_of.0
    }

    /// The slot of a term.
    pub(super) fn term_slot(&self, path: PathNumber, key: &[u8]) -> TermSlot {
        TermSlot(self.hasher.hash_one((path, key)) as usize % self.terms.count())
    }

    fn watched_slot(&self, path: PathNumber) -> &AtomicU64 {
        &self.watched[path.0 as usize % self.watched.len()]
    }

    /// Starts to watch a path if necessary. Returns the sequence from which results of the path may be cached.
    ///
    /// A writer first announces itself, then reads which paths are watched; a reader first sets the watch, then reads
    /// which writers have begun. So a writer that did not see the watch has begun before, and its sequences are not
    /// above the one returned here.
    pub(super) fn watch(&self, path: PathNumber) -> Sequence {
        let slot = self.watched_slot(path);
        let known = slot.load(Ordering::SeqCst);
        if known != UNWATCHED {
            return Sequence(known);
        }
        self.is_watching.store(true, Ordering::SeqCst);
        // Writers see this value; no result is new enough for it.
        _ = slot.compare_exchange(UNWATCHED, UNWATCHED - 1, Ordering::SeqCst, Ordering::SeqCst);
        let from = self.begun.load(Ordering::SeqCst);
        _ = slot.compare_exchange(UNWATCHED - 1, from, Ordering::SeqCst, Ordering::SeqCst);
        Sequence(from)
    }

    /// Announces that documents and terms are about to be stamped with sequences up to `last`. Called under the writer
    /// lock, before any is stamped.
    pub(super) fn begin(&self, last: Sequence) {
        self.begun.fetch_max(last.0, Ordering::SeqCst);
    }

    /// Whether terms have to be stamped. Call it after [`WriteStamps::begin`].
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::SeqCst)
    }

    /// Stamps a term whose set of documents a write at `sequence` changes.
    pub(super) fn touch_term(&self, path: PathNumber, key: &[u8], sequence: Sequence) {
        debug_assert!(sequence.0 <= self.begun.load(Ordering::SeqCst), "stamps are announced before they are set");
        if self.watched_slot(path).load(Ordering::SeqCst) != UNWATCHED {
            self.terms.raise(self.term_slot(path, key).0, sequence.0);
        }
    }

    /// Records that a write at `sequence` leaves a document with incomplete terms.
    pub(super) fn touch_incomplete(&self, sequence: Sequence) {
        self.incomplete.fetch_max(sequence.0, Ordering::AcqRel);
    }
}
