//! Snapshots: immutable views of the database, made of a state of the tree, the memtables on top of it, and a sequence.
//!
//! A lookup searches the memtables from newest to oldest, then the tree. Index lookups are in `postings.rs`.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::CachedResult;
use crate::cache::columns::Columns;
use crate::document::Document;
use crate::index::{DeclaredIndexes, DocumentNumber, PathNumber};
use crate::layout::record::{Record, RevisionRecord};
use crate::layout::{self, DocumentRow, IdRow, LocalRow};
use crate::log::{LogPosition, SegmentSet};
use crate::memtable::{DocumentState, LocalState, Memtable, RecordLocation, ReplayMode, StoredRevision};
use crate::read::StoreParts;
use crate::read::read_timestamp::ReadTimestamp;
use crate::revision::{DocumentId, Leaf, Missing, Revision, Sequence};
use crate::tree::{Direction, Table, TreeSnapshot};
use crate::value::{Body, PackedValue, Value};
use crate::{Error, Result};

/// An immutable view of the database at one sequence. Cheap to clone.
///
/// A snapshot never blocks writers or other readers. Compaction can't reclaim what a snapshot may still read, so don't
/// hold one for hours. Once the database is closed, reads return `Closed`.
///
/// ```
/// # fn main() -> stemmadb::Result<()> {
/// # let db = stemmadb::Database::in_memory();
/// let snapshot = db.snapshot()?;
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// assert!(snapshot.get("solaris")?.is_none());
/// assert!(db.get("solaris")?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) parts: Arc<StoreParts>,
    pub(crate) at: Sequence,
    /// Whether everything in the snapshot is published: only then, or in the past, may it use the shared document
    /// cache.
    pub(crate) is_published: bool,
    /// Oldest first.
    pub(crate) memtables: SmallVec<[Arc<Memtable>; 4]>,
    pub(crate) tree: Arc<TreeSnapshot>,
    /// The columns of this state of the tree.
    pub(crate) columns: Arc<Columns>,
    pub(crate) segments: SegmentSet,
    /// The declared indexes, and which of them contain every document that is visible here.
    pub(crate) declared: Arc<DeclaredIndexes>,
    /// The time the snapshot was taken, if there are expiration rules.
    pub(crate) read_timestamp: Option<ReadTimestamp>,
    /// Of a snapshot of the past.
    pub(crate) past: Option<Arc<PastReader>>,
}

/// What a snapshot of the past keeps of the present.
pub(crate) struct PastReader {
    /// While it is held, what is readable as of its sequence is not removed.
    pub(crate) _held: Arc<Sequence>,
    /// The newest state when the snapshot was taken: its sequence, and what the tree does not have of it.
    pub(crate) newest: Sequence,
    pub(crate) memtables: SmallVec<[Arc<Memtable>; 4]>,
}

/// The location of the newest state of a document.
pub(crate) enum Located {
    Memory(Arc<DocumentState>),
    Tree(IdRow),
}

impl Snapshot {
    /// The sequence of the snapshot: it shows everything published up to it and nothing later.
    pub fn sequence(&self) -> Sequence {
        self.at
    }

    /// Caches all documents of a term, which were read from this snapshot.
    pub(crate) fn cache_result(&self, path: PathNumber, key: &[u8], result: &CachedResult) {
        if self.is_published && self.read_timestamp.is_none() {
            self.parts.caches.documents.put_result(path, key, result, self.at);
        }
    }

    /// The state of the tree that the snapshot reads.
    pub(crate) fn tree(&self) -> &Arc<TreeSnapshot> {
        &self.tree
    }

    /// Reads the document `id`.
    ///
    /// Returns `None` if the document does not exist, is deleted, or had expired when the snapshot was taken. Costs a
    /// hash lookup if the document is cached, otherwise a tree lookup and one read of the log.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let document = self.get_including_expired(id)?;
        match &document {
            Some(found) if self.has_expired(found)? => Ok(None),
            _ => Ok(document),
        }
    }

    /// Like [`Snapshot::get`], but returns expired documents too.
    fn get_including_expired(&self, id: &str) -> Result<Option<Document>> {
        self.parts.refuse_if_closed()?;
        if !self.may_use_cache() {
            return Ok(self.get_uncached(id)?.map(|(_, document)| document));
        }
        if let Some(document) = self.parts.caches.documents.get(id, self.at) {
            return Ok(Some(document));
        }
        let Some((number, document)) = self.get_uncached(id)? else { return Ok(None) };
        if let Some(as_of) = self.current_as_of(number) {
            self.parts.caches.documents.put(number, &document, as_of);
        }
        Ok(Some(document))
    }

    /// Whether the snapshot may use the shared document cache, which has current documents. Those that have not changed
    /// since are the documents of the past, too.
    pub(super) fn may_use_cache(&self) -> bool {
        self.is_published || self.past.is_some()
    }

    /// The sequence as of which the state that the snapshot shows of a document is known to be current; `None` if it
    /// may have changed since.
    pub(super) fn current_as_of(&self, number: DocumentNumber) -> Option<Sequence> {
        let Some(past) = &self.past else { return self.is_published.then_some(self.at) };
        let changed = past.memtables.iter().any(|memtable| memtable.document(number, past.newest).is_some());
        (!changed && self.state_in_memory(number).is_none()).then_some(past.newest)
    }

    /// Like [`Snapshot::get_including_expired`], without using the cache; with the document's number.
    fn get_uncached(&self, id: &str) -> Result<Option<(DocumentNumber, Document)>> {
        match self.locate(id)? {
            None => Ok(None),
            Some(Located::Memory(state)) if !state.is_live() => Ok(None),
            Some(Located::Memory(state)) => Ok(Some((state.number, self.winner(&state)?))),
            Some(Located::Tree(row)) if row.deleted => Ok(None),
            Some(Located::Tree(row)) => {
                let id = DocumentId::new(id)?;
                let document = self.read_record(row.position, row.length, id, row.number, row.sequence)?;
                Ok(Some((row.number, document)))
            }
        }
    }

    /// Reads the revision `revision` of the document `id`, deleted or not, if its body is still stored. The bodies of
    /// all leaves are; those of replaced revisions until compaction removes them, which happens in the background too.
    ///
    /// Costs one read of the log for a leaf, and one for each revision between it and an older revision.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        let Some(state) = self.state_by_id(id)? else { return Ok(None) };
        match state.tree.leaf(revision) {
            Some(leaf) => self.leaf_document(&state, leaf).map(Some),
            None => self.superseded(&state, revision),
        }
    }

    /// Like [`Snapshot::get_revision`], for leaves only: the revisions that can be replaced or replicated.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_leaf(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        let Some(state) = self.state_by_id(id)? else { return Ok(None) };
        state.tree.leaf(revision).map(|leaf| self.leaf_document(&state, leaf)).transpose()
    }

    /// Lists the branches of the document `id`: every leaf, the winner first, each with its ancestors, newest first.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn revisions(&self, id: &str) -> Result<Vec<Branch>> {
        let Some(state) = self.state_by_id(id)? else { return Ok(Vec::new()) };
        let winner = state.tree.winner().map(|leaf| leaf.revision);
        let mut branches: Vec<_> = state
            .tree
            .leaves()
            .map(|leaf| Branch { deleted: leaf.deleted, revisions: state.tree.ancestry(&leaf.revision) })
            .collect();
        branches.sort_by_key(|branch| {
            (branch.revisions.first() != winner.as_ref(), std::cmp::Reverse(branch.revisions.first().copied()))
        });
        Ok(branches)
    }

    /// Finds which of these revisions of the document `id` are unknown, neither leaves nor ancestors.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn missing(&self, id: &str, revisions: &[Revision]) -> Result<Missing> {
        match self.state_by_id(id)? {
            Some(state) => Ok(state.tree.missing(revisions)),
            None => Ok(Missing { missing: revisions.to_vec(), possible_ancestors: Vec::new() }),
        }
    }

    /// The `_local` document `id` with the `N` of its revision `0-N`.
    pub(crate) fn local(&self, id: &str) -> Result<Option<(u64, Body)>> {
        self.parts.refuse_if_closed()?;
        if let Some(state) = self.local_in_memory(id) {
            return Ok((!state.deleted).then(|| (state.generation, state.body.clone())));
        }
        let Some(value) = self.tree.get(Table::Local, &layout::id_key(id))? else { return Ok(None) };
        let row = LocalRow::decode(&value)?;
        if row.deleted {
            return Ok(None);
        }
        let bytes = self.read_bytes(row.position, row.length)?;
        match self.parts.record(&bytes, row.position)?.0 {
            Record::Local { id: found, body, .. } if found == id => {
                let start = bytes.len() - body.len();
                Ok(Some((row.generation, Body::within(bytes, start))))
            }
            _ => Err(self.misplaced_document(row.position, id)),
        }
    }

    pub(crate) fn local_in_memory(&self, id: &str) -> Option<Arc<LocalState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.local(id, self.at))
    }

    /// The body of the `_local` document `id`, decoded, with the `N` of its revision `0-N`.
    pub(crate) fn local_value(&self, id: &str) -> Result<Option<(u64, Value)>> {
        let Some((generation, body)) = self.local(id)? else { return Ok(None) };
        let value = PackedValue::new(body.packed(), &self.parts.shapes)?.to_value()?;
        Ok(Some((generation, value)))
    }

    /// The location of the newest state of `id`, including deletions.
    pub(crate) fn locate(&self, id: &str) -> Result<Option<Located>> {
        self.parts.refuse_if_closed()?;
        for memtable in self.memtables.iter().rev() {
            if let Some(state) = memtable.document_by_id(id, self.at) {
                return Ok(Some(Located::Memory(state)));
            }
        }
        match self.tree.get(Table::Ids, &layout::id_key(id))? {
            None => Ok(None),
            Some(value) => Ok(Some(Located::Tree(IdRow::decode(&value)?))),
        }
    }

    /// The newest state of document `number`.
    pub(crate) fn state(&self, number: DocumentNumber) -> Result<Option<Arc<DocumentState>>> {
        self.parts.refuse_if_closed()?;
        if let Some(state) = self.state_in_memory(number) {
            return Ok(Some(state));
        }
        let Some(value) = self.tree.get(Table::Docs, &layout::number_key(number.0))? else { return Ok(None) };
        DocumentRow::decode(&value)?.state(number).map(|state| Some(Arc::new(state)))
    }

    /// The highest document number, including deleted documents; 0 if there is none.
    pub(crate) fn last_number(&self) -> Result<DocumentNumber> {
        let mut rows = self.tree.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Descending)?;
        let in_tree = match rows.next()? {
            Some((key, _)) => DocumentNumber(layout::number_of_key(Table::Docs, key)?),
            None => DocumentNumber(0),
        };
        let recent = self.memtables.iter().filter_map(|memtable| memtable.last_number(self.at)).max();
        Ok(recent.map_or(in_tree, |recent| recent.max(in_tree)))
    }

    /// Whether any memtable holds data.
    pub(crate) fn has_memory(&self) -> bool {
        self.memtables.iter().any(|memtable| !memtable.is_empty())
    }

    pub(crate) fn state_in_memory(&self, number: DocumentNumber) -> Option<Arc<DocumentState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.document(number, self.at))
    }

    /// The documents with several leaves. Reads every row of `docs`.
    pub(crate) fn branched_states(&self) -> Result<Vec<Arc<DocumentState>>> {
        let mut found = Vec::new();
        let mut rows = self.tree.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        while let Some((key, value)) = rows.next()? {
            let number = DocumentNumber(layout::number_of_key(Table::Docs, key)?);
            if self.state_in_memory(number).is_none() {
                found.push(Arc::new(DocumentRow::decode(value)?.state(number)?));
            }
            found.pop_if(|state| state.tree.leaves().count() < 2);
        }
        for memtable in &self.memtables {
            found.extend(memtable.documents(self.at).into_iter().filter(|state| state.tree.leaves().count() > 1));
        }
        Ok(found)
    }

    /// The newest state of the document `id`.
    pub(crate) fn state_by_id(&self, id: &str) -> Result<Option<Arc<DocumentState>>> {
        match self.locate(id)? {
            None => Ok(None),
            Some(Located::Memory(state)) => Ok(Some(state)),
            Some(Located::Tree(row)) => {
                let state = self.state(row.number)?.ok_or_else(|| layout::damaged(Table::Docs))?;
                if state.id.as_str() == id { Ok(Some(state)) } else { Err(layout::damaged(Table::Ids)) }
            }
        }
    }

    /// The winner of `state`, deleted or not.
    pub(crate) fn winner(&self, state: &DocumentState) -> Result<Document> {
        let leaf = state.tree.winner().ok_or_else(|| Error::internal("a document without any revision"))?;
        self.leaf_document(state, leaf)
    }

    /// One leaf of `state`.
    pub(crate) fn leaf_document(&self, state: &DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Document> {
        let is_winner = || state.tree.winner().is_some_and(|winner| winner.revision == leaf.revision);
        match &state.body {
            Some(body) if is_winner() => Ok(self.document(state, leaf.revision, leaf.deleted, body.clone())),
            _ => self.stored_leaf(state, leaf),
        }
    }

    /// One leaf of `state`, read from the log.
    pub(crate) fn stored_leaf(&self, state: &DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Document> {
        let StoredRevision { position, length, .. } = leaf.payload;
        let document = self.read_record(position, length, state.id.clone(), state.number, state.sequence)?;
        if *document.revision() == leaf.revision {
            Ok(document)
        } else {
            Err(self.misplaced_document(position, state.id.as_str()))
        }
    }

    /// The record of a leaf of `state`, verified to be that of the leaf.
    pub(crate) fn leaf_record(&self, state: &DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Arc<[u8]>> {
        let StoredRevision { position, length, .. } = leaf.payload;
        let bytes = self.read_bytes(position, length)?;
        let decoded = self.parts.record(&bytes, position)?;
        match decoded.0 {
            Record::Revision(record) if record.number == state.number && record.path[0] == leaf.revision => {}
            _ => return Err(self.misplaced_document(position, state.id.as_str())),
        }
        Ok(bytes)
    }

    fn document(&self, state: &DocumentState, revision: Revision, deleted: bool, body: Body) -> Document {
        Document::new(state.id.clone(), revision, state.sequence, deleted, body, self.parts.shapes.clone())
    }

    fn read_record(
        &self,
        position: LogPosition,
        length: u32,
        id: DocumentId,
        number: DocumentNumber,
        sequence: Sequence,
    ) -> Result<Document> {
        let bytes = self.read_bytes(position, length)?;
        self.decode_record(bytes, position, id, number, sequence)
    }

    /// The document in the record `bytes`, which was read at `position`.
    pub(crate) fn decode_record(
        &self,
        bytes: Arc<[u8]>,
        position: LogPosition,
        id: DocumentId,
        number: DocumentNumber,
        sequence: Sequence,
    ) -> Result<Document> {
        let (record, _) = self.parts.record(&bytes, position)?;
        match record {
            Record::Revision(RevisionRecord { deleted, number: found, id: found_id, path, body, .. })
                if found == number && found_id == id.as_str() =>
            {
                let body = self.parts.body(&bytes, &body, position)?;
                Ok(Document::new(id, path[0], sequence, deleted, body, self.parts.shapes.clone()))
            }
            _ => Err(self.misplaced_document(position, id.as_str())),
        }
    }

    /// Returns `Corrupt` if the document's snapshot record is not at its recorded position.
    pub(crate) fn verify_snapshot_record(&self, state: &DocumentState) -> Result<()> {
        let ReplayMode::Snapshot(RecordLocation { position, length }) = state.replay_mode else { return Ok(()) };
        let bytes = self.read_bytes(position, length)?;
        match self.parts.record(&bytes, position)?.0 {
            Record::Snapshot { number, row } if number == state.number => DocumentRow::decode(row)?.state(number)?,
            _ => return Err(self.misplaced_document(position, state.id.as_str())),
        };
        Ok(())
    }

    pub(crate) fn read_bytes(&self, position: LogPosition, length: u32) -> Result<Arc<[u8]>> {
        self.parts.refuse_if_closed()?;
        let mut bytes = Vec::new();
        self.segments.read(position, length as usize, &mut bytes)?;
        Ok(bytes.into())
    }

    fn misplaced_document(&self, position: LogPosition, id: &str) -> Error {
        self.misplaced(position, &format!("document `{id}`"))
    }

    /// The error for a record at `position` that is not that of `what`.
    pub(crate) fn misplaced(&self, position: LogPosition, what: &str) -> Error {
        Error::corrupt(format!("log {position}: not the record of {what} that the tree says is there"))
            .with_hint("run `stemma rebuild`: the tree is derived from the log and can be rebuilt without loss")
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("sequence", &self.at).finish_non_exhaustive()
    }
}

/// One branch of a document's revision tree; returned by [`Snapshot::revisions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// Whether the leaf is a deletion.
    pub deleted: bool,
    /// The leaf, then its known ancestors, newest first.
    pub revisions: Vec<Revision>,
}

impl Branch {
    /// The revision `from` and its ancestors, newest first; empty if it is not in this branch.
    pub fn path_from(&self, from: &Revision) -> &[Revision] {
        let at = self.revisions.iter().position(|revision| revision == from).unwrap_or(self.revisions.len());
        &self.revisions[at..]
    }
}
