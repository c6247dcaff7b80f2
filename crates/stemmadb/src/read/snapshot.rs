//! A state of the database that never changes: the tree, the memtables on top of it, and a sequence.
//!
//! Every look-up asks the memtables first, newest to oldest, then the tree; sets of the index are
//! `postings.rs`'s.

use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::Answer;
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

/// A state of the database that never changes underfoot and blocks nobody. Cheap to clone.
///
/// It keeps what it can see from being reclaimed, so don't hold one for hours.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) parts: Arc<StoreParts>,
    pub(crate) at: Sequence,
    /// Whether everything in it is published: only then may it share the document cache with others.
    pub(crate) is_published: bool,
    /// Oldest first.
    pub(crate) memtables: SmallVec<[Arc<Memtable>; 4]>,
    pub(crate) tree: Arc<dyn TreeSnapshot>,
    /// What of it is kept in memory.
    pub(crate) columns: Arc<Columns>,
    pub(crate) segments: SegmentSet,
    /// The declared indexes, and which of them every document that is seen here is in.
    pub(crate) declared: Arc<DeclaredIndexes>,
    /// When it was taken, if there are documents that end.
    pub(crate) read_timestamp: Option<ReadTimestamp>,
}

/// Where the newest state of a document was found.
pub(crate) enum Located {
    Memory(Arc<DocumentState>),
    Tree(IdRow),
}

impl Snapshot {
    /// The sequence this snapshot shows: everything published up to it, nothing after.
    pub fn sequence(&self) -> Sequence {
        self.at
    }

    /// Lets others have all documents of a term that were found here, if they are few.
    pub(crate) fn keep_answer(&self, path: PathNumber, key: &[u8], answer: &Answer) {
        if self.is_published && self.read_timestamp.is_none() {
            self.parts.caches.documents.put_answer(path, key, answer, self.at);
        }
    }

    /// The tree beneath it.
    pub(crate) fn tree(&self) -> &Arc<dyn TreeSnapshot> {
        &self.tree
    }

    /// The document `id`, or none if there is none, it is deleted, or it had ended when the snapshot was taken.
    ///
    /// Costs a hash look-up when cached, else a tree look-up and one read of the log.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        let document = self.get_kept(id)?;
        match &document {
            Some(found) if self.has_ended(found)? => Ok(None),
            _ => Ok(document),
        }
    }

    /// As [`Snapshot::get`], and what has ended too.
    fn get_kept(&self, id: &str) -> Result<Option<Document>> {
        if !self.is_published {
            return self.get_uncached(id);
        }
        if let Some(document) = self.parts.caches.documents.get(id, self.at) {
            return Ok(Some(document));
        }
        let document = self.get_uncached(id)?;
        if let Some(document) = &document {
            self.parts.caches.documents.put(document, self.at);
        }
        Ok(document)
    }

    /// As [`Snapshot::get_kept`], neither asking nor filling the cache.
    fn get_uncached(&self, id: &str) -> Result<Option<Document>> {
        match self.locate(id)? {
            None => Ok(None),
            Some(Located::Memory(state)) if !state.is_live() => Ok(None),
            Some(Located::Memory(state)) => self.winner(&state).map(Some),
            Some(Located::Tree(row)) if row.deleted => Ok(None),
            Some(Located::Tree(row)) => {
                let id = DocumentId::new(id)?;
                self.read_record(row.position, row.length, id, row.number, row.sequence).map(Some)
            }
        }
    }

    /// The revision `revision` of the document `id`, deleted or not, if its body is still kept: every leaf's is.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get_revision(&self, id: &str, revision: &Revision) -> Result<Option<Document>> {
        let Some(state) = self.state_by_id(id)? else { return Ok(None) };
        let leaf = state.tree.leaves().find(|leaf| leaf.revision == *revision).cloned();
        leaf.map(|leaf| self.leaf_document(&state, &leaf)).transpose()
    }

    /// The revisions of the document `id`: every leaf, the winner first, each with its ancestors newest first.
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

    /// Which of these revisions of the document `id` are not known here, neither as leaves nor as ancestors.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn missing(&self, id: &str, revisions: &[Revision]) -> Result<Missing> {
        match self.state_by_id(id)? {
            Some(state) => Ok(state.tree.missing(revisions)),
            None => Ok(Missing { missing: revisions.to_vec(), possible_ancestors: Vec::new() }),
        }
    }

    /// The `_local` document `id` with its revision `0-N`.
    pub(crate) fn local(&self, id: &str) -> Result<Option<(u64, Body)>> {
        if let Some(state) = self.local_in_memory(id) {
            return Ok((!state.deleted).then(|| (state.generation, state.body.clone())));
        }
        let Some(value) = self.tree.get(Table::Local, &layout::id_key(id))? else { return Ok(None) };
        let row = LocalRow::decode(value)?;
        if row.deleted {
            return Ok(None);
        }
        let bytes = self.read_bytes(row.position, row.length)?;
        match Record::decode(&bytes)?.0 {
            Record::Local { id: found, body, .. } if found == id => {
                let start = bytes.len() - body.len();
                Ok(Some((row.generation, Body::within(bytes, start))))
            }
            _ => Err(self.misplaced(row.position, id)),
        }
    }

    pub(crate) fn local_in_memory(&self, id: &str) -> Option<Arc<LocalState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.local(id, self.at))
    }

    /// The body of the `_local` document `id`, decoded.
    pub(crate) fn local_value(&self, id: &str) -> Result<Option<(u64, Value)>> {
        let Some((generation, body)) = self.local(id)? else { return Ok(None) };
        let value = PackedValue::new(body.packed(), &self.parts.shapes)?.to_value()?;
        Ok(Some((generation, value)))
    }

    /// Where the newest state of `id` is; a tombstone is found too.
    pub(crate) fn locate(&self, id: &str) -> Result<Option<Located>> {
        for memtable in self.memtables.iter().rev() {
            if let Some(state) = memtable.document_by_id(id, self.at) {
                return Ok(Some(Located::Memory(state)));
            }
        }
        match self.tree.get(Table::Ids, &layout::id_key(id))? {
            None => Ok(None),
            Some(value) => Ok(Some(Located::Tree(IdRow::decode(value)?))),
        }
    }

    /// The newest state of document `number`.
    pub(crate) fn state(&self, number: DocumentNumber) -> Result<Option<Arc<DocumentState>>> {
        if let Some(state) = self.state_in_memory(number) {
            return Ok(Some(state));
        }
        let Some(value) = self.tree.get(Table::Docs, &layout::number_key(number.0))? else { return Ok(None) };
        DocumentRow::decode(value)?.state(number).map(|state| Some(Arc::new(state)))
    }

    /// The highest number of a document, deleted ones included; 0 if there is none.
    pub(crate) fn last_number(&self) -> Result<DocumentNumber> {
        let mut rows = self.tree.scan(Table::Docs, Bound::Unbounded, Bound::Unbounded, Direction::Descending)?;
        let in_tree = match rows.next()? {
            Some((key, _)) => DocumentNumber(layout::number_of_key(Table::Docs, key)?),
            None => DocumentNumber(0),
        };
        let recent = self.memtables.iter().filter_map(|memtable| memtable.last_number(self.at)).max();
        Ok(recent.map_or(in_tree, |recent| recent.max(in_tree)))
    }

    /// Whether any memtable has something to say.
    pub(crate) fn has_memory(&self) -> bool {
        self.memtables.iter().any(|memtable| !memtable.is_empty())
    }

    pub(crate) fn state_in_memory(&self, number: DocumentNumber) -> Option<Arc<DocumentState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.document(number, self.at))
    }

    /// The documents that have several leaves. Costs a look at every document.
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
            Err(self.misplaced(position, state.id.as_str()))
        }
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
        let (record, _) = Record::decode(&bytes).map_err(|error| error.within(format!("log {position}")))?;
        match record {
            Record::Revision(RevisionRecord { deleted, number: found, id: found_id, path, body, .. })
                if found == number && found_id == id.as_str() =>
            {
                let start = bytes.len() - body.len();
                let revision = path[0];
                let body = Body::within(bytes, start);
                Ok(Document::new(id, revision, sequence, deleted, body, self.parts.shapes.clone()))
            }
            _ => Err(self.misplaced(position, id.as_str())),
        }
    }

    /// Whether the record that states what is known of a document is where it should be.
    pub(crate) fn verify_statement(&self, state: &DocumentState) -> Result<()> {
        let ReplayMode::Snapshot(RecordLocation { position, length }) = state.replay_mode else { return Ok(()) };
        let bytes = self.read_bytes(position, length)?;
        match Record::decode(&bytes).map_err(|error| error.within(format!("log {position}")))?.0 {
            Record::Statement { number, row } if number == state.number => DocumentRow::decode(row)?.state(number)?,
            _ => return Err(self.misplaced(position, state.id.as_str())),
        };
        Ok(())
    }

    pub(crate) fn read_bytes(&self, position: LogPosition, length: u32) -> Result<Arc<[u8]>> {
        let mut bytes = Vec::new();
        self.segments.read(position, length as usize, &mut bytes)?;
        Ok(bytes.into())
    }

    fn misplaced(&self, position: LogPosition, id: &str) -> Error {
        Error::corrupt(format!("log {position}: not the record of document `{id}` that the tree says is there"))
            .with_hint("run `stemma rebuild`: the tree is derived from the log and can be made again without loss")
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("sequence", &self.at).finish_non_exhaustive()
    }
}

/// One line of descent of a document, from a leaf down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// Whether the leaf is a deletion.
    pub deleted: bool,
    /// The leaf, then its ancestors as far as they are known, newest first.
    pub revisions: Vec<Revision>,
}
