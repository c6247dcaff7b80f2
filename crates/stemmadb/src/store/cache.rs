//! Documents read lately, found by id or, as rows of queries, by number: a hot read is a hash look-up and touches neither
//! memtable, tree nor log.
//!
//! Invariant: an entry answers only while no write has touched its id since the snapshot it was loaded from. Each write
//! stamps its sequence into the slot of its id's hash *before* it is published; a reader accepts an entry whose snapshot
//! is at least as new as the slot's stamp. Two ids in one slot can only cause a miss.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Equivalent, Weighter, sync::Cache};

use crate::index::DocumentNumber;
use crate::revision::{DocumentId, Sequence};
use crate::store::document::Document;

/// Slots of write stamps: 512 KiB, so that few ids share one.
const STAMP_COUNT: usize = 1 << 16;

/// What an entry costs beside its record: key, hash slot, reference counts.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

pub(super) struct DocumentCache {
    entries: Cache<Key, Entry, ByBytes>,
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

/// A document that is read both ways is kept twice.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Id(DocumentId),
    Number(DocumentNumber),
}

/// A borrowed [`Key`], with the same hash.
#[derive(Hash)]
enum Sought<'a> {
    Id(&'a str),
    Number(DocumentNumber),
}

impl Equivalent<Key> for Sought<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        match (self, key) {
            (Sought::Id(sought), Key::Id(id)) => *sought == id.as_str(),
            (Sought::Number(sought), Key::Number(number)) => sought == number,
            _ => false,
        }
    }
}

impl Weighter<Key, Entry> for ByBytes {
    fn weight(&self, _: &Key, entry: &Entry) -> u64 {
        ENTRY_OVERHEAD_BYTES + entry.document.id().as_str().len() as u64 + entry.document.byte_count() as u64
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
        self.find(&Sought::Id(id), at)
    }

    /// The document `number` as of the snapshot `at`, if an entry can tell.
    pub(super) fn get_by_number(&self, number: DocumentNumber, at: Sequence) -> Option<Document> {
        self.find(&Sought::Number(number), at)
    }

    fn find(&self, sought: &Sought<'_>, at: Sequence) -> Option<Document> {
        if !self.enabled {
            return None;
        }
        let Entry { document, as_of } = self.entries.get(sought)?;
        let is_fresh = self.stamp(document.id().as_str()).load(Ordering::Acquire) <= as_of.0;
        (is_fresh && document.sequence() <= at).then_some(document)
    }

    /// Keeps `document`, which was read from a snapshot at `as_of`, to be found by its id.
    pub(super) fn put(&self, document: &Document, as_of: Sequence) {
        self.keep(Key::Id(document.id().clone()), document, as_of);
    }

    /// Keeps `document`, which was read from a snapshot at `as_of`, to be found by its number.
    pub(super) fn put_by_number(&self, number: DocumentNumber, document: &Document, as_of: Sequence) {
        self.keep(Key::Number(number), document, as_of);
    }

    fn keep(&self, key: Key, document: &Document, as_of: Sequence) {
        if self.enabled && self.stamp(document.id().as_str()).load(Ordering::Acquire) <= as_of.0 {
            self.entries.insert(key, Entry { document: document.clone(), as_of });
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
