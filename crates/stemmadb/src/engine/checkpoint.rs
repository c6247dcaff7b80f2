//! Checkpoint: merges a sealed memtable into the tree, in one transaction.
//!
//! Invariants:
//! - The log is flushed past a memtable, and all of it is published, before its transaction is committed.
//! - The transaction contains the checkpoint position: recovery replays exactly what the tree does not hold.
//! - The checkpoint position never moves back.
//! - The tree holds a shape only after the durable log does: a shape that no frame names may be redefined after a
//!   crash.
//!
//! Postings are written as changes, without reading what the tree holds. Only the number of distinct values of a path
//! needs that: of a path with many changed values, a sample is looked up.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::engine::background::Work;
use crate::engine::pace::CheckpointProgress;
use crate::engine::statistics::PathStatistics;
use crate::engine::upkeep::{RETRY, Upkeep};
use crate::engine::{Operation, Sealed, Store};
use crate::index::{self, Container, DocumentNumber, PathNumber, PostingKey, Presence};
use crate::layout::meta::{self, Checkpoint};
use crate::layout::settings::Settings;
use crate::layout::{self, ContentRow, DocumentRow, IdRow, LocalRow, posting_operand};
use crate::log::{Level, LogPosition, is_disk_full};
use crate::memtable::{
    BulkTable, ChangedTerm, DocumentState, LocalState, Memtable, MemtableTermWalk, PostingOverlay, RecordLocation,
    StoredRevision, TermBatch,
};
use crate::read::StoreParts;
use crate::read::statistics;
use crate::revision::Sequence;
use crate::tree::{Direction, Table, TreeSnapshot, TreeTransaction};
use crate::vfs::is_exhausted;
use crate::{Error, Result};

/// How long writers wait for a checkpoint that fails for lack of space.
const FAILING_MAX: Duration = Duration::from_secs(5);

/// How many of a path's changed terms are looked up in the tree.
const PROBE_COUNT: usize = 64;

/// How many dictionary entries the tree already holds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Persisted {
    pub(super) path_count: usize,
    pub(super) shape_count: usize,
    pub(super) dictionary_count: usize,
}

impl Store {
    /// Merges everything written so far into the tree.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.refuse_reentry(Operation::Checkpoint)?;
        self.parts.refuse_if_closed()?;
        if self.parts.options.read_only {
            return Ok(());
        }
        {
            let mut writer = self.writer.lock();
            self.seal(&mut writer);
        }
        self.merge_sealed()?;
        let mut upkeep = self.upkeep.lock();
        self.parts.divide_statistics(std::mem::take(&mut upkeep.overfull))
    }

    /// Merges the memtables that are sealed at this time, oldest first.
    pub(super) fn merge_sealed(&self) -> Result<()> {
        let mut upkeep = self.upkeep.lock();
        loop {
            let Some(sealed) = self.view.read().sealed.first().cloned() else { return Ok(()) };
            // Each entry is collected, then written.
            let progress = Arc::new(CheckpointProgress::new(2 * sealed.memtable.entry_count() as u64));
            self.pace.begin_checkpoint(sealed.memtable.byte_count(), &progress);
            let merged = self.parts.merge(&sealed, &mut upkeep, progress);
            self.pace.end_checkpoint(merged.is_ok());
            if let Err(error) = merged {
                return Err(self.note_failed_checkpoint(error));
            }
            *self.checkpoint_failure.lock() = None;
            let mut view = self.view.write();
            assert!(
                Arc::ptr_eq(&view.sealed[0].memtable, &sealed.memtable),
                "checkpoints are serialized, so the merged memtable is still the oldest"
            );
            view.sealed.remove(0);
            assert!(
                view.sealed.first().is_none_or(|next| sealed.log_end <= next.log_end),
                "the checkpoint position never moves back"
            );
            drop(view);
            self.memory_freed.notify_all();
            self.keep_pace()?;
        }
    }
}

/// The first of several checkpoints that failed for lack of space or descriptors.
pub(super) struct CheckpointFailure {
    since: Instant,
    error: Error,
}

impl Store {
    /// Records that a checkpoint failed. After any error but lack of space or descriptors, nothing more is written.
    /// Otherwise the memtable stays sealed, writes go on while there is memory, and the checkpoint is tried again.
    fn note_failed_checkpoint(&self, error: Error) -> Error {
        let is_full = is_disk_full(&error);
        let is_temporary = (is_full || error.io_cause().is_some_and(is_exhausted)) && !self.parts.log.is_poisoned();
        let error = match is_full && is_temporary {
            true => error.with_hint("free some space: the checkpoint is tried again, nothing is lost"),
            false => error,
        };
        if is_temporary {
            let failure = || CheckpointFailure { since: Instant::now(), error: error.duplicate() };
            self.checkpoint_failure.lock().get_or_insert_with(failure);
            self.background.schedule(Work::Upkeep, RETRY);
        } else {
            *self.broken.lock() = Some(error.duplicate().within("the checkpoint failed, so nothing more is written"));
        }
        self.memory_freed.notify_all();
        error
    }

    /// Returns an error to a writer that waits for memory if checkpoints have failed for a while.
    pub(super) fn refuse_if_checkpoints_fail(&self) -> Result<()> {
        match &*self.checkpoint_failure.lock() {
            Some(failure) if failure.since.elapsed() >= FAILING_MAX => {
                Err(failure.error.duplicate().within("memory is full, and the checkpoint that would free it fails"))
            }
            _ => Ok(()),
        }
    }
}

impl StoreParts {
    fn merge(&self, sealed: &Sealed, upkeep: &mut Upkeep, progress: Arc<CheckpointProgress>) -> Result<()> {
        let logged = Persisted {
            path_count: 0,
            shape_count: upkeep.persisted.shape_count.max(sealed.shape_count),
            dictionary_count: upkeep.persisted.dictionary_count.max(sealed.dictionary_count),
        };
        let mut merge = self.begin_merge(sealed.log_end, upkeep, logged)?;
        merge.transaction.report_to(move |entries| progress.add(entries));
        merge.merge_memtable_presences(&sealed.memtable)?;
        merge.merge_memtable_terms(&sealed.memtable)?;
        merge.merge_memtable_documents(&sealed.memtable)?;
        let checkpoint = Checkpoint {
            replay_from: sealed.log_end,
            next_sequence: sealed.next_sequence,
            next_number: sealed.next_number,
        };
        meta::put_checkpoint(&mut merge.transaction, &checkpoint)?;
        if !upkeep.is_rebuilding {
            let settings = Settings::encode(&self.policy, &sealed.declared, self.compression_setting());
            meta::put_settings(&mut merge.transaction, &settings)?;
        }
        self.finish_merge(merge, upkeep)
    }

    /// Merges new documents into the tree, whose records are in the log before `log_end`.
    pub(super) fn merge_bulk(&self, mut bulk: BulkTable, log_end: LogPosition, upkeep: &mut Upkeep) -> Result<()> {
        debug_assert!(upkeep.is_rebuilding, "only the end of a rebuild makes documents without a checkpoint valid");
        let (shape_count, dictionary_count) = (self.shapes.len(), self.compression.dictionary_count());
        let logged = Persisted { path_count: 0, shape_count, dictionary_count };
        let mut merge = self.begin_merge(log_end, upkeep, logged)?;
        merge.merge_bulk_presences(&bulk)?;
        merge.merge_bulk_terms(&mut bulk)?;
        merge.merge_bulk_documents(&mut bulk)?;
        self.finish_merge(merge, upkeep)
    }

    /// Begins a merge of what the log has before `log_end`. `logged`: how many shapes and dictionaries it has there.
    fn begin_merge(&self, log_end: LogPosition, upkeep: &Upkeep, logged: Persisted) -> Result<TreeMerge<'_>> {
        self.log.commit(log_end, Level::Flushed)?;
        // Every reader sees the tree, so what is merged must be published before.
        if !self.publisher.advance(&self.log) {
            return Err(Error::closed("the log failed, so nothing more is merged into the tree"));
        }
        // Counted first: writers may add paths at any time.
        let path_count = self.paths.len();
        assert!(upkeep.persisted.path_count <= path_count, "dictionaries only grow");
        let mut transaction = self.tree.write()?;
        meta::put_paths(&mut transaction, &self.paths, upkeep.persisted.path_count)?;
        let Persisted { shape_count, dictionary_count, .. } = upkeep.persisted;
        meta::put_shapes(&mut transaction, &self.shapes, shape_count..logged.shape_count)?;
        meta::put_dictionaries(&mut transaction, &self.compression, dictionary_count..logged.dictionary_count)?;
        let before = self.tree.read();
        let (changed, row_key, operand) = Default::default();
        let persisted = Persisted { path_count, ..logged };
        Ok(TreeMerge { before, transaction, persisted, changed, row_key, operand })
    }

    fn finish_merge(&self, merge: TreeMerge<'_>, upkeep: &mut Upkeep) -> Result<()> {
        let TreeMerge { transaction, persisted, changed, .. } = merge;
        transaction.commit()?;
        upkeep.persisted = persisted;
        changed.iter().for_each(|statistics| self.publish_statistics(statistics));
        upkeep.note_overfull(changed);
        Ok(())
    }
}

/// A merge of a memtable or a bulk table into the tree.
struct TreeMerge<'a> {
    /// The tree before the merge.
    before: Arc<TreeSnapshot>,
    transaction: TreeTransaction<'a>,
    /// What the tree holds afterwards.
    persisted: Persisted,
    /// The statistics that changed.
    changed: Vec<PathStatistics>,
    /// The key and the operand of the row that is being written.
    row_key: Vec<u8>,
    operand: Vec<u8>,
}

/// A merge of the terms of one path.
struct PathMerge {
    path: PathNumber,
    statistics: PathStatistics,
    /// Every how many terms one is looked up.
    interval: usize,
    /// Whether the tree had the term that was looked up last.
    was_there: bool,
    /// The number of terms merged.
    count: usize,
}

impl TreeMerge<'_> {
    fn merge_memtable_presences(&mut self, memtable: &Memtable) -> Result<()> {
        self.merge_presences(memtable.presences(), |path, presence, overlay| {
            memtable.presence(path, presence, Sequence::EVERYTHING, overlay);
        })
    }

    fn merge_bulk_presences(&mut self, bulk: &BulkTable) -> Result<()> {
        self.merge_presences(bulk.presences(), |path, presence, overlay| bulk.presence(path, presence, overlay))
    }

    /// Merges the changes of `presences`, which `collect` adds to an overlay.
    fn merge_presences(
        &mut self,
        presences: Vec<(PathNumber, Presence)>,
        collect: impl Fn(PathNumber, Presence, &mut PostingOverlay),
    ) -> Result<()> {
        let mut overlay = PostingOverlay::default();
        for (path, presence) in presences {
            overlay.clear();
            collect(path, presence, &mut overlay);
            overlay.settle();
            self.merge_postings(path, &presence.key(), overlay.changes())?;
        }
        Ok(())
    }

    /// Merges the changes of all terms.
    fn merge_memtable_terms(&mut self, memtable: &Arc<Memtable>) -> Result<()> {
        let mut batch = TermBatch::default();
        for path in memtable.paths() {
            let mut merge = self.begin_path(path, memtable.term_count(path))?;
            let mut terms = MemtableTermWalk::new(
                memtable.clone(),
                path,
                Bound::Unbounded,
                Bound::Unbounded,
                Direction::Ascending,
                Sequence::EVERYTHING,
            );
            while terms.next_batch(&mut batch) {
                batch.iter().try_for_each(|term| self.merge_term(&mut merge, &term))?;
            }
            self.finish_path(merge)?;
        }
        Ok(())
    }

    fn merge_bulk_terms(&mut self, bulk: &mut BulkTable) -> Result<()> {
        for (path, terms) in bulk.take_paths() {
            let mut terms = terms.sorted();
            let mut merge = self.begin_path(path, terms.len())?;
            terms.for_each(|term| self.merge_term(&mut merge, &term))?;
            self.finish_path(merge)?;
        }
        Ok(())
    }

    /// Begins the merge of `term_count` terms of a path.
    fn begin_path(&self, path: PathNumber, term_count: usize) -> Result<PathMerge> {
        let statistics = PathStatistics::begin(&self.before, path)?;
        let interval = term_count.div_ceil(PROBE_COUNT).max(1);
        Ok(PathMerge { path, statistics, interval, was_there: false, count: 0 })
    }

    fn finish_path(&mut self, merge: PathMerge) -> Result<()> {
        if merge.statistics.put(&mut self.transaction)? {
            self.changed.push(merge.statistics);
        }
        Ok(())
    }

    /// Merges the changes of one term, which is above those before.
    fn merge_term(&mut self, merge: &mut PathMerge, term: &ChangedTerm<'_>) -> Result<()> {
        let value_change = if merge.count.is_multiple_of(merge.interval) {
            merge.was_there = statistics::has_term(&self.before, merge.path, term.key)?;
            i64::from(self.will_be_there(merge.path, term, merge.was_there)?) - i64::from(merge.was_there)
        } else {
            // As the term looked up last.
            i64::from(!merge.was_there && term.entry_change > 0)
        };
        merge.count += 1;
        merge.statistics.add(term.key, term.entry_change, value_change)?;
        self.merge_postings(merge.path, term.key, term.changes)
    }

    /// Whether any document has a term after the merge.
    fn will_be_there(&self, path: PathNumber, term: &ChangedTerm<'_>, was_there: bool) -> Result<bool> {
        if term.changes.iter().any(|(_, gained)| *gained) {
            return Ok(true);
        }
        let lost = |number: DocumentNumber| term.changes.binary_search_by_key(&number, |change| change.0).is_ok();
        let (lower, upper) = (index::first_posting(path, term.key), index::after_postings(path, term.key));
        let mut rows = self.before.scan(
            Table::Postings,
            Bound::Included(&lower),
            Bound::Excluded(&upper),
            Direction::Ascending,
        )?;
        while was_there && let Some((row_key, stored)) = rows.next()? {
            let chunk = PostingKey::decode(row_key)?.chunk;
            let container = Container::decode(stored)?;
            if container.iter().any(|low| !lost(DocumentNumber::from_parts(chunk, low))) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the changes of one term, one chunk of documents at a time.
    fn merge_postings(&mut self, path: PathNumber, key: &[u8], changes: &[(DocumentNumber, bool)]) -> Result<()> {
        debug_assert!(
            changes.is_sorted_by(|left, right| left.0 < right.0),
            "an overlay lists each document once, in ascending order"
        );
        for changes in changes.chunk_by(|left, right| left.0.chunk() == right.0.chunk()) {
            let chunk = changes[0].0.chunk();
            self.row_key.clear();
            PostingKey { path, value: key, chunk }.encode(&mut self.row_key);
            self.operand.clear();
            if let &[(number, has_gained)] = changes {
                posting_operand::encode_one(number.low(), has_gained, &mut self.operand);
            } else {
                let of = |has_gained: bool| -> Container {
                    let members = changes.iter().filter(|(_, gained)| *gained == has_gained);
                    Container::from_sorted(&members.map(|(number, _)| number.low()).collect::<SmallVec<[u16; 16]>>())
                };
                posting_operand::encode(&of(true), &of(false), &mut self.operand);
            }
            self.transaction.merge(Table::Postings, &self.row_key, &self.operand)?;
        }
        Ok(())
    }

    fn merge_bulk_documents(&mut self, bulk: &mut BulkTable) -> Result<()> {
        let mut live = LiveChanges::default();
        for state in bulk.sorted_documents() {
            merge_document(&mut self.transaction, &layout::number_key(state.number.0), None, state, &mut live)?;
        }
        live.apply(&self.before, &mut self.transaction)
    }

    fn merge_memtable_documents(&mut self, memtable: &Memtable) -> Result<()> {
        let mut live = LiveChanges::default();
        // Numbers from here on are not in the tree yet.
        let first_new = meta::checkpoint(&self.before)?.map_or(DocumentNumber(0), |checkpoint| checkpoint.next_number);
        for state in memtable.newest_documents() {
            let key = layout::number_key(state.number.0);
            let old = match state.number < first_new {
                true => self.before.get(Table::Docs, &key)?,
                false => None,
            };
            let old = old.map(|row| DocumentRow::decode(&row)?.state(state.number)).transpose()?;
            merge_document(&mut self.transaction, &key, old.as_ref(), &state, &mut live)?;
        }
        for (id, state) in memtable.newest_locals() {
            let key = layout::id_key(&id);
            if let Some(value) = self.before.get(Table::Local, &key)? {
                let old = LocalRow::decode(&value)?;
                live.remove(RecordLocation { position: old.position, length: old.length });
            }
            live.add(state.stored.location());
            let LocalState { generation, deleted, stored: StoredRevision { position, length, .. }, .. } = *state;
            self.transaction.put(Table::Local, &key, &LocalRow { generation, deleted, position, length }.encode())?;
        }
        self.merge_contents(memtable, &mut live)?;
        live.apply(&self.before, &mut self.transaction)
    }

    fn merge_contents(&mut self, memtable: &Memtable, live: &mut LiveChanges) -> Result<()> {
        for (digest, content) in memtable.contents() {
            let key = digest.as_bytes();
            let old = self.before.get(Table::Contents, key)?.map(|row| ContentRow::decode(&row)).transpose()?;
            if let Some(ContentRow(old)) = old {
                live.remove(old);
            }
            match content.live() {
                Some(location) => {
                    live.add(location);
                    self.transaction.put(Table::Contents, key, &ContentRow(location).encode())?;
                }
                None if old.is_some() => self.transaction.delete(Table::Contents, key)?,
                None => {}
            }
        }
        Ok(())
    }
}

/// Writes one document's rows, and removes the rows and live bytes of its previous state.
fn merge_document(
    transaction: &mut TreeTransaction<'_>,
    key: &[u8],
    old: Option<&DocumentState>,
    state: &DocumentState,
    live: &mut LiveChanges,
) -> Result<()> {
    if let Some(old) = old {
        old.record_locations().for_each(|place| live.remove(place));
        if old.sequence != state.sequence {
            transaction.delete(Table::Sequences, &layout::number_key(old.sequence.0))?;
        }
    }
    state.record_locations().for_each(|place| live.add(place));
    transaction.put(Table::Docs, key, &DocumentRow::encode(state)?)?;
    transaction.put(Table::Ids, &layout::id_key(state.id.as_str()), &IdRow::of(state)?.encode())?;
    if old.is_none_or(|old| old.sequence != state.sequence) {
        transaction.put(
            Table::Sequences,
            &layout::number_key(state.sequence.0),
            &layout::number_key(state.number.0),
        )?;
    }
    Ok(())
}

/// The changes of segments' live bytes by one merge.
#[derive(Default)]
struct LiveChanges(BTreeMap<u32, i64>);

impl LiveChanges {
    fn add(&mut self, place: RecordLocation) {
        *self.0.entry(place.position.segment()).or_default() += i64::from(place.length);
    }

    fn remove(&mut self, place: RecordLocation) {
        *self.0.entry(place.position.segment()).or_default() -= i64::from(place.length);
    }

    fn apply(&self, before: &TreeSnapshot, tree: &mut TreeTransaction<'_>) -> Result<()> {
        self.0.iter().try_for_each(|(segment, change)| meta::change_live_bytes(before, tree, *segment, *change))
    }
}
