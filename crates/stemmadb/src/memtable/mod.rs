//! What is not reduced yet? Recent documents and the changes they make to the index, in memory, until a checkpoint merges them into the tree.
//!
//! Invariants:
//! - Nothing is ever changed in place: a document's states and a term's deltas are only appended, in sequence order, so a
//!   reader that ignores what is newer than its own sequence sees the same answer for ever.
//! - Applying a memtable over a tree that already holds part of it gives the same result as over one that does not.
//!
//! Concurrency: one writer (who holds the store's writer lock) inserts; any number of readers look up at the same time. A
//! sealed memtable is no longer written to.

mod id_order;
mod terms;

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use smallvec::SmallVec;

use crate::index::{DocumentNumber, PathNumber, Presence, TermDifference};
use crate::log::LogPosition;
use crate::revision::{DocumentId, RevisionTree, Sequence};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::value::Body;

use id_order::{IdOrder, ORDERED_BYTES};
pub(crate) use terms::{Overlay, Walk};
use terms::{PathTerms, Signatures};

/// Where the log keeps one written revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Where its record starts.
    pub(crate) position: LogPosition,
    /// The record's length in bytes.
    pub(crate) length: u32,
    /// How many ancestors the record itself names: the log needs no older record for these.
    pub(crate) logged_ancestors: u32,
}

/// Where a record of the log lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where it starts.
    pub(crate) position: LogPosition,
    /// Its length in bytes.
    pub(crate) length: u32,
}

/// How the log tells what is known of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// All its records together tell just that, in any order.
    Exactly,
    /// They tell more, since ancestors were forgotten or a claim was not believed: only all of them, in the order in which they were
    /// written, lead to what is known.
    TooMuch,
    /// The record there states what was known when it was written; what is older counts for nothing.
    Stated(Place),
}

impl Told {
    /// After a write whose record does, or does not, tell more than became known.
    #[must_use]
    pub(crate) fn after(self, is_too_much: bool) -> Self {
        match self {
            Told::Exactly if is_too_much => Told::TooMuch,
            told => told,
        }
    }
}

/// Everything the database knows of one document after one write.
#[derive(Debug, Clone)]
pub(crate) struct DocumentState {
    pub(crate) number: DocumentNumber,
    pub(crate) id: DocumentId,
    /// The sequence of its latest written revision.
    pub(crate) sequence: Sequence,
    pub(crate) tree: RevisionTree<Stored>,
    pub(crate) told: Told,
    /// The winner's body, when this memtable saw it written.
    pub(crate) body: Option<Body>,
}

impl DocumentState {
    /// Whether the winner is not a deletion.
    pub(crate) fn is_live(&self) -> bool {
        self.tree.winner().is_some_and(|leaf| !leaf.deleted)
    }

    /// Whether the log has to state what is known before it may give up any of the document's records. Of a document whose history is known
    /// to its beginning, and never was unknown, it has not.
    pub(crate) fn is_to_be_stated(&self) -> bool {
        self.told != Told::Exactly || !self.tree.is_complete()
    }

    /// The records that are still needed for themselves: those of its leaves, and the one that states what is known.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        let leaves = self.tree.leaves().filter(|leaf| leaf.payload != Stored::GONE).map(|leaf| leaf.payload.place());
        leaves.chain(match self.told {
            Told::Stated(place) => Some(place),
            Told::Exactly | Told::TooMuch => None,
        })
    }
}

impl Stored {
    /// Of a revision that is a leaf only while the log is replayed: by a statement, it was one, but its record is given up. What replaced it
    /// follows in the log.
    pub(crate) const GONE: Stored = Stored { position: LogPosition::new(0, 1), length: 0, logged_ancestors: 0 };

    pub(crate) fn place(&self) -> Place {
        Place { position: self.position, length: self.length }
    }
}

/// One version of a `_local` document.
#[derive(Debug, Clone)]
pub(crate) struct LocalState {
    /// Counts its writes: the `N` of its revision `0-N`.
    pub(crate) generation: u64,
    pub(crate) deleted: bool,
    pub(crate) stored: Stored,
    pub(crate) body: Body,
}

/// Documents and index deltas that the tree does not hold yet.
pub(crate) struct Memtable {
    /// Of the first [`Inner::arrivals`], as many as were there when a range was asked for last. Locked before `inner`.
    order: RwLock<IdOrder>,
    inner: RwLock<Inner>,
    byte_count: AtomicUsize,
}

/// The versions of a `_local` document, oldest first, each with the sequence from which it shows.
type LocalVersions = SmallVec<[(Sequence, Arc<LocalState>); 1]>;

#[derive(Default)]
struct Inner {
    numbers: HashMap<DocumentId, DocumentNumber>,
    /// The documents, in the order in which they came.
    arrivals: Vec<DocumentNumber>,
    documents: HashMap<DocumentNumber, SmallVec<[Arc<DocumentState>; 1]>>,
    by_sequence: Vec<(Sequence, DocumentNumber)>,
    paths: HashMap<PathNumber, PathTerms>,
    signatures: Signatures,
    locals: HashMap<String, LocalVersions>,
}

/// What an entry costs beside its own bytes: hash slots, reference counts, vector headers. Measured, not exact.
const DOCUMENT_OVERHEAD_BYTES: usize = 320;

impl Memtable {
    pub(crate) fn new() -> Self {
        Memtable { order: RwLock::default(), inner: RwLock::default(), byte_count: AtomicUsize::new(0) }
    }

    /// About how many bytes it holds.
    pub(crate) fn byte_count(&self) -> usize {
        self.byte_count.load(Ordering::Relaxed)
    }

    /// Whether nothing was written to it.
    pub(crate) fn is_empty(&self) -> bool {
        self.byte_count() == 0
    }

    /// Adds the state a write left a document in, and what that changes in the index. `is_event` says whether the feed tells
    /// of it: a record that compaction wrote again is none.
    pub(crate) fn insert(&self, state: Arc<DocumentState>, is_event: bool, difference: TermDifference<'_>) {
        let sequence = state.sequence;
        let body_bytes = state.body.as_ref().map_or(0, Body::byte_count);
        let mut bytes = DOCUMENT_OVERHEAD_BYTES + state.id.as_str().len() + body_bytes + state.tree.heap_bytes();
        let mut inner = self.inner.write();
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
            // At the end, but for records that recovery finds where compaction put them.
            let place = inner.by_sequence.partition_point(|event| event.0 < sequence);
            inner.by_sequence.insert(place, (sequence, state.number));
        }
        if let EntryRef::Vacant(place) = inner.numbers.entry_ref(&state.id) {
            place.insert(state.number);
            inner.arrivals.push(state.number);
        }
        inner.documents.entry(state.number).or_default().push(state);
        drop(inner);
        self.byte_count.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds terms at one path that documents had before they were indexed there, visible from `sequence` on.
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

    /// The versions, as of `at`, of the `_local` documents whose ids begin with `prefix`, in no order. Costs a look at every id.
    pub(crate) fn locals(&self, prefix: &str, at: Sequence) -> Vec<(String, Arc<LocalState>)> {
        let inner = self.inner.read();
        let wanted = inner.locals.iter().filter(|(id, _)| id.starts_with(prefix));
        let newest = wanted.filter_map(|(id, states)| {
            let (_, state) = states.iter().rev().find(|(sequence, _)| *sequence <= at)?;
            Some((id.clone(), state.clone()))
        });
        newest.collect()
    }

    /// The highest number of a document that was written up to `at`. Costs a look at every event.
    pub(crate) fn last_number(&self, at: Sequence) -> Option<DocumentNumber> {
        let inner = self.inner.read();
        inner.by_sequence.iter().take_while(|event| event.0 <= at).map(|event| event.1).max()
    }

    /// Up to `limit` events of the feed after `after` and up to `at`, in order; superseded ones included.
    pub(crate) fn events(&self, after: Sequence, at: Sequence, limit: usize) -> Vec<(Sequence, DocumentNumber)> {
        let inner = self.inner.read();
        let start = inner.by_sequence.partition_point(|event| event.0 <= after);
        inner.by_sequence[start..].iter().take_while(|event| event.0 <= at).take(limit).copied().collect()
    }

    /// Every document as of `at`, in no order.
    pub(crate) fn documents(&self, at: Sequence) -> Vec<Arc<DocumentState>> {
        let inner = self.inner.read();
        inner.arrivals.iter().filter_map(|number| inner.document(*number, at)).collect()
    }

    /// The documents as of `at` whose ids begin at the bytes `lower` or after them, in their order, up to the first whose bytes are past the
    /// end. Costs little more than these do, and a look at every id that has come since a range was asked for last.
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

    /// Puts ids in order that have come since this was done last.
    fn order_arrivals(&self) {
        let is_done = |order: &IdOrder| order.len() == self.inner.read().arrivals.len();
        if is_done(&self.order.read()) {
            return;
        }
        let mut order = self.order.write();
        let inner = self.inner.read();
        let arrivals = inner.arrivals[order.len()..].iter();
        self.byte_count.fetch_add(arrivals.len() * ORDERED_BYTES, Ordering::Relaxed);
        order.add(arrivals.map(|number| (inner.documents[number][0].id.clone(), *number)));
    }

    /// What the term does to the documents it names.
    pub(crate) fn term(&self, path: PathNumber, key: &[u8], at: Sequence, overlay: &mut Overlay) {
        if let Some(terms) = self.inner.read().paths.get(&path) {
            terms.overlay(key, at, overlay);
        }
    }

    /// What (`path`, `presence`) does to the documents it names.
    pub(crate) fn presence(&self, path: PathNumber, presence: Presence, at: Sequence, overlay: &mut Overlay) {
        self.inner.read().signatures.overlay(path, presence, at, overlay);
    }

    /// Whether it changes any term of a path.
    pub(crate) fn has_terms(&self, path: PathNumber) -> bool {
        self.inner.read().paths.contains_key(&path)
    }

    /// The newest state of every document, by number: what a checkpoint merges.
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

    /// The paths with at least one delta, ascending.
    pub(crate) fn paths(&self) -> Vec<PathNumber> {
        let mut paths: Vec<_> = self.inner.read().paths.keys().copied().collect();
        paths.sort_unstable();
        paths
    }

    /// Every (path, presence) with at least one delta, ascending.
    pub(crate) fn presences(&self) -> Vec<(PathNumber, Presence)> {
        self.inner.read().signatures.all()
    }
}

impl Inner {
    fn document(&self, number: DocumentNumber, at: Sequence) -> Option<Arc<DocumentState>> {
        let states = self.documents.get(&number)?;
        states.iter().rev().find(|state| state.sequence <= at).cloned()
    }
}
