//! Recovery: opens a database by replaying the part of the log that the tree does not hold; without a usable tree, the
//! whole log.
//!
//! Invariant: replay produces the same documents, index and feed regardless of the order in which compaction left the
//! records, and of how much of the last checkpoint reached the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::ReadCaches;
use crate::compression::{Dictionary, DocumentCompression};
use crate::engine::ancestry;
use crate::engine::checkpoint::Persisted;
use crate::engine::follow::FrameEffects;
use crate::engine::log_prescan::{self, LogPrescan};
use crate::engine::rebuild::BulkReplay;
use crate::engine::write::Writer;
use crate::engine::{Store, View, directory, identity, upkeep};
use crate::index::{DeclaredIndexes, DocumentNumber, DocumentTerms, Paths, Policy, difference};
use crate::layout::DocumentRow;
use crate::layout::meta::Checkpoint;
use crate::layout::record::{PrunedAncestors, Record, RevisionRecord, records};
use crate::layout::settings::{CompressionSetting, Settings};
use crate::layout::{FIRST_NUMBER, meta};
use crate::log::{Blobs, DatabaseId, Frame, Log, LogOptions, LogPosition, OwnedFrame, TimeSource};
use crate::memtable::{DocumentState, LocalState, Memtable, RecordLocation, ReplayMode, StoredRevision};
use crate::options::Progress;
use crate::publish;
use crate::read::StoreParts;
use crate::read::snapshot::Snapshot;
use crate::revision::{DocumentId, Leaf, MergeOutcome, Revision, RevisionTree, Sequence};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::tree::Tree;
use crate::value::{Body, Shapes};
use crate::vfs::Vfs;
use crate::{Error, Result};

/// The opened files of a store.
struct StoreFiles {
    vfs: Arc<dyn Vfs>,
    identity: DatabaseId,
    log: Log,
    blobs: Arc<Blobs>,
    tree: Tree,
}

/// What recovery reads from the tree before it opens the log.
struct TreeState {
    checkpoint: Option<Checkpoint>,
    paths: Paths,
    shapes: Shapes,
    compression: DocumentCompression,
    persisted: Persisted,
    /// The settings that the tree was built with.
    settings: Option<Vec<u8>>,
    /// Live bytes by segment.
    live_bytes: BTreeMap<u32, u64>,
    /// Whether the tree has all terms that this version derives from documents.
    has_current_terms: bool,
    compacted_before: LogPosition,
    history_floor: Option<Sequence>,
    /// The retired segments whose history is kept.
    history_files: Vec<u32>,
}

impl TreeState {
    fn read(tree: &Tree, options: &crate::options::Options) -> Result<Self> {
        let snapshot = tree.read();
        let checkpoint = meta::checkpoint(&snapshot)?;
        let (paths, shapes) = (Paths::new(), Shapes::new());
        meta::restore_dictionaries(&snapshot, &paths, &shapes)?;
        let compression = DocumentCompression::new(options.dictionary_bytes);
        meta::restore_compression(&snapshot, &compression)?;
        let dictionary_count = compression.dictionary_count();
        let persisted = Persisted { path_count: paths.len(), shape_count: shapes.len(), dictionary_count };
        Ok(TreeState {
            checkpoint,
            paths,
            shapes,
            compression,
            persisted,
            settings: meta::settings(&snapshot)?,
            live_bytes: meta::live_bytes(&snapshot)?,
            has_current_terms: meta::has_current_terms(&snapshot)?,
            compacted_before: meta::compacted_before(&snapshot)?,
            history_floor: meta::history_floor(&snapshot)?,
            history_files: meta::history_files(&snapshot)?,
        })
    }

    /// Returns `Corrupt` if a segment with live records is missing from the log.
    fn check_segments(&self, log: &Log) -> Result<()> {
        let present: BTreeSet<u32> = log.segments().iter().map(|segment| segment.number).collect();
        match self.live_bytes.iter().find(|(number, bytes)| **bytes > 0 && !present.contains(number)) {
            Some((lost, _)) => Err(missing_segment(*lost)),
            None => Ok(()),
        }
    }
}

impl Store {
    /// Opens the log in `vfs` with the tree `tree`, and replays what the tree does not hold.
    pub(crate) fn open(
        vfs: Arc<dyn Vfs>,
        tree: Tree,
        options: crate::options::Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Arc<Store>> {
        // 1. Read from the tree how far it has come, and with which dictionaries and settings it was built.
        let mut state = TreeState::read(&tree, &options)?;
        // Without settings, the tree is one whose rebuild was interrupted.
        let built_with = state.settings.take().filter(|_| state.checkpoint.is_some());
        let checkpoint = state.checkpoint.filter(|_| built_with.is_some());

        // 2. Remove attachment contents that a crash left unfinished.
        let blobs = Arc::new(Blobs::new(vfs.clone()));
        if !options.read_only && !options.is_replica {
            blobs.remove_unfinished()?;
        }

        // 3. Open the log. If there is a checkpoint, buffer the frames after it.
        let (log, tail) = open_log(vfs.clone(), &options, checkpoint.as_ref())?;
        let identity = identity::read(&*vfs)?.unwrap_or_else(|| log.database_id());

        // 4. Verify that every segment the tree points to exists.
        state.check_segments(&log)?;

        // 5. Scan the log for the settings in force, which may be newer than those in the tree.
        let mut prescan = match &built_with {
            Some(built_with) => LogPrescan::scan_tail(&log, tail.iter().map(OwnedFrame::frame), built_with)?,
            None => LogPrescan::scan_log(&log, &state.shapes, &state.compression)?,
        };
        let settings = prescan.settings().map(Settings::decode).transpose()?;
        if options.is_replica && settings.is_none() {
            return Err(Error::unavailable("the owner of the log has not finished to create the database")
                .with_hint("try again"));
        }

        // 6. Rebuild the tree if its index policy or its terms are outdated. A read-only tree is used as it is.
        let (policy, is_changed) = choose_policy(&options, settings.as_ref());
        debug_assert!(!options.is_replica || !is_changed, "a replica has the owner's settings");
        let built_with = built_with.as_deref().map(Settings::decode).transpose()?;
        let must_rebuild = built_with.as_ref().is_none_or(|built_with| built_with.policy != policy);
        let rebuild = must_rebuild || !state.has_current_terms && !options.read_only;

        // 7. Restore the compression and the declared indexes, and assemble the store at the checkpoint's counters.
        let stored_compression = settings.as_ref().map(|settings| settings.compression);
        let compression = choose_compression(&options, stored_compression, log.end());
        let mut declared = restore_declared(settings, &state.paths)?;
        declared.lacks_collections = !rebuild && !state.has_current_terms;
        let TreeState { paths, shapes, persisted, compacted_before, history_floor, history_files, live_bytes, .. } =
            state;
        let dictionaries = (paths, shapes, state.compression);
        let files = StoreFiles { vfs, identity, log, blobs, tree };
        let store = Store::assemble(files, dictionaries, (policy, declared), options);
        // Settings of a new database are logged as they are chosen, others after recovery.
        store.parts.set_compression(stored_compression.unwrap_or(compression));
        store.parts.tree.set_compression(compression.compression.of_tree());
        if let (Some(checkpoint), false) = (checkpoint, rebuild) {
            store.start_at(&checkpoint, persisted);
            store.parts.set_compacted_before(compacted_before);
        }

        // 8. Replay the whole log into an empty tree, or the frames after the checkpoint into memtables.
        if rebuild {
            if built_with.is_some() {
                prescan = LogPrescan::scan_log(&store.parts.log, &store.parts.shapes, &store.parts.compression)?;
            }
            store.rebuild(&prescan, is_changed, progress)?;
        } else {
            for frame in tail {
                if store.replay(&frame.frame(), &prescan, None)? {
                    store.merge_sealed()?;
                }
            }
        }

        // 9. Publish everything replayed.
        store.finish_recovery()?;
        store.restore_floor(history_floor.filter(|_| !rebuild), &history_files)?;
        if store.parts.options.is_replica {
            store.begin_to_follow(live_bytes.keys().copied())?;
        }

        // 10. Log the compression if it is another one from here on.
        if stored_compression.is_some_and(|stored| stored != compression) {
            store.log_compression(compression)?;
        }

        // 11. Determine which declared indexes are ready, and which dropped ones left rows behind.
        store.restore_index_states()?;
        Ok(store)
    }

    /// Sets the counters to those of the checkpoint that replay continues from.
    fn start_at(&self, checkpoint: &Checkpoint, persisted: Persisted) {
        self.upkeep.lock().persisted = persisted;
        let mut writer = self.writer.lock();
        writer.next_sequence = checkpoint.next_sequence;
        writer.next_number = checkpoint.next_number;
        writer.log_end = checkpoint.replay_from;
    }

    fn assemble(
        StoreFiles { vfs, identity, log, blobs, tree }: StoreFiles,
        (paths, shapes, compression): (Paths, Shapes, DocumentCompression),
        (policy, declared): (Policy, DeclaredIndexes),
        options: crate::options::Options,
    ) -> Arc<Store> {
        let parts = StoreParts {
            vfs,
            identity,
            caches: ReadCaches::new(directory::cache_budgets(&options), options.column_cost_max),
            log,
            blobs,
            tree,
            shapes: Arc::new(shapes),
            compression,
            compression_since: LogPosition::START.to_u64().into(),
            paths,
            policy,
            declared_generation: declared.generation.into(),
            declared: RwLock::new(Arc::new(declared)),
            has_expiries: false.into(),
            publisher: publish::Publisher::new(),
            revs_limit: options.revs_limit.max(1).into(),
            compacted_before: LogPosition::START.to_u64().into(),
            history_floor: 0.into(),
            memory_bytes: options.memory_bytes.into(),
            options,
        };
        let writer = Writer {
            next_sequence: Sequence(1),
            next_number: FIRST_NUMBER,
            logged_shape_count: 0,
            named_in: 0,
            named_count: 0,
            named_dictionary_count: 0,
            logged_dictionary_count: 0,
            log_end: LogPosition::START,
        };
        Arc::new(Store {
            parts: Arc::new(parts),
            writer: Mutex::new(writer),
            view: RwLock::new(View { active: Arc::new(Memtable::new()), sealed: Vec::new() }),
            upkeep: Mutex::default(),
            compaction: Mutex::new(()),
            newer_keys: Mutex::default(),
            building: Mutex::new(()),
            index_builds: Default::default(),
            active_tasks: Default::default(),
            expiration_schedule: Default::default(),
            background: upkeep::Background::default(),
            memory_freed: Condvar::new(),
            memory_lock: Mutex::new(()),
            broken: Mutex::new(None),
            closed: false.into(),
            commit_hooks: super::commit_hook::CommitHooks::default(),
            stall_count: 0.into(),
            checkpoint_failure: Mutex::default(),
            pace: super::pace::Pace::default(),
            shipping: super::shipped_tree::Shipping::default(),
            deletions_only: false.into(),
            past_readers: Default::default(),
            overlays: Default::default(),
        })
    }

    /// Applies one frame of the log. Documents whose only record is in the frame go to `bulk`, if there is one. Returns
    /// whether memtables are sealed, so that a checkpoint is needed.
    pub(super) fn replay(
        &self,
        frame: &Frame<'_>,
        prescan: &LogPrescan,
        bulk: Option<&mut BulkReplay>,
    ) -> Result<bool> {
        let mut writer = self.writer.lock();
        self.replay_records(frame, prescan, bulk, &mut writer, &mut None)?;
        self.seal_if_full(&mut writer);
        drop(writer);
        Ok(!self.view.read().sealed.is_empty())
    }

    /// Applies the records of one frame. `effects` collects what readers are to be told, if there may be any.
    pub(super) fn replay_records(
        &self,
        frame: &Frame<'_>,
        prescan: &LogPrescan,
        mut bulk: Option<&mut BulkReplay>,
        writer: &mut Writer,
        effects: &mut Option<FrameEffects>,
    ) -> Result<()> {
        let mut snapshot = FrameSnapshot { store: self, snapshot: None };
        let mut next_sequence = frame.first_sequence;
        let mut locals = Vec::new();
        let mut takes_sequence = false;
        for record in records(frame) {
            let (location, record) = record?;
            let RecordLocation { position: at, length } = location;
            match record {
                Record::Revision(record) => {
                    if !record.relocated {
                        next_sequence = next_sequence.max(record.sequence.next());
                    }
                    let is_new = writer.reserve_number(record.number);
                    match &mut bulk {
                        Some(bulk) if prescan.is_only_record(record.number) => {
                            bulk.add(&self.parts, &record, location)?;
                        }
                        _ if prescan.has_snapshot_after(record.number, at) => {}
                        _ => {
                            let snapshot = snapshot.get()?;
                            let old = if is_new { None } else { snapshot.state(record.number)? };
                            self.replay_revision(snapshot, &record, old, location, effects)?;
                        }
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
                Record::Dictionary { number, bytes } => {
                    self.parts.compression.add(Dictionary::new(number, bytes))?;
                }
                Record::Settings(settings) => {
                    if let Some(effects) = effects {
                        effects.settings = Some(settings.to_vec());
                    }
                }
                Record::Leaves { number, .. } | Record::Snapshot { number, .. }
                    if prescan.has_snapshot_after(number, at) => {}
                Record::Leaves { number, leaves } => {
                    self.replay_leaves(snapshot.get()?, number, &leaves, at, effects)?
                }
                Record::Snapshot { number, row } => {
                    writer.reserve_number(number);
                    self.replay_snapshot_record(snapshot.get()?, (number, row), location, prescan, effects)?;
                }
                Record::Content { removed, digest, .. } => {
                    self.active_memtable().insert_content(digest, (!removed).then_some(location));
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
        writer.next_sequence = writer.next_sequence.max(next_sequence);
        writer.log_end = frame.end;
        writer.logged_shape_count = self.parts.shapes.len();
        writer.logged_dictionary_count = self.parts.compression.dictionary_count();
        Ok(())
    }

    fn replay_revision(
        &self,
        snapshot: &Snapshot,
        record: &RevisionRecord<'_>,
        old: Option<Arc<DocumentState>>,
        location: RecordLocation,
        effects: &mut Option<FrameEffects>,
    ) -> Result<()> {
        let Some(mut state) = self.parts.state_after(old.as_deref(), record, location)? else { return Ok(()) };
        if state.tree.winner().is_some_and(|winner| winner.revision == record.path[0]) {
            state.body = Some(Body::new(&*self.parts.packed(record, location.position)?));
        }
        self.replay_state(snapshot, old.as_deref(), state, effects)
    }

    /// Takes over the state in a snapshot record, unless the document is already in a newer state.
    fn replay_snapshot_record(
        &self,
        snapshot: &Snapshot,
        (number, row): (DocumentNumber, &[u8]),
        location: RecordLocation,
        prescan: &LogPrescan,
        effects: &mut Option<FrameEffects>,
    ) -> Result<()> {
        let stored =
            |stored: StoredRevision| if prescan.is_retired(stored.position) { StoredRevision::GONE } else { stored };
        let state = DocumentRow::decode(row).and_then(|row| row.snapshot_state(number, location, stored));
        let state = state.map_err(|error| error.within(format!("log {}", location.position)))?;
        let old = snapshot.state(number)?;
        old.as_ref().map_or(Ok(()), |old| old.check_id(state.id.as_str(), location.position))?;
        match old {
            Some(old) if old.sequence > state.sequence => Ok(()),
            old => self.replay_state(snapshot, old.as_deref(), state, effects),
        }
    }

    /// Removes the leaves that older records added and that had been replaced when this record was written. Leaves that
    /// newer records added are kept: the tree may hold them already.
    fn replay_leaves(
        &self,
        snapshot: &Snapshot,
        number: DocumentNumber,
        leaves: &[Revision],
        position: LogPosition,
        effects: &mut Option<FrameEffects>,
    ) -> Result<()> {
        let Some(old) = snapshot.state(number)? else { return Ok(()) };
        let mut state = DocumentState::clone(&old);
        let keeps = |leaf: &Leaf<StoredRevision>| leaves.contains(&leaf.revision) || leaf.payload.position > position;
        if !state.tree.retain_leaves(keeps) {
            return Ok(());
        }
        state.body = None;
        self.replay_state(snapshot, Some(&old), state, effects)
    }

    /// Inserts the state that a replayed record leads to into the memtable, with its difference to the index.
    fn replay_state(
        &self,
        snapshot: &Snapshot,
        old: Option<&DocumentState>,
        state: DocumentState,
        effects: &mut Option<FrameEffects>,
    ) -> Result<()> {
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
        if let (Some(effects), true) = (effects, is_event) {
            effects.add(snapshot, old, &state, new_terms.as_ref(), change)?;
        }
        self.active_memtable().insert(Arc::new(state), is_event, change);
        Ok(())
    }

    /// The terms of the winner, if it is live and its record still exists.
    pub(super) fn terms_of_winner(&self, snapshot: &Snapshot, state: &DocumentState) -> Result<Option<DocumentTerms>> {
        if state.tree.winner().is_none_or(|winner| winner.deleted || winner.payload == StoredRevision::GONE) {
            return Ok(None);
        }
        let document = snapshot.winner(state)?;
        let parts = &self.parts;
        let (id, packed) = (document.id().as_str(), document.packed()?);
        crate::index::document_terms(&parts.policy, &snapshot.declared, &parts.paths, id, packed).map(Some)
    }

    /// Publishes everything replayed.
    fn finish_recovery(&self) -> Result<()> {
        assert!(self.view.read().sealed.is_empty(), "replay merges every memtable that it seals");
        let mut writer = self.writer.lock();
        writer.logged_shape_count = self.parts.shapes.len();
        writer.logged_dictionary_count = self.parts.compression.dictionary_count();
        // A new log names each shape in its first segment, as it is first used.
        writer.named_in = writer.log_end.segment().max(1);
        self.parts.publisher.recovered(Sequence(writer.next_sequence.0 - 1), writer.next_number);
        drop(writer);
        Ok(())
    }
}

impl Writer {
    /// Ensures that new documents get numbers after this one. Returns whether no document before had it or a later one.
    fn reserve_number(&mut self, number: DocumentNumber) -> bool {
        let is_new = number >= self.next_number;
        self.next_number = self.next_number.max(DocumentNumber(number.0 + 1));
        is_new
    }
}

/// Opens the log. If there is a checkpoint, also returns the frames after it.
fn open_log(
    vfs: Arc<dyn Vfs>,
    options: &crate::options::Options,
    checkpoint: Option<&Checkpoint>,
) -> Result<(Log, Vec<OwnedFrame>)> {
    let replay_from = checkpoint.map(|checkpoint| checkpoint.replay_from);
    let clock = options.clock.clone();
    let log_options = LogOptions {
        segment_bytes: options.segment_bytes,
        database_id: None,
        replay_from,
        durable_at_least: replay_from.unwrap_or(LogPosition::START),
        now_us: TimeSource::new(move || clock.now_us()),
        follows: options.is_replica,
    };
    let mut tail = Vec::new();
    let log = Log::open(vfs, log_options, &mut |frame| {
        if checkpoint.is_some() {
            // Replay reads older records through the log, so it begins once the log is open.
            tail.push(OwnedFrame::of(&frame));
        }
        Ok(())
    })?;
    Ok((log, tail))
}

/// The declared indexes and schemas in these settings; none if there are no settings yet.
pub(super) fn restore_declared(settings: Option<Settings>, paths: &Paths) -> Result<DeclaredIndexes> {
    match settings {
        Some(Settings { definitions, next_index, schemas, history, .. }) => {
            Ok(DeclaredIndexes { schemas, history, ..DeclaredIndexes::restore(definitions, next_index, paths)? })
        }
        None => Ok(DeclaredIndexes { next_number: 1, ..DeclaredIndexes::default() }),
    }
}

/// The index policy to use, and whether it differs from the one in the log.
fn choose_policy(options: &crate::options::Options, stored: Option<&Settings>) -> (Policy, bool) {
    match (options.index.as_ref().filter(|_| !options.is_replica), stored) {
        (Some(wanted), Some(stored)) => (wanted.clone(), *wanted != stored.policy),
        (Some(wanted), None) => (wanted.clone(), true),
        (None, Some(stored)) => (stored.policy.clone(), false),
        (None, None) => (Policy::default(), true),
    }
}

/// The compression to use: that of the options, from the end of the log on if it differs from the stored one.
fn choose_compression(
    options: &crate::options::Options,
    stored: Option<CompressionSetting>,
    log_end: LogPosition,
) -> CompressionSetting {
    let Some(compression) = options.compression.filter(|_| !options.read_only && !options.is_replica) else {
        return stored.unwrap_or_default();
    };
    match stored {
        Some(stored) if stored.compression == compression => stored,
        Some(_) => CompressionSetting { compression, since: log_end },
        None => CompressionSetting { compression, since: LogPosition::START },
    }
}

/// A snapshot for the replay of one frame, taken when it is needed. No memtable is sealed within a frame, so it sees
/// everything that is replayed before and in it.
struct FrameSnapshot<'s> {
    store: &'s Store,
    snapshot: Option<Snapshot>,
}

impl FrameSnapshot<'_> {
    fn get(&mut self) -> Result<&Snapshot> {
        match &mut self.snapshot {
            Some(snapshot) => Ok(snapshot),
            none => {
                let mut snapshot = self.store.newest_snapshot()?;
                // A memtable that is still empty is not part of a snapshot otherwise.
                let active = self.store.active_memtable();
                if active.is_empty() {
                    snapshot.memtables.push(active);
                }
                Ok(none.insert(snapshot))
            }
        }
    }
}

impl StoreParts {
    /// The state of a document after a record, without a body, given the state before; none if the record changes
    /// nothing.
    pub(super) fn state_after(
        &self,
        old: Option<&DocumentState>,
        record: &RevisionRecord<'_>,
        RecordLocation { position, length }: RecordLocation,
    ) -> Result<Option<DocumentState>> {
        let stored = StoredRevision { position, length, logged_ancestors: record.ancestor_count() };
        old.map_or(Ok(()), |old| old.check_id(record.id, position))?;
        if old.is_some_and(|old| old.includes(record)) {
            return Ok(None);
        }
        let mut tree = old.map_or_else(RevisionTree::new, |old| old.tree.clone());
        let revs_limit = match record.pruned {
            PrunedAncestors::Unrecorded => Some(self.revs_limit()),
            PrunedAncestors::Nothing => None,
            PrunedAncestors::Beyond(revs_limit) => Some(revs_limit),
        };
        let added = ancestry::add(&mut tree, &record.path, record.deleted, stored, revs_limit)?;
        // The newest record of a leaf is the one that still exists.
        let is_leaf = tree.update_payload(&record.path[0], stored);
        if matches!(added.outcome, MergeOutcome::Unchanged) && !is_leaf {
            return Ok(None);
        }
        let old_replay_mode = old.map_or(ReplayMode::AnyOrder, |old| old.replay_mode);
        let old_sequence = old.map_or(Sequence::ZERO, |old| old.sequence);
        Ok(Some(DocumentState {
            number: record.number,
            id: DocumentId::new(record.id)?,
            sequence: old_sequence.max(record.sequence),
            tree,
            replay_mode: old_replay_mode.after(added.has_extra_ancestors),
            body: None,
        }))
    }
}

impl DocumentState {
    /// Returns `Corrupt` if the record at `position` assigns this document's number to another id.
    fn check_id(&self, id: &str, position: LogPosition) -> Result<()> {
        if self.id.as_str() == id {
            return Ok(());
        }
        let message = format!("log {position}: document number {} is `{}` and `{id}`", self.number.0, self.id);
        Err(Error::corrupt(message))
    }

    /// Whether the record was already applied: an interrupted checkpoint may have written a later state of the document
    /// to the tree. A relocated record has the sequence that the document had when it was relocated.
    fn includes(&self, record: &RevisionRecord<'_>) -> bool {
        let is_recorded = record.pruned != PrunedAncestors::Unrecorded;
        is_recorded && (record.sequence < self.sequence || (record.sequence == self.sequence && !record.relocated))
    }
}

fn missing_segment(number: u32) -> Error {
    Error::corrupt(format!("log/{number:010}.log is missing: documents in it can't be read"))
        .with_hint("put the file back, or restore a backup")
}
