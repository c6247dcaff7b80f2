//! Write transactions: check, append, apply, then wait until the transaction is durable and published.
//!
//! Invariants:
//! - A transaction changes nothing before its frame is in the log's buffer; after that it can fail only if the log
//!   fails.
//! - Sequences and document numbers are assigned under the writer lock, so they ascend in the order of frames. A
//!   transaction that is abandoned consumes none.
//!
//! Concurrency: a transaction that will be committed holds the writer lock from its first read to the end of `commit`,
//! but not while it waits for the disk. A *speculative* transaction reads what is published, holds no lock, and is
//! never committed.

mod author;
mod commit;
mod expire;
mod files;

pub use author::writing_as;

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::document::{Document, REPLICATION_FIELDS};
use crate::engine::Store;
use crate::engine::ancestry::{self, AddedRevision};
use crate::engine::edit::{Edit, PlannedRevision, parent_of};
use crate::engine::unique::{self, UniqueKeys};
use crate::index::{self, DeclaredIndexes, DocumentNumber, DocumentTerms, difference};
use crate::layout::record::PrunedAncestors;
use crate::log::{Blob, Digest, LogPosition};
use crate::memtable::{DocumentState, Memtable, RecordLocation, ReplayMode, StoredRevision};
use crate::read::StoreParts;
use crate::read::read_timestamp::ReadTimestamp;
use crate::read::snapshot::Snapshot;
use crate::revision::{
    DocumentId, Leaf, MergeOutcome, Revision, RevisionContent, RevisionContentWriter, RevisionTree, Sequence,
};
use crate::value::{Body, PackedValue, Patch, Value};
use crate::{Error, Result};

/// The state that the writer lock guards.
pub(super) struct Writer {
    pub(super) next_sequence: Sequence,
    pub(super) next_number: DocumentNumber,
    /// All shapes below this number are named in the log.
    pub(super) logged_shape_count: usize,
    /// The segment that names all shapes below `named_count`. Until this process has written one, the segment that the
    /// log ended in when it was opened, which may name them.
    pub(super) named_in: u32,
    pub(super) named_count: usize,
    /// That segment has all dictionaries below this number.
    pub(super) named_dictionary_count: usize,
    /// All dictionaries below this number are in the log.
    pub(super) logged_dictionary_count: usize,
    /// The end of the last appended frame.
    pub(super) log_end: LogPosition,
}

/// A body prepared without the writer lock: packed, with its content hash and index terms.
pub(crate) struct PreparedBody {
    packed: Body,
    content: RevisionContent,
    terms: DocumentTerms,
    /// The generation of the declared indexes that `terms` was computed for.
    generation: u64,
}

/// An edit with its prepared body.
pub(crate) struct PreparedEdit {
    edit: Edit,
    body: PreparedBody,
}

impl StoreParts {
    /// Checks, packs and indexes the edit's body. Needs no lock.
    ///
    /// # Errors
    /// `Invalid` for a `_local` id or a bad body.
    pub(crate) fn prepare(&self, edit: Edit) -> Result<PreparedEdit> {
        let declared = self.declared();
        if edit.id().is_local() {
            return Err(Error::invalid(format!("`{}` is a local document", edit.id()))
                .with_hint("use `local_documents()` for ids that begin with `_local/`"));
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
        let is_reserved = |name: &str| name.starts_with('_') && !REPLICATION_FIELDS.contains(&name);
        if let Some((name, _)) = fields.iter().find(|(name, _)| is_reserved(name)) {
            return Err(Error::invalid(format!("the field name `{name}` is reserved")).with_hint(
                "top-level names that begin with `_` belong to the database; id and revision are given beside the body",
            ));
        }
        self.pack_body(declared, id, body)
    }

    /// Like [`StoreParts::prepare_body`], but accepts reserved field names.
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
struct StagedEdit {
    state: DocumentState,
    /// The revision, then the ancestors that its record names.
    path: SmallVec<[Revision; 2]>,
    deleted: bool,
    pruned: PrunedAncestors,
    predecessor: Option<Predecessor>,
    body: Body,
    /// The previous winner, if it was live and is no longer the winner.
    old: Option<Document>,
    old_terms: Option<DocumentTerms>,
    /// The new winner, if another leaf than this edit's revision became the winner.
    promoted: Option<Document>,
    /// The terms of the new winner, if it is live and was not the winner before.
    new_terms: Option<DocumentTerms>,
    /// Whether unique constraints apply: only to edits written in this database.
    checks_uniqueness: bool,
}

/// The leaf that a revision replaces.
#[derive(Debug, Clone, Copy)]
enum Predecessor {
    /// Its record is in the log.
    Logged(RecordLocation),
    /// It was written by the same transaction.
    Staged(Revision),
}

impl Predecessor {
    /// The leaf of `tree` among the ancestors in `path`.
    fn of(tree: &RevisionTree<StoredRevision>, path: &[Revision]) -> Option<Self> {
        let leaf = path[1..].iter().find_map(|ancestor| tree.leaf(ancestor))?;
        let StoredRevision { position, length, .. } = leaf.payload;
        Some(match length {
            0 => Predecessor::Staged(leaf.revision),
            _ => Predecessor::Logged(RecordLocation { position, length }),
        })
    }
}

impl StagedEdit {
    /// An edit that does not change the winner.
    fn new(state: DocumentState, planned: PlannedRevision, pruned: PrunedAncestors, body: Body) -> Self {
        let PlannedRevision { path, deleted } = planned;
        StagedEdit {
            state,
            path,
            deleted,
            pruned,
            predecessor: None,
            body,
            old: None,
            old_terms: None,
            promoted: None,
            new_terms: None,
            checks_uniqueness: true,
        }
    }
}

struct StagedLocal {
    id: String,
    generation: u64,
    deleted: bool,
    body: Body,
}

/// An atomic, isolated group of reads and writes.
///
/// A transaction sees its own writes; other readers see them only after the commit. Transactions are serialized: no
/// other write happens between its first read and its commit. [`Database::write`](crate::Database::write) runs one.
///
/// ```
/// # fn main() -> stemmadb::Result<()> {
/// # let db = stemmadb::Database::in_memory();
/// let revision = db.write(|tx| {
///     let first = tx.insert("solaris", &serde_json::json!({"year": 1960}))?;
///     tx.replace("solaris", &first, &serde_json::json!({"year": 1961}))
/// })?;
/// assert_eq!(db.get("solaris")?.unwrap().revision(), &revision);
/// # Ok(())
/// # }
/// ```
pub struct Transaction<'a> {
    store: &'a Store,
    /// The state when the transaction began.
    base: Snapshot,
    staged: Vec<StagedEdit>,
    newest: HashMap<DocumentId, usize>,
    /// The contents that staged edits refer to and that the log may lack. The handles keep them from being swept.
    contents: HashMap<Digest, Arc<Blob>>,
    locals: Vec<StagedLocal>,
    /// The number of the next new document.
    next_number: DocumentNumber,
    unique_keys: UniqueKeys,
    /// Whether unique constraints are checked after each edit instead of at the commit.
    checks_each_edit: bool,
}

/// New documents of a speculative transaction are numbered from here, beyond any number of a real database.
const SPECULATIVE_NUMBER: DocumentNumber = DocumentNumber(1 << 47);

/// What to wait for after a commit.
pub(super) struct Receipt {
    pub(super) end: LogPosition,
    pub(super) last_sequence: Sequence,
    /// By how much it filled the memtable.
    pub(super) memory_bytes: usize,
}

impl<'a> Transaction<'a> {
    /// A transaction on top of everything appended so far, published or not.
    pub(super) fn begin(store: &'a Store, writer: &Writer) -> Result<Self> {
        store.refuse_if_closed()?;
        let mut base = store.newest_snapshot()?;
        base.at = Sequence(writer.next_sequence.0 - 1);
        Ok(Self::on_snapshot(store, base, writer.next_number))
    }

    /// A transaction that only shows what its edits would do, on top of everything published so far.
    pub(super) fn speculate(store: &'a Store) -> Result<Self> {
        store.refuse_if_closed()?;
        Ok(Self::on_snapshot(store, store.snapshot()?, SPECULATIVE_NUMBER))
    }

    fn on_snapshot(store: &'a Store, base: Snapshot, next_number: DocumentNumber) -> Self {
        Transaction {
            store,
            base,
            staged: Vec::new(),
            newest: HashMap::new(),
            contents: HashMap::new(),
            locals: Vec::new(),
            next_number,
            unique_keys: UniqueKeys::default(),
            checks_each_edit: false,
        }
    }

    /// The state when the transaction began.
    pub(crate) fn base(&self) -> &Snapshot {
        &self.base
    }

    /// Whether the transaction itself wrote the document `id`.
    pub(crate) fn wrote(&self, id: &str) -> bool {
        self.newest.contains_key(id)
    }

    /// Reads the document `id` as this transaction sees it.
    ///
    /// Returns `None` if the document does not exist, is deleted, or has expired.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        if let Some(&at) = self.newest.get(id) {
            let state = &self.staged[at].state;
            let document = if state.is_live() { Some(self.winner(state)?) } else { None };
            return match &document {
                Some(found) if self.base.has_expired(found)? => Ok(None),
                _ => Ok(document),
            };
        }
        self.base.get(id)
    }

    /// Takes a snapshot that includes this transaction's own writes, for queries within it.
    ///
    /// Costs time in proportion to the number of edits so far.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut snapshot = self.base.clone();
        if !self.staged.is_empty() {
            // Without the writer lock, other writers may be assigned the next sequences: the edits then take the base's
            // own sequence, on top of it.
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

    /// Creates the document `id`; returns its first revision.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Invalid` for a bad id or body.
    pub fn insert<B: serde::Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the body of the document `id`; returns the new revision.
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

    /// Creates the document `id` or replaces its current revision; returns the new revision.
    ///
    /// # Errors
    /// `Invalid` for a bad id or body.
    pub fn upsert<B: serde::Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of the document `id`, whatever its revision; returns the new revision, or the current one if
    /// nothing changes.
    ///
    /// # Errors
    /// `NotFound` if there is no such document; `Invalid` if the patch is malformed or doesn't fit the body.
    pub fn update(&mut self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Deletes the document `id`; returns the revision of the deletion.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn delete(&mut self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit; returns the new revision.
    ///
    /// # Errors
    /// Those of the method for the same kind of edit. An edit that fails leaves the transaction unchanged.
    pub fn edit(&mut self, edit: Edit) -> Result<Revision> {
        let prepared = self.store.parts.prepare(edit)?;
        self.stage(prepared)
    }

    pub(crate) fn stage(&mut self, prepared: PreparedEdit) -> Result<Revision> {
        if self.base.read_timestamp.is_some() {
            self.delete_expired_target(&prepared.edit)?;
        }
        match prepared.edit {
            Edit::Update { .. } => self.stage_update(&prepared.edit),
            _ => self.stage_prepared(prepared),
        }
    }

    /// Stages an update as the replacement of the body that it changes; returns that body's revision if it stays the
    /// same.
    fn stage_update(&mut self, edit: &Edit) -> Result<Revision> {
        let Edit::Update { id, patch, .. } = edit else { unreachable!("the caller has matched an update") };
        let current = self.current(id.as_str())?;
        let (parent, state) = (parent_of(edit, current.as_deref())?, current);
        let (Some(revision), Some(state)) = (parent, state) else { unreachable!("an update has a live parent") };
        let leaf = state.tree.leaf(&revision).expect("the parent is a leaf");
        let body = self.leaf(&state, leaf)?.value()?;
        let changed = patch.apply(&body).map_err(|error| error.within(format!("in document `{id}`")))?;
        if changed == body {
            return Ok(revision);
        }
        let prepared = self.store.parts.prepare(Edit::Replace { id: id.clone(), revision, body: changed })?;
        self.stage_prepared(prepared)
    }

    /// The number of revisions that the transaction writes so far.
    pub(crate) fn edit_count(&self) -> usize {
        self.staged.len()
    }

    /// Deletes the document that an edit is for if it has expired: to the edit, it does not exist.
    fn delete_expired_target(&mut self, edit: &Edit) -> Result<()> {
        let Some(state) = self.current(edit.id().as_str())?.filter(|state| state.is_live()) else { return Ok(()) };
        let has_expired = match self.newest.get(&state.id) {
            Some(_) => self.base.has_expired(&self.winner(&state)?)?,
            None => self.base.expired()?.is_some_and(|expired| expired.contains(state.number)),
        };
        match edit {
            _ if !has_expired => Ok(()),
            // A revision from another database is added to the revision tree regardless of expiration.
            edit if edit.is_foreign() => Ok(()),
            Edit::Insert { .. } | Edit::Upsert { .. } | Edit::Put { parent: None, .. } => self.delete_winner(&state),
            _ => Err(Error::not_found(format!("document `{}` has expired", state.id))),
        }
    }

    /// Deletes the expired documents that hold a unique value of these terms. Otherwise a clock that is set back would
    /// make both visible.
    fn delete_expired_holders(&mut self, terms: &DocumentTerms) -> Result<()> {
        for (path, key) in terms.unique_terms() {
            let mut holders = self.base.postings(*path, key)?;
            match self.base.expired()? {
                Some(expired) => holders.and_with(expired),
                None => return Ok(()),
            }
            holders.iter().try_for_each(|holder| self.delete_if_expired(holder).map(|_| ()))?;
        }
        Ok(())
    }

    /// Deletes the winner of `state`.
    fn delete_winner(&mut self, state: &DocumentState) -> Result<()> {
        let Some(winner) = state.tree.winner() else { return Ok(()) };
        let edit = Edit::Delete { id: state.id.clone(), revision: winner.revision };
        let prepared = self.store.parts.prepare(edit)?;
        self.stage_prepared(prepared).map(|_| ())
    }

    /// Deletes a document if it had expired when this transaction began and was not written since; returns whether it
    /// did.
    pub(super) fn delete_if_expired(&mut self, number: DocumentNumber) -> Result<bool> {
        let Some(state) = self.base.state(number)?.filter(|state| state.is_live()) else { return Ok(false) };
        if self.newest.contains_key(&state.id) || !self.base.has_expired(&self.winner(&state)?)? {
            return Ok(false);
        }
        self.delete_winner(&state).map(|()| true)
    }

    fn stage_prepared(&mut self, prepared: PreparedEdit) -> Result<Revision> {
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
        if self.base.read_timestamp.is_some() && !edit.is_foreign() {
            self.delete_expired_holders(&body.terms)?;
        }
        let planned = PlannedRevision::of(&edit, parent, &body.content);
        let revision = planned.path[0];
        let next_number = self.next_number;
        if let Some(mut staged) = self.merge(edit.id(), current, planned, body)? {
            let is_foreign = edit.is_foreign();
            staged.checks_uniqueness = !is_foreign && !staged.deleted && staged.promoted.is_none();
            if let Err(error) = self.record_unique_keys(&staged) {
                self.next_number = next_number;
                return Err(error);
            }
            self.newest.insert(staged.state.id.clone(), self.staged.len());
            self.staged.push(staged);
            self.contents.extend(files::contents_to_log(&edit).map(|blob| (blob.digest(), blob.clone())));
        }
        Ok(revision)
    }

    /// From now on, checks unique constraints after each edit, as if it were the only one.
    pub(super) fn check_each_edit(&mut self) {
        self.checks_each_edit = true;
    }

    /// Records what the edit changes in unique indexes.
    fn record_unique_keys(&mut self, staged: &StagedEdit) -> Result<()> {
        let changes_winner = staged.old_terms.is_some() || staged.new_terms.is_some();
        if !changes_winner || self.base.declared.unique().next().is_none() {
            return Ok(());
        }
        let keys =
            |terms: &Option<DocumentTerms>| terms.as_ref().map_or_else(Vec::new, |terms| terms.unique_terms().to_vec());
        let (old, mut new) = (keys(&staged.old_terms), keys(&staged.new_terms));
        if staged.has_expired(self.base.read_timestamp.as_ref()) {
            new.clear();
        }
        let checks_uniqueness = staged.checks_uniqueness;
        if checks_uniqueness && self.checks_each_edit {
            for key in new.iter().filter(|key| !old.contains(key)) {
                self.check_unique_key(staged, key)?;
            }
        }
        self.unique_keys.record(staged.state.number, &old, &new, checks_uniqueness && !self.checks_each_edit);
        Ok(())
    }

    /// Returns `Duplicate` if another document has this unique value.
    fn check_unique_key(&self, staged: &StagedEdit, key: &unique::UniqueKey) -> Result<()> {
        let Some(holder) = self.unique_keys.holder(&self.base, staged.state.number, key)? else { return Ok(()) };
        let in_transaction = self.staged.iter().find(|other| other.state.number == holder);
        let id = match in_transaction {
            Some(other) => other.state.id.clone(),
            None => self.base.id(holder)?,
        };
        let document = PackedValue::new(staged.body.packed(), &self.store.parts.shapes)?;
        Err(unique::duplicate_error(&self.base.declared, key.0, document, id.as_str()))
    }

    /// Checks the unique constraints of every document that the transaction wrote, in its final state.
    fn check_unique_keys(&self) -> Result<()> {
        if self.base.declared.unique().next().is_none() {
            return Ok(());
        }
        for (at, staged) in self.staged.iter().enumerate() {
            if self.newest.get(&staged.state.id) == Some(&at) {
                let brought = self.unique_keys.keys_to_check(staged.state.number);
                brought.iter().try_for_each(|key| self.check_unique_key(staged, key))?;
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

    /// The edit's effect on its document; none if the revision is already known.
    fn merge(
        &mut self,
        id: &DocumentId,
        current: Option<Arc<DocumentState>>,
        planned: PlannedRevision,
        body: PreparedBody,
    ) -> Result<Option<StagedEdit>> {
        let newest = planned.path[0];
        let sequence = Sequence(self.base.at.0 + 1 + self.staged.len() as u64);
        let logged_ancestors = planned.path.len() as u32 - 1;
        let unwritten = StoredRevision { position: LogPosition::START, length: 0, logged_ancestors };
        let mut tree = current.as_ref().map_or_else(RevisionTree::new, |old| old.tree.clone());
        let revs_limit = Some(self.store.parts.revs_limit());
        let added = ancestry::add(&mut tree, &planned.path, planned.deleted, unwritten, revs_limit)?;
        let AddedRevision { outcome, pruned, has_extra_ancestors } = added;
        let Some(old) = current else {
            let number = self.next_number;
            self.next_number = DocumentNumber(number.0 + 1);
            let replay_mode = ReplayMode::AnyOrder.after(has_extra_ancestors);
            let state =
                DocumentState { number, id: id.clone(), sequence, tree, replay_mode, body: Some(body.packed.clone()) };
            let new_terms = (!planned.deleted).then_some(body.terms);
            return Ok(Some(StagedEdit { new_terms, ..StagedEdit::new(state, planned, pruned, body.packed) }));
        };
        if matches!(outcome, MergeOutcome::Unchanged) {
            return Ok(None);
        }
        let predecessor = Predecessor::of(&old.tree, &planned.path);
        let (planned, body) = self.keep_existing_leaf(&old, planned, body)?;
        let replay_mode = old.replay_mode.after(has_extra_ancestors);
        let mut state =
            DocumentState { number: old.number, id: old.id.clone(), sequence, tree, replay_mode, body: None };
        let old_winner = old.tree.winner().map(|leaf| leaf.revision);
        let new_winner = state.tree.winner().map(|leaf| leaf.revision);
        if new_winner == old_winner {
            state.body = old.body.clone();
            return Ok(Some(StagedEdit { predecessor, ..StagedEdit::new(state, planned, pruned, body.packed) }));
        }
        let old = if old.is_live() { Some(self.winner(&old)?) } else { None };
        let old_terms = old.as_ref().map(|old| self.terms_of(old)).transpose()?;
        let (mut promoted, mut new_terms) = (None, None);
        if new_winner == Some(newest) {
            state.body = Some(body.packed.clone());
            new_terms = state.is_live().then_some(body.terms);
        } else {
            // The winner was deleted, or another branch became longer: another leaf becomes the winner.
            let winner = self.winner(&state)?;
            if !winner.is_deleted() {
                new_terms = Some(self.terms_of(&winner)?);
                promoted = Some(winner);
            }
        }
        Ok(Some(StagedEdit {
            predecessor,
            old,
            old_terms,
            promoted,
            new_terms,
            ..StagedEdit::new(state, planned, pruned, body.packed)
        }))
    }

    /// Re-inserting an existing leaf revision keeps the stored body and deletion flag, which are what is indexed.
    fn keep_existing_leaf(
        &self,
        old: &DocumentState,
        planned: PlannedRevision,
        body: PreparedBody,
    ) -> Result<(PlannedRevision, PreparedBody)> {
        let Some(leaf) = old.tree.leaf(&planned.path[0]) else { return Ok((planned, body)) };
        let existing = self.leaf(old, leaf)?;
        let (packed, terms) = (Body::new(existing.packed_bytes()), self.terms_of(&existing)?);
        Ok((PlannedRevision { deleted: leaf.deleted, ..planned }, PreparedBody { packed, terms, ..body }))
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

    /// Adds an attachment to a document or replaces its content; returns the new revision.
    ///
    /// Store the content first with [`Files::store`](crate::handles::Files::store), so that the transaction does not
    /// wait for it.
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

    /// Writes the `_local` document `id`, or deletes it if `body` is none. Returns the new `N` of its revision `0-N`.
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
}
