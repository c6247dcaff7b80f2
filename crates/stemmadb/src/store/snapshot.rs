//! A state of the database that never changes: the tree, the memtables on top of it, and a sequence.
//!
//! Every look-up asks the memtables first, newest to oldest, then the tree; every set of the index is the tree's set with
//! the memtables' changes laid over it, oldest to newest.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::index::{
    self, Container, DocumentNumber, DocumentSet, PathNumber, Paths, Policy, PostingKey, Presence, Union,
};
use crate::log::{LogPosition, SegmentSet};
use crate::memtable::{DocumentState, LocalState, Memtable, Overlay, Stored, Walk};
use crate::revision::{DocumentId, Leaf, Revision, Sequence};
use crate::store::StoreParts;
use crate::store::document::Document;
use crate::store::layout::{self, IdRow, LocalRow};
use crate::store::record::{Record, RevisionRecord};
use crate::tree::{Direction, Table, TreeSnapshot};
use crate::value::{Body, PackedValue, Value};
use crate::{Error, Result};

/// A state of the database that never changes underfoot and blocks nobody. Cheap to clone.
///
/// It keeps what it can see from being reclaimed, so don't hold one for hours.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) parts: Arc<StoreParts>,
    pub(super) at: Sequence,
    /// Whether everything in it is published: only then may it share the document cache with others.
    pub(super) is_published: bool,
    /// Oldest first.
    pub(super) memtables: SmallVec<[Arc<Memtable>; 4]>,
    pub(super) tree: Arc<dyn TreeSnapshot>,
    pub(super) segments: SegmentSet,
}

/// Where the newest state of a document was found.
pub(super) enum Located {
    Memory(Arc<DocumentState>),
    Tree(IdRow),
}

impl Snapshot {
    /// The sequence this snapshot shows: everything published up to it, nothing after.
    pub fn sequence(&self) -> Sequence {
        self.at
    }

    /// The document `id`, or none if there is none or it is deleted.
    ///
    /// Costs a hash look-up when cached, else a tree look-up and one read of the log.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        if !self.is_published {
            return self.get_uncached(id);
        }
        if let Some(document) = self.parts.cache.get(id, self.at) {
            return Ok(Some(document));
        }
        let document = self.get_uncached(id)?;
        if let Some(document) = &document {
            self.parts.cache.put(document, self.at);
        }
        Ok(document)
    }

    /// As [`Snapshot::get`], neither asking nor filling the cache.
    pub(super) fn get_uncached(&self, id: &str) -> Result<Option<Document>> {
        match self.locate(id)? {
            None => Ok(None),
            Some(Located::Memory(state)) if !state.is_live() => Ok(None),
            Some(Located::Memory(state)) => self.winner(&state).map(Some),
            Some(Located::Tree(row)) if row.deleted => Ok(None),
            Some(Located::Tree(row)) => {
                let id = DocumentId::new(id)?;
                self.read_record(row.position, row.length, &id, row.number, row.sequence).map(Some)
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

    pub(super) fn local_in_memory(&self, id: &str) -> Option<Arc<LocalState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.local(id, self.at))
    }

    /// The body of the `_local` document `id`, decoded.
    pub(crate) fn local_value(&self, id: &str) -> Result<Option<(u64, Value)>> {
        let Some((generation, body)) = self.local(id)? else { return Ok(None) };
        let value = PackedValue::new(body.packed(), &self.parts.shapes)?.to_value()?;
        Ok(Some((generation, value)))
    }

    /// Where the newest state of `id` is; a tombstone is found too.
    pub(super) fn locate(&self, id: &str) -> Result<Option<Located>> {
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
        layout::decode_document(number, value).map(|state| Some(Arc::new(state)))
    }

    pub(super) fn state_in_memory(&self, number: DocumentNumber) -> Option<Arc<DocumentState>> {
        self.memtables.iter().rev().find_map(|memtable| memtable.document(number, self.at))
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
    pub(crate) fn leaf_document(&self, state: &DocumentState, leaf: &Leaf<Stored>) -> Result<Document> {
        let is_winner = || state.tree.winner().is_some_and(|winner| winner.revision == leaf.revision);
        match &state.body {
            Some(body) if is_winner() => Ok(self.document(state, leaf.revision, leaf.deleted, body.clone())),
            _ => self.stored_leaf(state, leaf),
        }
    }

    /// One leaf of `state`, read from the log.
    pub(super) fn stored_leaf(&self, state: &DocumentState, leaf: &Leaf<Stored>) -> Result<Document> {
        let Stored { position, length, .. } = leaf.payload;
        let document = self.read_record(position, length, &state.id, state.number, state.sequence)?;
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
        id: &DocumentId,
        number: DocumentNumber,
        sequence: Sequence,
    ) -> Result<Document> {
        let bytes = self.read_bytes(position, length)?;
        let (record, _) = Record::decode(&bytes).map_err(|error| error.within(format!("log {position}")))?;
        match record {
            Record::Revision(RevisionRecord { deleted, number: found, id: found_id, path, body, .. })
                if found == number && found_id == id.as_str() =>
            {
                let start = bytes.len() - body.len();
                let revision = path[0];
                let body = Body::within(bytes.clone(), start);
                Ok(Document::new(id.clone(), revision, sequence, deleted, body, self.parts.shapes.clone()))
            }
            _ => Err(self.misplaced(position, id.as_str())),
        }
    }

    fn read_bytes(&self, position: LogPosition, length: u32) -> Result<Arc<[u8]>> {
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

/// The index.
impl Snapshot {
    /// The dictionary of paths.
    pub(crate) fn paths(&self) -> &Paths {
        &self.parts.paths
    }

    /// Which paths are indexed.
    pub(crate) fn policy(&self) -> &Policy {
        &self.parts.policy
    }

    /// The number of the living document `id`.
    pub(crate) fn live_number(&self, id: &str) -> Result<Option<DocumentNumber>> {
        Ok(match self.locate(id)? {
            Some(Located::Memory(state)) if state.is_live() => Some(state.number),
            Some(Located::Tree(row)) if !row.deleted => Some(row.number),
            _ => None,
        })
    }

    /// The documents that have the term (`path`, `key`).
    pub(crate) fn postings(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        let mut set = self.tree_postings(path, key)?;
        let mut overlay = Overlay::default();
        self.memtables.iter().for_each(|memtable| memtable.term(path, key, self.at, &mut overlay));
        overlay.settle();
        lay_over(&mut set, &overlay);
        Ok(set)
    }

    /// The documents that have something of this kind at `path`.
    pub(crate) fn presence(&self, path: PathNumber, presence: Presence) -> Result<DocumentSet> {
        let mut set = self.tree_postings(path, &presence.key())?;
        let mut overlay = Overlay::default();
        self.memtables.iter().for_each(|memtable| memtable.presence(path, presence, self.at, &mut overlay));
        overlay.settle();
        lay_over(&mut set, &overlay);
        Ok(set)
    }

    fn tree_postings(&self, path: PathNumber, key: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (index::first_posting(path, key), index::after_postings(path, key));
        let mut chunks = Vec::new();
        let rows =
            self.tree.scan(Table::Postings, Bound::Included(&lower), Bound::Excluded(&upper), Direction::Ascending)?;
        for row in rows {
            let (row_key, container) = row?;
            let chunk = PostingKey::decode(row_key)?.chunk;
            chunks.push((chunk, Container::decode(container)?));
        }
        Ok(set_of_chunks(chunks))
    }

    /// The distinct values of `path` within the bounds in key order, each with the documents that have it.
    pub(crate) fn walk(
        &self,
        path: PathNumber,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Result<TermWalk<'_>> {
        let (tree_lower, tree_upper) = posting_bounds(path, lower, upper);
        let rows =
            self.tree.scan(Table::Postings, Bound::Included(&tree_lower), Bound::Excluded(&tree_upper), direction)?;
        let excluded = match lower {
            Bound::Excluded(key) => Some(key.to_vec()),
            _ => None,
        };
        let memtables = self
            .memtables
            .iter()
            .map(|memtable| Walk::new(memtable.clone(), path, lower, upper, direction, self.at).peekable())
            .collect();
        Ok(TermWalk { rows: rows.peekable(), memtables, direction, excluded })
    }

    /// The union of all values' documents within `[lower, upper)`.
    ///
    /// The memtables' terms are few: the tree's rows between them are added as they are stored.
    pub(crate) fn range(&self, path: PathNumber, lower: &[u8], upper: &[u8]) -> Result<DocumentSet> {
        let (lower, upper) = (Bound::Included(lower), Bound::Excluded(upper));
        let changed = self.changed_terms(path, lower, upper);
        let (from, to) = posting_bounds(path, lower, upper);
        let mut union = Union::new();
        for row in
            self.tree.scan(Table::Postings, Bound::Included(&from), Bound::Excluded(&to), Direction::Ascending)?
        {
            let (row_key, container) = row?;
            let key = PostingKey::decode(row_key)?;
            if !changed.contains_key(key.value) {
                union.add_stored(key.chunk, container)?;
            }
        }
        for (key, overlay) in &changed {
            let mut set = self.tree_postings(path, key)?;
            lay_over(&mut set, overlay);
            union.add_set(&set);
        }
        Ok(union.finish())
    }

    /// What the memtables change within the bounds, term by term.
    fn changed_terms(&self, path: PathNumber, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> HashMap<Vec<u8>, Overlay> {
        let mut changed: HashMap<Vec<u8>, Overlay> = HashMap::new();
        for memtable in &self.memtables {
            for (key, newer) in Walk::new(memtable.clone(), path, lower, upper, Direction::Ascending, self.at) {
                changed.entry(key).or_default().stack(newer);
            }
        }
        changed
    }

    /// The living documents whose id lies within the bounds, in the order of bytes.
    pub(crate) fn ids_in_range(&self, lower: Bound<&str>, upper: Bound<&str>) -> Result<DocumentSet> {
        let inside = |id: &str| RangeBounds::<str>::contains(&(lower, upper), id);
        let mut numbers = Vec::new();
        // The keys of long ids are cut, so a bound's own group is looked at whole.
        let lower_key = match lower {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(id) | Bound::Excluded(id) => {
                Bound::Included(&id.as_bytes()[..id.len().min(layout::ID_KEY_BYTES_MAX)])
            }
        };
        for row in self.tree.scan(Table::Ids, lower_key, Bound::Unbounded, Direction::Ascending)? {
            let (key, value) = row?;
            let shortened = &key[..key.len().min(layout::ID_KEY_BYTES_MAX)];
            let is_past = match upper {
                Bound::Unbounded => false,
                Bound::Included(id) | Bound::Excluded(id) => shortened > id.as_bytes(),
            };
            if is_past {
                break;
            }
            let row = IdRow::decode(value)?;
            if row.deleted || self.state_in_memory(row.number).is_some() {
                continue;
            }
            let is_inside = match std::str::from_utf8(key) {
                Ok(id) if key.len() <= layout::ID_KEY_BYTES_MAX => inside(id),
                _ => inside(self.id(row.number)?.as_str()),
            };
            if is_inside {
                numbers.push(row.number);
            }
        }
        let mut seen = HashSet::new();
        for memtable in self.memtables.iter().rev() {
            for state in memtable.documents_where(self.at, inside) {
                if seen.insert(state.number) && state.is_live() {
                    numbers.push(state.number);
                }
            }
        }
        numbers.sort_unstable();
        Ok(DocumentSet::from_sorted(numbers))
    }

    /// The ids of documents, in the order asked: those of the tree in one call.
    pub(crate) fn ids(&self, numbers: &[DocumentNumber]) -> Result<Vec<DocumentId>> {
        let recent: Vec<_> = numbers.iter().map(|number| self.state_in_memory(*number)).collect();
        let in_tree = numbers.iter().zip(&recent).filter(|(_, recent)| recent.is_none());
        let keys: Vec<Vec<u8>> = in_tree.map(|(number, _)| layout::number_key(number.0)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = self.tree.get_many(Table::Docs, &keys)?.into_iter();
        recent
            .into_iter()
            .map(|recent| match recent {
                Some(state) => Ok(state.id.clone()),
                None => stored_id(found.next().flatten()),
            })
            .collect()
    }

    /// The id of one document.
    pub(crate) fn id(&self, number: DocumentNumber) -> Result<DocumentId> {
        if let Some(state) = self.state_in_memory(number) {
            return Ok(state.id.clone());
        }
        stored_id(self.tree.get(Table::Docs, &layout::number_key(number.0))?)
    }

    /// The winner of document `number`, which the index says is there.
    pub(crate) fn load(&self, number: DocumentNumber) -> Result<Document> {
        let state = self.state(number)?.ok_or_else(|| layout::damaged(Table::Docs))?;
        self.winner(&state)
    }
}

/// The set made of chunks in ascending order.
fn set_of_chunks(chunks: Vec<(u64, Container)>) -> DocumentSet {
    let mut set = DocumentSet::new();
    chunks.into_iter().for_each(|(chunk, members)| set.push(chunk, members));
    set
}

/// The id in a row of `docs`, which must be there.
fn stored_id(row: Option<&[u8]>) -> Result<DocumentId> {
    DocumentId::new(layout::document_id(row.ok_or_else(|| layout::damaged(Table::Docs))?)?)
}

/// Changes a set of the tree by what memtables know.
fn lay_over(set: &mut DocumentSet, overlay: &Overlay) {
    if overlay.is_empty() {
        return;
    }
    let pick = |wanted: bool| {
        let picked = overlay.changes().iter().filter(move |(_, gained)| *gained == wanted);
        DocumentSet::from_sorted(picked.map(|(number, _)| *number))
    };
    set.and_not_with(&pick(false));
    set.or_with(&pick(true));
}

/// The first byte of a value's key: below it lie the presence keys.
const FIRST_VALUE: &[u8] = &[2];

fn posting_bounds(path: PathNumber, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let from = match lower {
        Bound::Unbounded => index::first_posting(path, FIRST_VALUE),
        Bound::Included(key) | Bound::Excluded(key) => index::first_posting(path, key),
    };
    let to = match upper {
        Bound::Unbounded => index::after_postings(path, &[]),
        Bound::Excluded(key) => index::first_posting(path, key),
        Bound::Included(key) => index::after_postings(path, key),
    };
    (from, to)
}

type PeekableRows<'a> = std::iter::Peekable<crate::tree::Rows<'a>>;

/// Walks the distinct values of a path in order: the tree's rows and the memtables' terms, merged.
pub(crate) struct TermWalk<'a> {
    rows: PeekableRows<'a>,
    /// Oldest first.
    memtables: SmallVec<[std::iter::Peekable<Walk>; 4]>,
    direction: Direction,
    /// The lower bound, when it is itself excluded.
    excluded: Option<Vec<u8>>,
}

impl TermWalk<'_> {
    fn step(&mut self) -> Result<Option<(Vec<u8>, DocumentSet)>> {
        loop {
            let Some(key) = self.next_key()? else { return Ok(None) };
            let mut set = self.take_rows(&key)?;
            let mut overlay = Overlay::default();
            for memtable in &mut self.memtables {
                if let Some((_, newer)) = memtable.next_if(|(next, _)| *next == key) {
                    overlay.stack(newer);
                }
            }
            lay_over(&mut set, &overlay);
            if !set.is_empty() && self.excluded.as_ref() != Some(&key) {
                return Ok(Some((key, set)));
            }
        }
    }

    /// The nearest key that the tree or a memtable has.
    fn next_key(&mut self) -> Result<Option<Vec<u8>>> {
        let mut nearest: Option<Vec<u8>> = match self.rows.peek() {
            None => None,
            Some(Ok((key, _))) => Some(PostingKey::decode(key)?.value.to_vec()),
            Some(Err(_)) => match self.rows.next() {
                Some(Err(error)) => return Err(error),
                _ => None,
            },
        };
        for memtable in &mut self.memtables {
            if let Some((key, _)) = memtable.peek() {
                let nearer = nearest.as_ref().is_none_or(|nearest| match self.direction {
                    Direction::Ascending => key < nearest,
                    Direction::Descending => key > nearest,
                });
                if nearer {
                    nearest = Some(key.clone());
                }
            }
        }
        Ok(nearest)
    }

    /// The tree's containers of the value `key`, if the tree stands there.
    fn take_rows(&mut self, key: &[u8]) -> Result<DocumentSet> {
        let mut chunks = Vec::new();
        while let Some(Ok((row_key, container))) = self.rows.peek() {
            let PostingKey { value, chunk, .. } = PostingKey::decode(row_key)?;
            if value != key {
                break;
            }
            chunks.push((chunk, Container::decode(container)?));
            self.rows.next();
        }
        if self.direction == Direction::Descending {
            chunks.reverse();
        }
        Ok(set_of_chunks(chunks))
    }
}

impl Iterator for TermWalk<'_> {
    type Item = Result<(Vec<u8>, DocumentSet)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
