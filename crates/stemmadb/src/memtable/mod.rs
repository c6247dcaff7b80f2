//! Memtables: recent documents and their index changes, held in memory until a checkpoint merges them into the tree.
//!
//! Invariants:
//! - Nothing is changed in place: a document's states and a term's deltas are only appended, in sequence order. A
//!   reader that ignores entries newer than its own sequence therefore always sees the same result. The locations of
//!   attachment contents do change, but a digest names the same bytes wherever they are.
//! - Applying a memtable to a tree that already contains part of it gives the same result as applying it to one that
//!   does not.
//!
//! Concurrency: one writer (the holder of the store's writer lock) inserts; any number of readers read at the same
//! time. A sealed memtable is no longer written to.

mod bulk;
mod id_order;
mod signatures;
mod terms;

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use smallvec::SmallVec;

use crate::index::{DocumentNumber, PathNumber, Presence, TermDifference};
use crate::log::{Digest, LogPosition};
use crate::revision::{DocumentId, RevisionTree, Sequence};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::value::Body;

pub(crate) use bulk::BulkTable;
use id_order::{IdOrder, ORDERED_BYTES};
use signatures::Signatures;
use terms::PathTerms;
pub(crate) use terms::{ChangedTerm, MemtableTermWalk, PostingOverlay, TermBatch};

/// Location of a stored revision in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredRevision {
    /// Start of its record.
    pub(crate) position: LogPosition,
    /// Length of the record in bytes.
    pub(crate) length: u32,
    /// Number of ancestors that the record itself contains: the log needs no older record for these.
    pub(crate) logged_ancestors: u32,
}

/// Location of a record in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    /// Start of the record.
    pub(crate) position: LogPosition,
    /// Length in bytes.
    pub(crate) length: u32,
}

/// How a document's state is rebuilt from its log records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayMode {
    /// Applying all of the document's records gives its state, in any order.
    AnyOrder,
    /// The records contain more than the state, because ancestors were pruned or a claimed ancestry was rejected: only
    /// applying all of them in the order in which they were written gives the state.
    InOrder,
    /// The snapshot record at this location contains the state at the time it was written; older records are ignored.
    Snapshot(RecordLocation),
}

impl ReplayMode {
    /// The mode after a write. `is_too_much`: its record contains more than what the write changed in the state.
    #[must_use]
    pub(crate) fn after(self, is_too_much: bool) -> Self {
        match self {
            ReplayMode::AnyOrder if is_too_much => ReplayMode::InOrder,
            replay_mode => replay_mode,
        }
    }
}

/// The state of a document after one write.
#[derive(Debug, Clone)]
pub(crate) struct DocumentState {
    pub(crate) number: DocumentNumber,
    pub(crate) id: DocumentId,
    /// Sequence of its latest written revision.
    pub(crate) sequence: Sequence,
    pub(crate) tree: RevisionTree<StoredRevision>,
    pub(crate) replay_mode: ReplayMode,
    /// The winner's body, if it was written to this memtable.
    pub(crate) body: Option<Body>,
}

impl DocumentState {
    /// Whether the winner is a live revision, not a deletion.
    pub(crate) fn is_live(&self) -> bool {
        self.tree.winner().is_some_and(|leaf| !leaf.deleted)
    }

    /// The highest generation of its revisions.
    pub(crate) fn newest_generation(&self) -> u32 {
        self.tree.leaves().map(|leaf| leaf.revision.generation()).max().unwrap_or(0)
    }

    /// Whether a snapshot record must be written before any of the document's records may be discarded. Not needed if
    /// the document's history is, and always was, known back to its first revision.
    pub(crate) fn needs_snapshot_record(&self) -> bool {
        self.replay_mode != ReplayMode::AnyOrder || !self.tree.is_complete()
    }

    /// The records that are still needed: those of its leaves and its snapshot record.
    pub(crate) fn record_locations(&self) -> impl Iterator<Item = RecordLocation> {
        let leaves =
            self.tree.leaves().filter(|leaf| leaf.payload != StoredRevision::GONE).map(|leaf| leaf.payload.location());
        leaves.chain(match self.replay_mode {
            ReplayMode::Snapshot(location) => Some(location),
            ReplayMode::AnyOrder | ReplayMode::InOrder => None,
        })
    }
}

impl StoredRevision {
    /// Location of a revision that is a leaf only during replay: it was a leaf according to a snapshot record, but its
    /// own record was discarded. A later record in the log replaces it.
    pub(crate) const GONE: StoredRevision =
        StoredRevision { position: LogPosition::new(0, 1), length: 0, logged_ancestors: 0 };

    pub(crate) fn location(&self) -> RecordLocation {
        RecordLocation { position: self.position, length: self.length }
    }
}

/// One version of a `_local` document.
#[derive(Debug, Clone)]
pub(crate) struct LocalState {
    /// Number of its writes: the `N` of its revision `0-N`.
    pub(crate) generation: u64,
    pub(crate) deleted: bool,
    pub(crate) stored: StoredRevision,
    pub(crate) body: Body,
}

/// What a memtable has recorded of an attachment's content in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggedContent {
    /// The content's newest record in this memtable; none if there is only its removal. It stays readable to the
    /// snapshots that hold this memtable, even after the removal.
    pub(crate) location: Option<RecordLocation>,
    /// Whether the content was removed after that.
    pub(crate) is_removed: bool,
}

impl LoggedContent {
    /// The record that must be kept.
    pub(crate) fn live(&self) -> Option<RecordLocation> {
        self.location.filter(|_| !self.is_removed)
    }
}

/// A memtable: documents and index deltas that are not in the tree yet.
pub(crate) struct Memtable {
    /// The ids of a prefix of [`MemtableData::arrivals`], in order; extended when a range is read. Locked before
    /// `inner`.
    order: RwLock<IdOrder>,
    inner: RwLock<MemtableData>,
    byte_count: AtomicUsize,
    /// Bytes of the attachment contents in the log that the tree does not have yet.
    content_bytes: AtomicUsize,
}

/// The versions of a `_local` document, oldest first, each with the sequence from which it is visible.
type LocalVersions = SmallVec<[(Sequence, Arc<LocalState>); 1]>;

#[derive(Default)]
struct MemtableData {
    numbers: HashMap<DocumentId, DocumentNumber>,
    /// The documents in the order of their first insertion.
    arrivals: Vec<DocumentNumber>,
    documents: HashMap<DocumentNumber, SmallVec<[Arc<DocumentState>; 1]>>,
    by_sequence: Vec<(Sequence, DocumentNumber)>,
    paths: HashMap<PathNumber, PathTerms>,
    signatures: Signatures,
    locals: HashMap<String, LocalVersions>,
    contents: HashMap<Digest, LoggedContent>,
}

/// Memory used by an entry in addition to its own bytes: hash slots, reference counts, vector headers. Measured, not
/// exact.
const DOCUMENT_OVERHEAD_BYTES: usize = 320;
/// Memory used by an entry of `contents`: digest, location, hash slots.
const CONTENT_OVERHEAD_BYTES: usize = 96;

impl Memtable {
    pub(crate) fn new() -> Self {
        Memtable {
            order: RwLock::default(),
            inner: RwLock::default(),
            byte_count: AtomicUsize::new(0),
            content_bytes: AtomicUsize::new(0),
        }
    }

    /// An empty memtable with room for what a full one has, so that filling it moves nothing.
    pub(crate) fn with_room_of(full: &Memtable) -> Self {
        let full = full.inner.read();
        let data = MemtableData {
            numbers: HashMap::with_capacity(full.numbers.len()),
            documents: HashMap::with_capacity(full.documents.len()),
            paths: full.paths.iter().map(|(path, terms)| (*path, PathTerms::with_room_of(terms))).collect(),
            ..MemtableData::default()
        };
        Memtable { inner: RwLock::new(data), ..Memtable::new() }
    }

    /// Approximate memory use in bytes.
    pub(crate) fn byte_count(&self) -> usize {
        self.byte_count.load(Ordering::Relaxed)
    }

    /// The bytes in the log of the attachment contents that were inserted. They take no memory here, but recovery reads
    /// them until a checkpoint has merged this memtable.
    pub(crate) fn content_bytes(&self) -> usize {
        self.content_bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted.
    pub(crate) fn is_empty(&self) -> bool {
        self.byte_count() == 0
    }

    /// Adds the state of a document after a write and the resulting changes to the index. `is_event`: whether the write
    /// appears in the changes feed; a record rewritten by compaction does not.
    pub(crate) fn insert(&self, state: Arc<DocumentState>, is_event: bool, difference: TermDifference<'_>) {
        let sequence = state.sequence;
        let body_bytes = state.body.as_ref().map_or(0, Body::byte_count);
        let mut bytes = DOCUMENT_OVERHEAD_BYTES + state.id.as_str().len() + body_bytes + state.tree.heap_bytes();
        let mut inner = self.inner.write();
        let previous = inner.documents.get(&state.number).and_then(|states| states.last());
        debug_assert!(
            previous.is_none_or(|previous| previous.sequence <= sequence && previous.id == state.id),
            "states of a document are appended in sequence order and keep its id"
        );
        for term in difference.removed_terms() {
            bytes += inner.paths.entry(term.path).or_default().push(term.key, state.number, sequence, false);
        }
        for term in difference.added_terms() {
            bytes += inner.paths.entry(term.path).or_default().push(term.key, state.number, sequence, true);
        }
        let removed: SmallVec<[_; 32]> = difference.removed_presence().collect();
        let added: SmallVec<[_; 32]> = difference.added_presence().collect();
        bytes += inner.signatures.push(&removed, state.number, sequence, false);
        bytes += inner.signatures.push(&added, state.number, sequence, true);
        if is_event {
            // Appended, except for records that recovery finds where compaction moved them.
            let position = inner.by_sequence.partition_point(|event| event.0 < sequence);
            inner.by_sequence.insert(position, (sequence, state.number));
        }
        if let EntryRef::Vacant(entry) = inner.numbers.entry_ref(&state.id) {
            entry.insert(state.number);
            inner.arrivals.push(state.number);
        }
        inner.documents.entry(state.number).or_default().push(state);
        drop(inner);
        self.byte_count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds terms at a newly indexed path for existing documents, visible from `sequence` on.
    pub(crate) fn insert_terms<'t>(
        &self,
        path: PathNumber,
        sequence: Sequence,
        terms: impl IntoIterator<Item = (DocumentNumber, &'t [u8])>,
    ) {
        let mut inner = self.inner.write();
        let at_path = inner.paths.entry(path).or_default();
        let bytes: usize = terms.into_iter().map(|(number, key)| at_path.push(key, number, sequence, true)).sum();
        drop(inner);
        self.byte_count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds a version of the `_local` document `id`, visible from `sequence` on.
    pub(crate) fn insert_local(&self, id: &str, sequence: Sequence, state: LocalState) {
        let bytes = DOCUMENT_OVERHEAD_BYTES + id.len() + state.body.byte_count();
        self.inner.write().locals.entry_ref(id).or_default().push((sequence, Arc::new(state)));
        self.byte_count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records where the log has an attachment's content; none if it was removed.
    pub(crate) fn insert_content(&self, digest: Digest, location: Option<RecordLocation>) {
        let mut inner = self.inner.write();
        let older = inner.contents.get(&digest).and_then(|content| content.location);
        let content = LoggedContent { location: location.or(older), is_removed: location.is_none() };
        inner.contents.insert(digest, content);
        drop(inner);
        self.byte_count.fetch_add(CONTENT_OVERHEAD_BYTES, Ordering::Relaxed);
        let content_bytes = location.map_or(0, |location| location.length as usize);
        self.content_bytes.fetch_add(content_bytes, Ordering::Relaxed);
    }

    /// What is recorded of an attachment's content.
    pub(crate) fn content(&self, digest: &Digest) -> Option<LoggedContent> {
        self.inner.read().contents.get(digest).copied()
    }

    /// All recorded attachment contents, sorted by digest.
    pub(crate) fn contents(&self) -> Vec<(Digest, LoggedContent)> {
        let mut contents: Vec<_> =
            self.inner.read().contents.iter().map(|(digest, content)| (*digest, *content)).collect();
        contents.sort_unstable_by_key(|(digest, _)| *digest);
        contents
    }

    /// The state of document `number` as of `at`, if this memtable has one.
    pub(crate) fn document(&self, number: DocumentNumber, at: Sequence) -> Option<Arc<DocumentState>> {
        self.inner.read().document(number, at)
    }

    /// The state of document `id` as of `at`, if this memtable has one.
    pub(crate) fn document_by_id(&self, id: &str, at: Sequence) -> Option<Arc<DocumentState>> {
        let inner = self.inner.read();
        let number = *inner.numbers.get(id)?;
        inner.document(number, at)
    }

    /// The version of the `_local` document `id` as of `at`.
    pub(crate) fn local(&self, id: &str, at: Sequence) -> Option<Arc<LocalState>> {
        let inner = self.inner.read();
        let states = inner.locals.get(id)?;
        states.iter().rev().find(|(sequence, _)| *sequence <= at).map(|(_, state)| state.clone())
    }

    /// The versions, as of `at`, of the `_local` documents whose ids start with `prefix`, in no particular order. Cost:
    /// scans all ids.
    pub(crate) fn locals(&self, prefix: &str, at: Sequence) -> Vec<(String, Arc<LocalState>)> {
        let inner = self.inner.read();
        let wanted = inner.locals.iter().filter(|(id, _)| id.starts_with(prefix));
        let newest = wanted.filter_map(|(id, states)| {
            let (_, state) = states.iter().rev().find(|(sequence, _)| *sequence <= at)?;
            Some((id.clone(), state.clone()))
        });
        newest.collect()
    }

    /// The highest number of a document written up to `at`. Cost: scans all events.
    pub(crate) fn last_number(&self, at: Sequence) -> Option<DocumentNumber> {
        let inner = self.inner.read();
        inner.by_sequence.iter().take_while(|event| event.0 <= at).map(|event| event.1).max()
    }

    /// Up to `limit` feed events after `after` and up to `at`, in order, including superseded ones.
    pub(crate) fn events(&self, after: Sequence, at: Sequence, limit: usize) -> Vec<(Sequence, DocumentNumber)> {
        let inner = self.inner.read();
        let start = inner.by_sequence.partition_point(|event| event.0 <= after);
        inner.by_sequence[start..].iter().take_while(|event| event.0 <= at).take(limit).copied().collect()
    }

    /// Every document as of `at`, in no particular order.
    pub(crate) fn documents(&self, at: Sequence) -> Vec<Arc<DocumentState>> {
        let inner = self.inner.read();
        inner.arrivals.iter().filter_map(|number| inner.document(*number, at)).collect()
    }

    /// The documents as of `at` in id order, from the first id whose bytes are not below `lower` to the last one before
    /// `is_past`. Cost: proportional to the result, plus sorting the ids inserted since the last range read.
    pub(crate) fn documents_between(
        &self,
        at: Sequence,
        lower: &[u8],
        is_past: impl Fn(&[u8]) -> bool,
    ) -> Vec<Arc<DocumentState>> {
        self.order_arrivals();
        let order = self.order.read();
        let inner = self.inner.read();
        order.between(lower, is_past).filter_map(|number| inner.document(number, at)).collect()
    }

    /// Adds the ids inserted since the last call to the sorted ids.
    fn order_arrivals(&self) {
        let is_done = |order: &IdOrder| order.len() == self.inner.read().arrivals.len();
        if is_done(&self.order.read()) {
            return;
        }
        let mut order = self.order.write();
        let inner = self.inner.read();
        debug_assert!(order.len() <= inner.arrivals.len(), "ids are only added to a memtable");
        let arrivals = inner.arrivals[order.len()..].iter();
        self.byte_count.fetch_add(arrivals.len() * ORDERED_BYTES, Ordering::Relaxed);
        order.add(arrivals.map(|number| (inner.documents[number][0].id.clone(), *number)));
    }

    /// Adds the changes to the set of documents that have a term to `overlay`.
    pub(crate) fn term(&self, path: PathNumber, key: &[u8], at: Sequence, overlay: &mut PostingOverlay) {
        if let Some(terms) = self.inner.read().paths.get(&path) {
            terms.overlay(key, at, overlay);
        }
    }

    /// Adds the changes to the set of documents that have `presence` at `path` to `overlay`.
    pub(crate) fn presence(&self, path: PathNumber, presence: Presence, at: Sequence, overlay: &mut PostingOverlay) {
        self.inner.read().signatures.overlay(path, presence, at, overlay);
    }

    /// Whether it contains changes to the terms of a path.
    pub(crate) fn has_terms(&self, path: PathNumber) -> bool {
        self.term_count(path) > 0
    }

    /// The newest state of every document, by number, for a checkpoint to merge.
    pub(crate) fn newest_documents(&self) -> Vec<Arc<DocumentState>> {
        let inner = self.inner.read();
        let mut newest: Vec<_> = inner.documents.values().filter_map(|states| states.last().cloned()).collect();
        newest.sort_unstable_by_key(|state| state.number);
        newest
    }

    /// The newest version of every `_local` document.
    pub(crate) fn newest_locals(&self) -> Vec<(String, Arc<LocalState>)> {
        let inner = self.inner.read();
        inner
            .locals
            .iter()
            .filter_map(|(id, states)| states.last().map(|(_, state)| (id.clone(), state.clone())))
            .collect()
    }

    /// The number of distinct terms at a path that have changes.
    pub(crate) fn term_count(&self, path: PathNumber) -> usize {
        self.inner.read().paths.get(&path).map_or(0, PathTerms::term_count)
    }

    /// About how many rows of the tree its documents and terms change.
    pub(crate) fn entry_count(&self) -> usize {
        /// Rows of `ids`, `docs` and `sequences`.
        const ROWS_PER_DOCUMENT: usize = 3;
        let inner = self.inner.read();
        let term_count: usize = inner.paths.values().map(PathTerms::term_count).sum();
        term_count + ROWS_PER_DOCUMENT * inner.documents.len() + inner.contents.len()
    }

    /// The paths with at least one delta, ascending.
    pub(crate) fn paths(&self) -> Vec<PathNumber> {
        let inner = self.inner.read();
        let changed = inner.paths.iter().filter(|(_, terms)| terms.term_count() > 0);
        let mut paths: Vec<_> = changed.map(|(path, _)| *path).collect();
        paths.sort_unstable();
        paths
    }

    /// Every (path, presence) with at least one delta, ascending.
    pub(crate) fn presences(&self) -> Vec<(PathNumber, Presence)> {
        self.inner.read().signatures.all()
    }
}

impl MemtableData {
    fn document(&self, number: DocumentNumber, at: Sequence) -> Option<Arc<DocumentState>> {
        let states = self.documents.get(&number)?;
        states.iter().rev().find(|state| state.sequence <= at).cloned()
    }
}
