//! Opening a database: what the tree does not hold yet is replayed from the log; without a tree, everything is.
//!
//! Invariant: replay gives the same documents, index and feed whatever the order in which compaction left the records, and
//! however much of the last checkpoint had reached the tree.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::ReadCaches;
use crate::engine::ancestry;
use crate::engine::checkpoint::Persisted;
use crate::engine::log_prescan::{self, LogPrescan};
use crate::engine::write::Writer;
use crate::engine::{Progress, Store, View, declare, upkeep};
use crate::index::{DeclaredIndexes, DocumentNumber, DocumentTerms, Paths, Policy, difference};
use crate::layout::DocumentRow;
use crate::layout::record::{Forgotten, Record, RevisionRecord, records};
use crate::layout::settings::Settings;
use crate::layout::{FIRST_NUMBER, meta};
use crate::log::{Blobs, Frame, Log, LogOptions, LogPosition, Vfs};
use crate::memtable::{DocumentState, LocalState, Memtable, RecordLocation, ReplayMode, StoredRevision};
use crate::options::Durability;
use crate::publish;
use crate::read::StoreParts;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Leaf, MergeOutcome, Revision, RevisionTree, Sequence};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::tree::Tree;
use crate::value::{Body, Shapes};
use crate::{Error, Result};

/// A frame kept until the log is open: replay reads older records through it.
struct Kept {
    position: LogPosition,
    end: LogPosition,
    first_sequence: Sequence,
    payload: Vec<u8>,
}

impl Kept {
    fn frame(&self) -> Frame<'_> {
        let Kept { position, end, first_sequence, .. } = *self;
        Frame { position, end, first_sequence, payload: &self.payload }
    }
}

impl Store {
    /// Opens the log in `vfs` under the tree `tree`; replays what the tree does not hold.
    pub(crate) fn open(
        vfs: Arc<dyn Vfs>,
        tree: Box<dyn Tree>,
        options: crate::options::Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<Store>> {
        let snapshot = tree.read()?;
        let checkpoint = meta::checkpoint(&*snapshot)?;
        let (paths, shapes) = (Paths::new(), Shapes::new());
        meta::restore_dictionaries(&*snapshot, &paths, &shapes)?;
        let persisted = Persisted { path_count: paths.len(), shape_count: shapes.len() };
        let stored_settings = meta::settings(&*snapshot)?;
        let live_bytes = meta::live_bytes(&*snapshot)?;
        let is_of_today = meta::has_terms_of_today(&*snapshot)?;
        drop(snapshot);

        let mut kept = Vec::new();
        let replay_from = checkpoint.map(|checkpoint| checkpoint.replay_from);
        let log_options = LogOptions {
            segment_bytes: options.segment_bytes,
            database_id: None,
            replay_from,
            durable_at_least: replay_from.unwrap_or(LogPosition::START),
        };
        let blobs = Arc::new(Blobs::new(vfs.clone()));
        if !options.read_only {
            blobs.remove_unfinished()?;
        }
        let log = Log::open(vfs, log_options, &mut |frame| {
            if checkpoint.is_some() {
                kept.push(Kept {
                    position: frame.position,
                    end: frame.end,
                    first_sequence: frame.first_sequence,
                    payload: frame.payload.to_vec(),
                });
            }
            Ok(())
        })?;
        let present: BTreeSet<u32> = log.segments().iter().map(|segment| segment.number).collect();
        if let Some((lost, _)) = live_bytes.iter().find(|(number, bytes)| **bytes > 0 && !present.contains(number)) {
            return Err(missing_segment(*lost));
        }
        let built_with = stored_settings.filter(|_| checkpoint.is_some());
        // What the log says after the checkpoint is newer than what the tree has.
        let mut prescan = match &built_with {
            Some(built_with) => LogPrescan::of_tail(&log, kept.iter().map(Kept::frame), built_with)?,
            None => LogPrescan::of_log(&log, &shapes)?,
        };
        let settings = prescan.settings().map(Settings::decode).transpose()?;
        let (policy, is_changed) = choose_policy(&options, settings.as_ref());
        let built_with = built_with.as_deref().map(Settings::decode).transpose()?;
        let must_rebuild = built_with.as_ref().is_none_or(|built_with| built_with.policy != policy);
        // A tree that can only be read does without what it lacks.
        let rebuild = must_rebuild || !is_of_today && !options.read_only;
        let mut declared = match settings {
            Some(Settings { definitions, next_index, schemas, .. }) => {
                DeclaredIndexes { schemas, ..DeclaredIndexes::restore(definitions, next_index, &paths)? }
            }
            None => DeclaredIndexes { next_number: 1, ..DeclaredIndexes::default() },
        };
        declared.lacks_collections = !rebuild && !is_of_today;
        let store = Store::assemble(log, blobs, tree, (paths, shapes), (policy, declared), options);
        if let (Some(checkpoint), false) = (checkpoint, rebuild) {
            store.upkeep.lock().persisted = persisted;
            let mut writer = store.writer.lock();
            writer.next_sequence = checkpoint.next_sequence;
            writer.next_number = checkpoint.next_number;
            writer.log_end = checkpoint.replay_from;
        }
        if rebuild {
            if built_with.is_some() {
                prescan = LogPrescan::of_log(&store.parts.log, &store.parts.shapes)?;
            }
            store.begin_rebuild(is_changed)?;
            store.replay_everything(&prescan, progress)?;
        } else {
            for kept in kept {
                store.replay(&kept.frame(), &prescan)?;
            }
        }
        store.finish_recovery()?;
        store.settle_declared()?;
        Ok(store)
    }

    fn assemble(
        log: Log,
        blobs: Arc<Blobs>,
        tree: Box<dyn Tree>,
        (paths, shapes): (Paths, Shapes),
        (policy, declared): (Policy, DeclaredIndexes),
        options: crate::options::Options,
    ) -> Arc<Store> {
        let parts = StoreParts {
            caches: ReadCaches::new(options.cache_bytes, options.column_price_max),
            log,
            blobs,
            tree,
            shapes: Arc::new(shapes),
            paths,
            policy,
            declared_generation: declared.generation.into(),
            declared: RwLock::new(Arc::new(declared)),
            has_expiries: false.into(),
            publisher: publish::Publisher::new(),
            revs_limit: options.revs_limit.max(1).into(),
            options,
        };
        let writer = Writer {
            next_sequence: Sequence(1),
            next_number: FIRST_NUMBER,
            logged_shape_count: 0,
            named_in: 0,
            named_count: 0,
            log_end: LogPosition::START,
        };
        Arc::new(Store {
            parts: Arc::new(parts),
            writer: Mutex::new(writer),
            view: RwLock::new(View { active: Arc::new(Memtable::new()), sealed: Vec::new() }),
            upkeep: Mutex::default(),
            compaction: Mutex::new(()),
            building: Mutex::new(()),
            declaring: Default::default(),
            sweeping: Default::default(),
            wanted: upkeep::Wanted::default(),
            memory_freed: Condvar::new(),
            memory_lock: Mutex::new(()),
            broken: Mutex::new(None),
            closed: false.into(),
            commit_hooks: super::commit_hook::CommitHooks::default(),
            writing_thread: 0.into(),
            stall_count: 0.into(),
        })
    }

    fn replay_everything(&self, prescan: &LogPrescan, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let segments = self.parts.log.segments();
        let total = segments.iter().map(|segment| segment.used_bytes).sum();
        let mut done = 0;
        for segment in &segments {
            let mut within = 0;
            self.parts.log.frames(segment.number, &mut |frame| {
                self.replay(&frame, prescan)?;
                within = u64::from(frame.end.offset());
                progress(Progress { done: done + within, total });
                Ok(())
            })?;
            done += segment.used_bytes;
            progress(Progress { done, total });
        }
        Ok(())
    }

    /// Applies one frame of the log.
    fn replay(&self, frame: &Frame<'_>, prescan: &LogPrescan) -> Result<()> {
        let mut next_sequence = frame.first_sequence;
        let mut locals = Vec::new();
        let mut takes_sequence = false;
        for record in records(frame) {
            let (place, record) = record?;
            let RecordLocation { position: at, length } = place;
            match record {
                Record::Revision(record) => {
                    if !record.relocated {
                        next_sequence = next_sequence.max(record.sequence.next());
                    }
                    self.note_number(record.number);
                    if !prescan.is_stated_after(record.number, at) {
                        self.replay_revision(&record, at, length)?;
                    }
                }
                Record::Local { deleted, relocated, generation, id, body } => {
                    takes_sequence |= !relocated;
                    let stored = StoredRevision { position: at, length, logged_ancestors: 0 };
                    locals.push((id, LocalState { generation, deleted, stored, body: Body::new(body) }));
                }
                Record::Shape { number, names } => {
                    log_prescan::restore_shape(&self.parts.shapes, number, names)?;
                }
                Record::Settings(_) => {}
                Record::Leaves { number, .. } | Record::Statement { number, .. }
                    if prescan.is_stated_after(number, at) => {}
                Record::Leaves { number, leaves } => self.replay_leaves(number, &leaves, at)?,
                Record::Statement { number, row } => {
                    self.replay_statement(number, row, place, prescan)?;
                }
            }
        }
        let active = self.active_memtable();
        if takes_sequence {
            next_sequence = next_sequence.next();
        }
        for (id, state) in locals {
            active.insert_local(id, Sequence(next_sequence.0 - 1), state);
        }
        let full = {
            let mut writer = self.writer.lock();
            writer.next_sequence = writer.next_sequence.max(next_sequence);
            writer.log_end = frame.end;
            writer.logged_shape_count = self.parts.shapes.len();
            self.seal_if_full(&mut writer);
            !self.view.read().sealed.is_empty()
        };
        if full {
            self.merge_sealed()?;
        }
        Ok(())
    }

    fn replay_revision(&self, record: &RevisionRecord<'_>, position: LogPosition, length: u32) -> Result<()> {
        let snapshot = self.newest_snapshot()?;
        let stored = StoredRevision { position, length, logged_ancestors: record.ancestor_count() };
        let old = snapshot.state(record.number)?;
        old.as_ref().map_or(Ok(()), |old| old.check_id(record.id, position))?;
        if old.as_ref().is_some_and(|old| old.has(record)) {
            return Ok(());
        }
        let mut tree = old.as_ref().map_or_else(RevisionTree::new, |old| old.tree.clone());
        let revs_limit = match record.forgotten {
            Forgotten::Unsaid => Some(self.parts.revs_limit()),
            Forgotten::Nothing => None,
            Forgotten::Beyond(revs_limit) => Some(revs_limit),
        };
        let added = ancestry::add(&mut tree, &record.path, record.deleted, stored, revs_limit)?;
        // The newest record of a leaf is the one that is still there.
        let is_leaf = tree.update_payload(&record.path[0], stored);
        if matches!(added.outcome, MergeOutcome::Unchanged) && !is_leaf {
            return Ok(());
        }
        let old_replay_mode = old.as_ref().map_or(ReplayMode::AnyOrder, |old| old.replay_mode);
        let old_sequence = old.as_ref().map_or(Sequence::ZERO, |old| old.sequence);
        let is_winner = tree.winner().is_some_and(|winner| winner.revision == record.path[0]);
        let state = DocumentState {
            number: record.number,
            id: DocumentId::new(record.id)?,
            sequence: old_sequence.max(record.sequence),
            tree,
            replay_mode: old_replay_mode.after(added.is_too_much),
            body: is_winner.then(|| Body::new(record.body)),
        };
        self.replay_state(&snapshot, old.as_deref(), state)
    }

    /// Numbers that follow are given to new documents.
    fn note_number(&self, number: DocumentNumber) {
        let mut writer = self.writer.lock();
        writer.next_number = writer.next_number.max(DocumentNumber(number.0 + 1));
    }

    /// Takes what is stated of a document for what is known, unless the tree is further already.
    fn replay_statement(
        &self,
        number: DocumentNumber,
        row: &[u8],
        place: RecordLocation,
        prescan: &LogPrescan,
    ) -> Result<()> {
        self.note_number(number);
        let stored =
            |stored: StoredRevision| if prescan.is_gone(stored.position) { StoredRevision::GONE } else { stored };
        let state = DocumentRow::decode(row).and_then(|row| row.stated(number, place, stored));
        let state = state.map_err(|error| error.within(format!("log {}", place.position)))?;
        let snapshot = self.newest_snapshot()?;
        let old = snapshot.state(number)?;
        old.as_ref().map_or(Ok(()), |old| old.check_id(state.id.as_str(), place.position))?;
        match old {
            Some(old) if old.sequence > state.sequence => Ok(()),
            old => self.replay_state(&snapshot, old.as_deref(), state),
        }
    }

    /// Forgets the leaves that older records made of revisions that were none any more. Those that newer records made are no
    /// business of this one: the tree may have them already.
    fn replay_leaves(&self, number: DocumentNumber, leaves: &[Revision], position: LogPosition) -> Result<()> {
        let snapshot = self.newest_snapshot()?;
        let Some(old) = snapshot.state(number)? else { return Ok(()) };
        let mut state = DocumentState::clone(&old);
        let keeps = |leaf: &Leaf<StoredRevision>| leaves.contains(&leaf.revision) || leaf.payload.position > position;
        if !state.tree.retain_leaves(keeps) {
            return Ok(());
        }
        state.body = None;
        self.replay_state(&snapshot, Some(&old), state)
    }

    /// Puts the state a replayed record leads to into the memtable, with the difference it makes in the index.
    fn replay_state(&self, snapshot: &Snapshot, old: Option<&DocumentState>, state: DocumentState) -> Result<()> {
        let winner = |state: &DocumentState| {
            state.tree.winner().map(|leaf| (leaf.revision, leaf.payload == StoredRevision::GONE))
        };
        let new_winner = winner(&state);
        let (mut old_terms, mut new_terms) = (None, None);
        if old.map(winner) != Some(new_winner) {
            old_terms = match old {
                Some(old) => self.terms_of_winner(snapshot, old)?,
                None => None,
            };
            new_terms = self.terms_of_winner(snapshot, &state)?;
        }
        let is_event = old.is_none_or(|old| state.sequence > old.sequence);
        let change = difference(old_terms.as_ref(), new_terms.as_ref());
        self.active_memtable().insert(Arc::new(state), is_event, change);
        Ok(())
    }

    /// The terms of the winner, if it is alive and there still.
    fn terms_of_winner(&self, snapshot: &Snapshot, state: &DocumentState) -> Result<Option<DocumentTerms>> {
        if state.tree.winner().is_none_or(|winner| winner.deleted || winner.payload == StoredRevision::GONE) {
            return Ok(None);
        }
        let document = snapshot.winner(state)?;
        let parts = &self.parts;
        let (id, packed) = (document.id().as_str(), document.packed()?);
        crate::index::document_terms(&parts.policy, &snapshot.declared, &parts.paths, id, packed).map(Some)
    }

    /// Empties the tree. Settings that are new come first: should a crash leave the tree half built, it is finished as it was begun.
    fn begin_rebuild(&self, is_changed: bool) -> Result<()> {
        let settings = self.parts.settings();
        if is_changed {
            let mut payload = Vec::new();
            Record::Settings(&settings).encode(&mut payload);
            let appended = self.parts.log.append(self.writer.lock().next_sequence, &payload)?;
            self.parts.log.commit(appended.end, Durability::Sync.level())?;
        }
        self.parts.tree.clear()?;
        let mut tree = self.parts.tree.write()?;
        meta::put_settings(&mut *tree, &settings)?;
        meta::put_terms_of_today(&mut *tree)?;
        // Whatever is merged from here on has the terms of every declared index.
        for index in &self.parts.declared().indexes {
            meta::put_ready_index(&mut *tree, index.definition.number, &declare::form_of(&index.definition))?;
        }
        tree.commit()
    }

    /// Everything replayed is published.
    fn finish_recovery(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        writer.logged_shape_count = self.parts.shapes.len();
        // A new log names each shape in its first segment as it comes.
        writer.named_in = writer.log_end.segment().max(1);
        self.parts.publisher.recovered(Sequence(writer.next_sequence.0 - 1), writer.next_number);
        drop(writer);
        Ok(())
    }
}

/// The index policy to use, and whether it differs from what the log says.
fn choose_policy(options: &crate::options::Options, stored: Option<&Settings>) -> (Policy, bool) {
    match (&options.index, stored) {
        (Some(wanted), Some(stored)) => (wanted.clone(), *wanted != stored.policy),
        (Some(wanted), None) => (wanted.clone(), true),
        (None, Some(stored)) => (stored.policy.clone(), false),
        (None, None) => (Policy::default(), true),
    }
}

impl DocumentState {
    /// Refuses a record at `position` that says of the same number that it is another document's.
    fn check_id(&self, id: &str, position: LogPosition) -> Result<()> {
        if self.id.as_str() == id {
            return Ok(());
        }
        let message = format!("log {position}: document number {} is `{}` and `{id}`", self.number.0, self.id);
        Err(Error::corrupt(message))
    }

    /// Whether a record was applied already: a checkpoint that was cut short had brought the document into the tree as it was later. What
    /// compaction moved has the sequence that the document has then.
    fn has(&self, record: &RevisionRecord<'_>) -> bool {
        let is_said = record.forgotten != Forgotten::Unsaid;
        is_said && (record.sequence < self.sequence || (record.sequence == self.sequence && !record.relocated))
    }
}

fn missing_segment(number: u32) -> Error {
    Error::corrupt(format!("log/{number:010}.log is missing: documents in it can't be read"))
        .with_hint("put the file back, or restore a backup")
}
