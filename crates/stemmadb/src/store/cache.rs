//! Documents read lately, found by id alone: a hot read is a hash look-up and touches neither memtable, tree nor log.
//!
//! Invariant: an entry answers only while no write has touched its id since the snapshot it was loaded from. Each write
//! stamps its sequence into the slot of its id's hash *before* it is published; a reader accepts an entry whose snapshot
//! is at least as new as the slot's stamp. Two ids in one slot can only cause a miss.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::revision::{DocumentId, Sequence};
use crate::store::document::Document;

/// Slots of write stamps: 512 KiB, so that few ids share one.
const STAMP_COUNT: usize = 1 << 16;

/// What an entry costs beside its record: key, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

pub(super) struct DocumentCache {
    entries: Cache<DocumentId, Entry, ByBytes>,
    stamps: Box<[AtomicU64]>,
    hasher: hashbrown::DefaultHashBuilder,
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

impl Weighter<DocumentId, Entry> for ByBytes {
    fn weight(&self, id: &DocumentId, entry: &Entry) -> u64 {
        ENTRY_OVERHEAD_BYTES + id.as_str().len() as u64 + entry.document.byte_count() as u64
    }
}

/// Looks an entry up by borrowed id.
#[derive(Hash)]
struct ById<'a>(&'a str);

impl Equivalent<DocumentId> for ById<'_> {
    fn equivalent(&self, id: &DocumentId) -> bool {
        self.0 == id.as_str()
    }
}

impl DocumentCache {
    /// A cache of at most `bytes`; zero turns it off.
    pub(super) fn new(bytes: u64) -> Self {
        let expected_count = usize::try_from(bytes / 512).unwrap_or(usize::MAX).clamp(16, 10_000_000);
        DocumentCache {
            entries: Cache::with_weighter(expected_count, bytes.max(1), ByBytes),
            stamps: (0..STAMP_COUNT).map(|_| AtomicU64::new(0)).collect(),
            hasher: hashbrown::DefaultHashBuilder::default(),
            enabled: bytes > 0,
        }
    }

    /// The document `id` as of the snapshot `at`, if an entry can tell.
    pub(super) fn get(&self, id: &str, at: Sequence) -> Option<Document> {
        if !self.enabled {
            return None;
        }
        let entry = self.entries.get(&ById(id))?;
        let fresh = self.stamp(id).load(Ordering::Acquire) <= entry.as_of.0;
        (fresh && entry.document.sequence() <= at).then_some(entry.document)
    }

    /// Keeps `document`, which was read from a snapshot at `as_of`.
    pub(super) fn put(&self, document: &Document, as_of: Sequence) {
        if self.enabled && self.stamp(document.id().as_str()).load(Ordering::Acquire) <= as_of.0 {
            self.entries.insert(document.id().clone(), Entry { document: document.clone(), as_of });
        }
    }

    /// Notes that a write at `sequence` touches `id`; to be called before that write is published.
    pub(super) fn touch(&self, id: &str, sequence: Sequence) {
        self.stamp(id).fetch_max(sequence.0, Ordering::AcqRel);
    }

    fn stamp(&self, id: &str) -> &AtomicU64 {
        &self.stamps[self.hasher.hash_one(id) as usize % STAMP_COUNT]
    }
}
