//! A write: check, append, apply; then wait until it is durable and seen.
//!
//! Invariants:
//! - A transaction changes nothing before its frame is in the log's buffer; from then on it can't fail, except with the log.
//! - Sequences and document numbers are given under the writer lock, so they follow the order of frames; those of a
//!   transaction that is given up were never taken.
//!
//! Concurrency: whoever commits a transaction holds the writer lock from its first read to the end of `commit`, never while waiting
//! for the disk. A *speculative* transaction reads what is published, holds no lock, and is never committed itself.

mod expire;
mod files;

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::document::Document;
use crate::engine::Store;
use crate::engine::ancestry::{self, Added};
use crate::engine::commit_hook::OnAppended;
use crate::engine::edit::{Edit, Planned, parent_of};
use crate::engine::unique::{self, Claims};
use crate::index::{self, DeclaredIndexes, DocumentNumber, DocumentTerms, difference};
use crate::layout::record::{Forgotten, Record, RevisionRecord};
use crate::log::{Blob, Level, LogPosition};
use crate::memtable::{DocumentState, LocalState, Memtable, ReplayMode, StoredRevision};
use crate::publish::{Published, Written};
use crate::read::StoreParts;
use crate::read::read_timestamp::ReadTimestamp;
use crate::read::snapshot::Snapshot;
use crate::revision::{
    DocumentId, Leaf, MergeOutcome, Revision, RevisionContent, RevisionContentWriter, RevisionTree, Sequence,
};
use crate::value::{Body, PackedValue, Value};
use crate::{Error, Result};

/// The largest transaction, in bytes of its frame: more than anyone should hold in memory at once.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// What the writer lock guards.
pub(super) struct Writer {
    pub(super) next_sequence: Sequence,
    pub(super) next_number: DocumentNumber,
    /// Shapes below this number are in the log.
    pub(super) logged_shape_count: usize,
    /// The segment that names all shapes below `named_count`. Before any was written: the one that the log ended in when it was
    /// opened, which may.
    pub(super) named_in: u32,
    pub(super) named_count: usize,
    /// The end of the last appended frame.
    pub(super) log_end: LogPosition,
}

/// A body made ready outside of the writer lock: packed, and its content and terms worked out.
pub(crate) struct PreparedBody {
    packed: Body,
    content: RevisionContent,
    terms: DocumentTerms,
    /// The declared indexes that the terms are of.
    generation: u64,
}

/// An edit whose body is ready.
pub(crate) struct PreparedEdit {
    edit: Edit,
    body: PreparedBody,
}

impl StoreParts {
    /// Checks, packs and indexes the edit's body: the work that needs no lock.
    pub(crate) fn prepare(&self, edit: Edit) -> Result<PreparedEdit> {
        let declared = self.declared();
        if edit.id().is_local() {
            return Err(Error::invalid(format!("`{}` is a local document", edit.id()))
                .with_hint("use put_local, get_local and delete_local for ids that begin with `_local/`"));
        }
        let id = edit.id().as_str();
        let body = match edit.body() {
            Some(body) => self.prepare_body(&declared, id, body)?,
            None => self.prepare_body(&declared, id, &Value::Object(Default::default()))?,
        };
        edit.check(&declared.schemas)?;
        Ok(PreparedEdit { edit, body })
    }

    fn prepare_body(&self, declared: &DeclaredIndexes, id: &str, body: &Value) -> Result<PreparedBody> {
        let Value::Object(fields) = body else {
            return Err(Error::invalid(format!("a document is a JSON object, not {}", body.kind()))
                .with_hint("wrap the value in an object, for example {\"value\": …}"));
        };
        if let Some((name, _)) = fields.iter().find(|(name, _)| name.starts_with('_')) {
            return Err(Error::invalid(format!("the field name `{name}` is reserved")).with_hint(
                "top-level names that begin with `_` belong to the database; id and revision are given beside the body",
            ));
        }
        self.pack_body(declared, id, body)
    }

    /// As [`StoreParts::prepare_body`], where names that are reserved may stand.
    fn pack_body(&self, declared: &DeclaredIndexes, id: &str, body: &Value) -> Result<PreparedBody> {
        body.check(&self.options.limits)?;
        let mut packed = Vec::with_capacity(256);
        crate::value::pack(body, &self.shapes, &mut packed)?;
        let mut content = RevisionContentWriter::new();
        body.canonical(&mut content);
        let terms = self.terms(declared, id, &packed)?;
        Ok(PreparedBody {
            packed: Body::new(packed),
            content: content.finish(),
            terms,
            generation: declared.generation,
        })
    }

    /// The index terms of a packed body.
    fn terms(&self, declared: &DeclaredIndexes, id: &str, packed: &[u8]) -> Result<DocumentTerms> {
        index::document_terms(&self.policy, declared, &self.paths, id, PackedValue::new(packed, &self.shapes)?)
    }
}

/// An edit that was checked and waits for the commit.
struct Staged {
    state: DocumentState,
    /// The revision, then the ancestors its record names.
    path: SmallVec<[Revision; 2]>,
    deleted: bool,
    forgotten: Forgotten,
    body: Body,
    /// The winner before, if it was alive and is the winner no longer.
    old: Option<Document>,
    old_terms: Option<DocumentTerms>,
    /// The winner now, where it is neither the old one nor what this edit brought.
    risen: Option<Document>,
    /// Of the winner now, if it is alive and was not before.
    new_terms: Option<DocumentTerms>,
    /// Whether it was written here, so that it may be refused for what it shares with another document.
    is_judged: bool,
}

impl Staged {
    /// An edit that changes no winner.
    fn new(state: DocumentState, planned: Planned, forgotten: Forgotten, body: Body) -> Self {
        let Planned { path, deleted } = planned;
        let (old, old_terms, risen, new_terms) = (None, None, None, None);
        Staged { state, path, deleted, forgotten, body, old, old_terms, risen, new_terms, is_judged: true }
    }
}

struct StagedLocal {
    id: String,
    generation: u64,
    deleted: bool,
    body: Body,
}

/// All or nothing: reads and writes that nobody comes between. What it wrote it reads back; nobody else does before the commit.
pub struct Transaction<'a> {
    store: &'a Store,
    /// What was there when it began.
    base: Snapshot,
    staged: Vec<Staged>,
    newest: HashMap<DocumentId, usize>,
    locals: Vec<StagedLocal>,
    /// The number of the next new document.
    next_number: DocumentNumber,
    claims: Claims,
    /// Whether each edit is judged by itself: whether its values are unique is asked at once.
    judges_each: bool,
}

/// New documents of a speculative transaction are numbered from here: where no database comes to.
const SPECULATIVE_NUMBER: DocumentNumber = DocumentNumber(1 << 47);

/// What has to be waited for after a commit.
pub(super) struct Receipt {
    pub(super) end: LogPosition,
    pub(super) last_sequence: Sequence,
}

impl<'a> Transaction<'a> {
    /// A transaction upon everything appended so far, published or not.
    pub(super) fn begin(store: &'a Store, writer: &Writer) -> Result<Self> {
        store.refuse_if_closed()?;
        let mut base = store.newest_snapshot()?;
        base.at = Sequence(writer.next_sequence.0 - 1);
        Ok(Self::upon(store, base, writer.next_number))
    }

    /// One that only shows what its edits would do, upon everything published so far.
    pub(super) fn speculate(store: &'a Store) -> Result<Self> {
        store.refuse_if_closed()?;
        Ok(Self::upon(store, store.snapshot()?, SPECULATIVE_NUMBER))
    }

    fn upon(store: &'a Store, base: Snapshot, next_number: DocumentNumber) -> Self {
        Transaction {
            store,
            base,
            staged: Vec::new(),
            newest: HashMap::new(),
            locals: Vec::new(),
            next_number,
            claims: Claims::default(),
            judges_each: false,
        }
    }

    /// What was there when it began.
    pub(crate) fn base(&self) -> &Snapshot {
        &self.base
    }

    /// Whether it wrote the document `id` itself.
    pub(crate) fn wrote(&self, id: &str) -> bool {
        self.newest.contains_key(id)
    }

    /// The document `id` as this transaction sees it.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        if let Some(&at) = self.newest.get(id) {
            let state = &self.staged[at].state;
            let document = if state.is_live() { Some(self.winner(state)?) } else { None };
            return match &document {
                Some(found) if self.base.has_ended(found)? => Ok(None),
                _ => Ok(document),
            };
        }
        self.base.get(id)
    }

    /// A snapshot that shows this transaction's own writes too: for queries inside it. Costs time in proportion to what was
    /// written so far.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = self.base.clone();
        if !self.staged.is_empty() {
            // Without the lock, others take the sequences that come next: what was written here stands at the base's own, on top of it.
            let is_alone = !self.base.is_published;
            if is_alone {
                snapshot.at = Sequence(snapshot.at.0 + self.staged.len() as u64);
            }
            snapshot.is_published = false;
            let memtable = Memtable::new();
            for staged in &self.staged {
                let change = difference(staged.old_terms.as_ref(), staged.new_terms.as_ref());
                let sequence = if is_alone { staged.state.sequence } else { self.base.at };
                memtable.insert(Arc::new(DocumentState { sequence, ..staged.state.clone() }), true, change);
            }
            snapshot.memtables.push(Arc::new(memtable));
            snapshot.read_timestamp = snapshot.read_timestamp.as_ref().map(ReadTimestamp::again);
        }
        Ok(snapshot)
    }

    /// Creates the document `id`.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Invalid` for a bad id or body.
    pub fn insert<B: serde::Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the revision that was read.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Invalid` for a bad body.
    pub fn replace<B: serde::Serialize + ?Sized>(
        &mut self,
        id: &str,
        revision: &Revision,
        body: &B,
    ) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates the document or replaces whatever is current.
    ///
    /// # Errors
    /// `Invalid` for a bad id or body.
    pub fn upsert<B: serde::Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Deletes the revision that was read; returns the revision of the deletion.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn delete(&mut self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit.
    ///
    /// # Errors
    /// As the method of the edit's name. An edit that fails leaves the transaction as it was.
    pub fn edit(&mut self, edit: Edit) -> Result<Revision> {
        let prepared = self.store.parts.prepare(edit)?;
        self.stage(prepared)
    }

    pub(crate) fn stage(&mut self, prepared: PreparedEdit) -> Result<Revision> {
        if self.base.read_timestamp.is_some() {
            self.bury_ended(&prepared.edit)?;
        }
        self.stage_upon(prepared)
    }

    /// Deletes the document that an edit is for, if it has ended: to the edit it is not there.
    fn bury_ended(&mut self, edit: &Edit) -> Result<()> {
        let Some(state) = self.current(edit.id().as_str())?.filter(|state| state.is_live()) else { return Ok(()) };
        let has_ended = match self.newest.get(&state.id) {
            Some(_) => self.base.has_ended(&self.winner(&state)?)?,
            None => self.base.ended()?.is_some_and(|ended| ended.contains(state.number)),
        };
        match edit {
            _ if !has_ended => Ok(()),
            // A revision that was written elsewhere joins its tree as it would anywhere.
            Edit::Foreign { .. } => Ok(()),
            Edit::Insert { .. } | Edit::Upsert { .. } | Edit::Put { parent: None, .. } => self.bury(&state),
            _ => Err(Error::not_found(format!("document `{}` has ended", state.id))),
        }
    }

    /// Deletes the documents that have ended and hold a value that is to be another's alone: a clock that is set back would show both.
    fn bury_holders(&mut self, terms: &DocumentTerms) -> Result<()> {
        for (path, key) in terms.unique_terms() {
            let mut holders = self.base.postings(*path, key)?;
            match self.base.ended()? {
                Some(ended) => holders.and_with(ended),
                None => return Ok(()),
            }
            holders.iter().try_for_each(|holder| self.sweep(holder).map(|_| ()))?;
        }
        Ok(())
    }

    /// Deletes the winner of `state`.
    fn bury(&mut self, state: &DocumentState) -> Result<()> {
        let Some(winner) = state.tree.winner() else { return Ok(()) };
        let edit = Edit::Delete { id: state.id.clone(), revision: winner.revision };
        let prepared = self.store.parts.prepare(edit)?;
        self.stage_upon(prepared).map(|_| ())
    }

    /// Deletes a document that had ended when this began, and was not written since; whether it did.
    pub(super) fn sweep(&mut self, number: DocumentNumber) -> Result<bool> {
        let Some(state) = self.base.state(number)?.filter(|state| state.is_live()) else { return Ok(false) };
        if self.newest.contains_key(&state.id) || !self.base.has_ended(&self.winner(&state)?)? {
            return Ok(false);
        }
        self.bury(&state).map(|()| true)
    }

    fn stage_upon(&mut self, prepared: PreparedEdit) -> Result<Revision> {
        let PreparedEdit { edit, mut body } = prepared;
        let current = self.current(edit.id().as_str())?;
        let parent = parent_of(&edit, current.as_deref())?;
        if let Some(with_files) = self.with_files(&edit, current.as_deref())? {
            body = with_files;
        }
        if body.generation != self.base.declared.generation {
            edit.check(&self.base.declared.schemas)?;
            let id = edit.id().as_str();
            body.terms = self.store.parts.terms(&self.base.declared, id, body.packed.packed())?;
        }
        if self.base.read_timestamp.is_some() && !matches!(edit, Edit::Foreign { .. }) {
            self.bury_holders(&body.terms)?;
        }
        let planned = Planned::of(&edit, parent, &body.content);
        let revision = planned.path[0];
        let next_number = self.next_number;
        if let Some(mut staged) = self.merge(edit.id(), current, planned, body)? {
            let is_foreign = matches!(edit, Edit::Foreign { .. });
            staged.is_judged = !is_foreign && !staged.deleted && staged.risen.is_none();
            if let Err(error) = self.claim(&staged) {
                self.next_number = next_number;
                return Err(error);
            }
            self.newest.insert(staged.state.id.clone(), self.staged.len());
            self.staged.push(staged);
        }
        Ok(revision)
    }

    /// From now on each edit is judged by itself, as if it were the only one.
    pub(super) fn judge_each(&mut self) {
        self.judges_each = true;
    }

    /// Notes what the edit changes in unique indexes.
    fn claim(&mut self, staged: &Staged) -> Result<()> {
        let changes_winner = staged.old_terms.is_some() || staged.new_terms.is_some();
        if !changes_winner || self.base.declared.unique().next().is_none() {
            return Ok(());
        }
        let claims =
            |terms: &Option<DocumentTerms>| terms.as_ref().map_or_else(Vec::new, |terms| terms.unique_terms().to_vec());
        let (old, mut new) = (claims(&staged.old_terms), claims(&staged.new_terms));
        if staged.has_ended(self.base.read_timestamp.as_ref()) {
            new.clear();
        }
        let is_judged = staged.is_judged;
        if is_judged && self.judges_each {
            for claim in new.iter().filter(|claim| !old.contains(claim)) {
                self.judge(staged, claim)?;
            }
        }
        self.claims.note(staged.state.number, &old, &new, is_judged && !self.judges_each);
        Ok(())
    }

    /// Whether no other document has a value.
    fn judge(&self, staged: &Staged, claim: &unique::Claim) -> Result<()> {
        let Some(holder) = self.claims.holder(&self.base, staged.state.number, claim)? else { return Ok(()) };
        let in_transaction = self.staged.iter().find(|other| other.state.number == holder);
        let id = match in_transaction {
            Some(other) => other.state.id.clone(),
            None => self.base.id(holder)?,
        };
        let document = PackedValue::new(staged.body.packed(), &self.store.parts.shapes)?;
        Err(unique::taken(&self.base.declared, claim.0, document, id.as_str()))
    }

    /// Whether every value that the transaction leaves behind is one document's alone, where it has to be.
    fn judge_all(&self) -> Result<()> {
        if self.base.declared.unique().next().is_none() {
            return Ok(());
        }
        for (at, staged) in self.staged.iter().enumerate() {
            if self.newest.get(&staged.state.id) == Some(&at) {
                let brought = self.claims.brought(staged.state.number);
                brought.iter().try_for_each(|claim| self.judge(staged, claim))?;
            }
        }
        Ok(())
    }

    fn current(&self, id: &str) -> Result<Option<Arc<DocumentState>>> {
        match self.newest.get(id) {
            Some(&at) => Ok(Some(Arc::new(self.staged[at].state.clone()))),
            None => self.base.state_by_id(id),
        }
    }

    /// The state the edit leaves the document in; none when everything it brings is known already.
    fn merge(
        &mut self,
        id: &DocumentId,
        current: Option<Arc<DocumentState>>,
        planned: Planned,
        body: PreparedBody,
    ) -> Result<Option<Staged>> {
        let newest = planned.path[0];
        let sequence = Sequence(self.base.at.0 + 1 + self.staged.len() as u64);
        let logged_ancestors = planned.path.len() as u32 - 1;
        let unwritten = StoredRevision { position: LogPosition::START, length: 0, logged_ancestors };
        let mut tree = current.as_ref().map_or_else(RevisionTree::new, |old| old.tree.clone());
        let revs_limit = Some(self.store.parts.revs_limit());
        let added = ancestry::add(&mut tree, &planned.path, planned.deleted, unwritten, revs_limit)?;
        let Added { outcome, forgotten, is_too_much } = added;
        let Some(old) = current else {
            let number = self.next_number;
            self.next_number = DocumentNumber(number.0 + 1);
            let replay_mode = ReplayMode::AnyOrder.after(is_too_much);
            let state =
                DocumentState { number, id: id.clone(), sequence, tree, replay_mode, body: Some(body.packed.clone()) };
            let new_terms = (!planned.deleted).then_some(body.terms);
            return Ok(Some(Staged { new_terms, ..Staged::new(state, planned, forgotten, body.packed) }));
        };
        if matches!(outcome, MergeOutcome::Unchanged) {
            return Ok(None);
        }
        let (planned, body) = self.as_first_told(&old, planned, body)?;
        let replay_mode = old.replay_mode.after(is_too_much);
        let mut state =
            DocumentState { number: old.number, id: old.id.clone(), sequence, tree, replay_mode, body: None };
        let old_winner = old.tree.winner().map(|leaf| leaf.revision);
        let new_winner = state.tree.winner().map(|leaf| leaf.revision);
        if new_winner == old_winner {
            state.body = old.body.clone();
            return Ok(Some(Staged::new(state, planned, forgotten, body.packed)));
        }
        let old = if old.is_live() { Some(self.winner(&old)?) } else { None };
        let old_terms = old.as_ref().map(|old| self.terms_of(old)).transpose()?;
        let (mut risen, mut new_terms) = (None, None);
        if new_winner == Some(newest) {
            state.body = Some(body.packed.clone());
            new_terms = state.is_live().then_some(body.terms);
        } else {
            // The winner was deleted, or a branch grew past it: another leaf takes its place.
            let winner = self.winner(&state)?;
            if !winner.is_deleted() {
                new_terms = Some(self.terms_of(&winner)?);
                risen = Some(winner);
            }
        }
        Ok(Some(Staged { old, old_terms, risen, new_terms, ..Staged::new(state, planned, forgotten, body.packed) }))
    }

    /// A leaf that is told again stays what it was first told to be, whatever else comes under its name: that is what is indexed.
    fn as_first_told(
        &self,
        old: &DocumentState,
        planned: Planned,
        body: PreparedBody,
    ) -> Result<(Planned, PreparedBody)> {
        let Some(leaf) = old.tree.leaf(&planned.path[0]) else { return Ok((planned, body)) };
        let known = self.leaf(old, leaf)?;
        let (packed, terms) = (Body::new(known.packed_bytes()), self.terms_of(&known)?);
        Ok((Planned { deleted: leaf.deleted, ..planned }, PreparedBody { packed, terms, ..body }))
    }

    /// The document of a leaf, which this transaction may have written itself.
    fn leaf(&self, state: &DocumentState, leaf: &Leaf<StoredRevision>) -> Result<Document> {
        let staged =
            self.staged.iter().rev().find(|staged| {
                leaf.payload.length == 0 && staged.path[0] == leaf.revision && staged.state.id == state.id
            });
        match staged {
            Some(staged) => {
                let (id, body) = (state.id.clone(), staged.body.clone());
                let shapes = self.store.parts.shapes.clone();
                Ok(Document::new(id, leaf.revision, state.sequence, leaf.deleted, body, shapes))
            }
            None if state.tree.winner().is_some_and(|winner| winner.revision == leaf.revision) => self.winner(state),
            None => self.base.leaf_document(state, leaf),
        }
    }

    /// The winner of `state`, which this transaction may have written itself.
    fn winner(&self, state: &DocumentState) -> Result<Document> {
        let unwritten = state.tree.winner().filter(|leaf| leaf.payload.length == 0 && state.body.is_none());
        let Some(leaf) = unwritten else { return self.base.winner(state) };
        let staged = self.staged.iter().find(|staged| staged.path[0] == leaf.revision && staged.state.id == state.id);
        let staged = staged.ok_or_else(|| Error::internal("a revision that is neither logged nor staged"))?;
        let mut state = state.clone();
        state.body = Some(staged.body.clone());
        self.base.winner(&state)
    }

    fn terms_of(&self, document: &Document) -> Result<DocumentTerms> {
        let parts = &self.store.parts;
        let id = document.id().as_str();
        index::document_terms(&parts.policy, &self.base.declared, &parts.paths, id, document.packed()?)
    }

    /// The `_local` document `id` as this transaction sees it.
    pub(crate) fn local_value(&self, id: &str) -> Result<Option<Value>> {
        match self.locals.iter().rev().find(|local| local.id == id) {
            Some(local) if local.deleted => Ok(None),
            Some(local) => PackedValue::new(local.body.packed(), &self.store.parts.shapes)?.to_value().map(Some),
            None => Ok(self.base.local_value(id)?.map(|(_, value)| value)),
        }
    }

    /// Gives a document a file, or other content to the one it has. Store the content first ([`crate::Files::store`]), since that
    /// takes its time.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Invalid` for a bad name.
    pub fn attach(
        &mut self,
        id: &str,
        revision: &Revision,
        name: &str,
        content_type: &str,
        content: &Arc<Blob>,
    ) -> Result<Revision> {
        let (name, content_type, content) = (name.to_owned(), content_type.to_owned(), content.clone());
        self.edit(Edit::Attach { id: DocumentId::new(id)?, revision: *revision, name, content_type, content })
    }

    /// Writes the `_local` document `id`; the new `N` of its revision `0-N`.
    pub(crate) fn put_local(&mut self, id: &str, expected: Option<u64>, body: Option<&Value>) -> Result<u64> {
        if !DocumentId::new(id)?.is_local() {
            return Err(
                Error::invalid(format!("`{id}` is not a local document")).with_hint("its id begins with `_local/`")
            );
        }
        let current = match self.locals.iter().rev().find(|local| local.id == id) {
            Some(local) => (!local.deleted).then_some(local.generation),
            None => self.base.local(id)?.map(|(generation, _)| generation),
        };
        if expected.is_some() && expected != current {
            return Err(Error::conflict(format!("local document `{id}` is at {current:?}, not at {expected:?}"))
                .with_hint("read it again, then write"));
        }
        let deleted = body.is_none();
        if deleted && current.is_none() {
            return Err(Error::not_found(format!("there is no local document `{id}`")));
        }
        let empty = Value::Object(Default::default());
        let body = self.store.parts.prepare_body(&DeclaredIndexes::default(), id, body.unwrap_or(&empty))?;
        let generation = current.unwrap_or(0) + 1;
        self.locals.push(StagedLocal { id: id.to_owned(), generation, deleted, body: body.packed });
        Ok(generation)
    }

    /// Appends the frame and applies it to the memtable; from here on the transaction is part of the database, though nobody
    /// sees it yet. None if there was nothing to write.
    pub(super) fn commit(mut self, writer: &mut Writer, level: Level) -> Result<Option<Receipt>> {
        if self.staged.is_empty() && self.locals.is_empty() {
            return Ok(None);
        }
        self.judge_all()?;
        self.bury_displaced()?;
        let parts = &self.store.parts;
        let mut payload = Vec::with_capacity(320 * self.staged.len() + 64);
        let names_all = writer.named_in != writer.log_end.segment() && parts.may_name_all_shapes();
        let unnamed = if names_all { 0 } else { writer.logged_shape_count };
        let shape_count = parts.log_shapes_since(unnamed, &mut payload);
        let places = self.encode(&mut payload)?;
        let admitted = self.admitted()?;
        let end_ms = self.staged.iter().filter_map(|staged| staged.new_terms.as_ref()?.end_ms()).min();
        let first_sequence = writer.next_sequence;
        let appended = parts.log.append(first_sequence, &payload)?;
        writer.logged_shape_count = shape_count;
        if names_all {
            (writer.named_in, writer.named_count) = (appended.end.segment(), shape_count);
        }
        writer.log_end = appended.end;
        writer.next_number = self.next_number;
        let active = self.store.active_memtable();
        let mut last_sequence = Sequence(first_sequence.0.saturating_sub(1));
        let mut places = places.into_iter();
        // A revision may become a leaf's ancestor and a leaf again within one transaction.
        let mut logged = HashMap::new();
        let edits_once = self.newest.len() == self.staged.len();
        let mut written = parts.publisher.is_observed().then(Vec::new);
        let read_timestamp = self.base.read_timestamp.clone();
        if let Some(last) = self.staged.iter().map(|staged| staged.state.sequence).max() {
            parts.caches.documents.begin(last);
        }
        for mut staged in self.staged.drain(..) {
            let (offset, length) = places.next().expect("each staged edit was encoded");
            let position = appended.payload.advance(offset);
            let stored = StoredRevision { position, length, logged_ancestors: staged.path.len() as u32 - 1 };
            if edits_once {
                staged.state.tree.update_payload(&staged.path[0], stored);
            } else {
                logged.insert((staged.state.number, staged.path[0]), stored);
                for revision in staged.unwritten_leaves() {
                    if let Some(stored) = logged.get(&(staged.state.number, revision)) {
                        staged.state.tree.update_payload(&revision, *stored);
                    }
                }
            }
            last_sequence = staged.state.sequence;
            if let Some(written) = &mut written {
                written.extend(staged.written(read_timestamp.as_ref(), &parts.shapes));
            }
            let change = difference(staged.old_terms.as_ref(), staged.new_terms.as_ref());
            let (id, number) = (staged.state.id.as_str(), staged.state.number);
            parts.caches.documents.touch(id, number, last_sequence, staged.new_terms.as_ref(), change);
            active.insert(Arc::new(staged.state), true, change);
        }
        if !self.locals.is_empty() {
            // Local documents are no events, yet what shows them must have a sequence of its own.
            last_sequence = last_sequence.next();
            for local in self.locals.drain(..) {
                let (offset, length) = places.next().expect("each local document was encoded");
                let stored = StoredRevision { position: appended.payload.advance(offset), length, logged_ancestors: 0 };
                let StagedLocal { id, generation, deleted, body } = local;
                active.insert_local(&id, last_sequence, LocalState { generation, deleted, stored, body });
            }
        }
        writer.next_sequence = last_sequence.next();
        admitted.into_iter().for_each(|done| done(last_sequence));
        if let Some(end_ms) = end_ms {
            self.store.sweeping.note(end_ms);
        }
        let after = Sequence(first_sequence.0.saturating_sub(1));
        let published = Published { after, sequence: last_sequence, written };
        parts.publisher.enqueue(appended.end, level, self.next_number, published);
        self.store.seal_if_full(writer);
        Ok(Some(Receipt { end: appended.end, last_sequence }))
    }

    /// As [`Transaction::bury_holders`], of what guards know to be one document's alone.
    fn bury_displaced(&mut self) -> Result<()> {
        let guards = self.store.commit_hooks.present();
        if guards.is_empty() || self.base.ended()?.is_none() {
            return Ok(());
        }
        let written = self.written()?;
        for guard in guards {
            let displaced = guard.displaced(&self.base, &written)?;
            displaced.into_iter().try_for_each(|number| self.sweep(number).map(|_| ()))?;
        }
        Ok(())
    }

    /// Asks the guards; returns what they do once this is appended.
    fn admitted(&self) -> Result<Vec<OnAppended>> {
        let guards = self.store.commit_hooks.present();
        if guards.is_empty() {
            return Ok(Vec::new());
        }
        let written = self.written()?;
        guards.iter().map(|guard| guard.admit(&self.base, &written)).collect()
    }

    /// The documents it has written so far: each once, as it leaves it; what was before is not told.
    pub(crate) fn written(&self) -> Result<Vec<Written>> {
        let mut written = Vec::with_capacity(self.newest.len());
        for &at in self.newest.values() {
            let state = &self.staged[at].state;
            let new = if state.is_live() { Some(self.winner(state)?) } else { None };
            let is_judged = self.staged.iter().any(|other| other.state.number == state.number && other.is_judged);
            written.push(Written { number: state.number, id: state.id.clone(), old: None, new, is_judged });
        }
        Ok(written)
    }

    /// Encodes every staged write; returns the offset and length of each record.
    fn encode(&self, payload: &mut Vec<u8>) -> Result<Vec<(u32, u32)>> {
        let mut places = Vec::with_capacity(self.staged.len() + self.locals.len());
        for staged in &self.staged {
            let offset = payload.len() as u32;
            let record = RevisionRecord {
                deleted: staged.deleted,
                relocated: false,
                forgotten: staged.forgotten,
                number: staged.state.number,
                sequence: staged.state.sequence,
                id: staged.state.id.as_str(),
                path: staged.path.clone(),
                body: staged.body.packed(),
            };
            places.push((offset, Record::Revision(record).encode(payload)));
        }
        for local in &self.locals {
            let offset = payload.len() as u32;
            let StagedLocal { id, generation, deleted, body } = local;
            let (deleted, generation) = (*deleted, *generation);
            let record = Record::Local { deleted, relocated: false, generation, id, body: body.packed() };
            places.push((offset, record.encode(payload)));
        }
        if payload.len() > FRAME_BYTES_MAX {
            return Err(Error::invalid(format!("a transaction of {} bytes is too large", payload.len()))
                .with_hint("at most 1 GiB can be written at once: split it"));
        }
        Ok(places)
    }
}

impl Staged {
    /// What it did to the winner, for whoever observes; none if nothing.
    fn written(
        &mut self,
        read_timestamp: Option<&ReadTimestamp>,
        shapes: &Arc<crate::value::Shapes>,
    ) -> Option<Written> {
        if self.old.is_none() && self.new_terms.is_none() {
            return None;
        }
        let has_ended = self.has_ended(read_timestamp);
        let DocumentState { number, id, sequence, body, tree, .. } = &self.state;
        let leaf = tree.winner().filter(|leaf| !leaf.deleted);
        let brought = || {
            let (leaf, body) = (leaf?, body.as_ref()?);
            Some(Document::new(id.clone(), leaf.revision, *sequence, false, body.clone(), shapes.clone()))
        };
        let new = self.risen.take().or_else(brought).filter(|_| !has_ended);
        Some(Written { number: *number, id: id.clone(), old: self.old.take(), new, is_judged: self.is_judged })
    }

    /// Whether the winner now had ended before it was written.
    fn has_ended(&self, read_timestamp: Option<&ReadTimestamp>) -> bool {
        let end_ms = self.new_terms.as_ref().and_then(DocumentTerms::end_ms);
        read_timestamp.is_some_and(|read_timestamp| end_ms.is_some_and(|end_ms| end_ms <= read_timestamp.now_ms))
    }

    /// The leaves that this transaction wrote and the log has now.
    fn unwritten_leaves(&self) -> SmallVec<[Revision; 1]> {
        self.state.tree.leaves().filter(|leaf| leaf.payload.length == 0).map(|leaf| leaf.revision).collect()
    }
}
