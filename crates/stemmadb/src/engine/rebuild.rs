//! Rebuild: computes the tree again from the whole log.
//!
//! Most documents have one record in the log, and nothing else depends on it. Their rows and terms are collected in
//! [bulk tables](BulkTable), which are sorted and written to the tree without being read. Documents with several
//! records are replayed one record after the other, by memtables.
//!
//! Invariant: a tree that bulk tables are written to has no settings until everything is in it. Without them, opening
//! it begins a new rebuild.

use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};

use crate::engine::log_prescan::LogPrescan;
use crate::engine::{Store, declare};
use crate::index::{DeclaredIndexes, DocumentTerms};
use crate::layout::meta::{self, Checkpoint};
use crate::layout::record::{Record, RevisionRecord};
use crate::log::LogPosition;
use crate::memtable::{BulkTable, RecordLocation};
use crate::options::{Durability, Progress};
use crate::read::StoreParts;
use crate::tree::MergeGoal;
use crate::value::PackedValue;
use crate::{Error, Result};

/// A log that has at most this part of the memory for writes is replayed into memtables alone.
const SMALL_LOG_PART: u64 = 4;

/// What is merged into the tree next.
enum ReplayedPart {
    /// The memtables that are sealed.
    Sealed,
    /// New documents, whose records are before the position.
    Bulk(Box<BulkTable>, LogPosition),
}

/// Collects documents with a single record.
pub(super) struct BulkReplay {
    table: BulkTable,
    declared: Arc<DeclaredIndexes>,
    /// The terms of one document. Reusing them saves allocations.
    terms: DocumentTerms,
}

impl BulkReplay {
    /// Adds a document whose only record this is.
    pub(super) fn add(
        &mut self,
        parts: &StoreParts,
        record: &RevisionRecord<'_>,
        location: RecordLocation,
    ) -> Result<()> {
        let state = parts.state_after(None, record, location)?;
        let state = state.ok_or_else(|| Error::internal("the first record of a document changes nothing"))?;
        match record.deleted {
            true => self.terms.clear(),
            false => {
                let packed = parts.packed(record, location.position)?;
                let packed = PackedValue::new(&packed, &parts.shapes)?;
                self.terms.collect(&parts.policy, &self.declared, &parts.paths, record.id, packed)?;
            }
        }
        self.table.insert(state, &self.terms);
        Ok(())
    }
}

impl Store {
    /// Empties the tree and computes it from the whole log.
    pub(super) fn rebuild(
        &self,
        prescan: &LogPrescan,
        is_changed: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let options = &self.parts.options;
        let is_small = self.parts.log.used_bytes() < options.memory_bytes as u64 / SMALL_LOG_PART;
        self.begin_rebuild(is_changed, is_small)?;
        if is_small {
            let merge_sealed = |part| self.merge_part(part);
            self.replay_segments(prescan, None, progress, &merge_sealed)?;
            return self.merge_unless_whole();
        }
        self.upkeep.lock().is_rebuilding = true;
        let bulk = BulkReplay {
            table: BulkTable::default(),
            declared: self.parts.declared(),
            terms: DocumentTerms::default(),
        };
        match options.background {
            true => self.replay_with_threads(prescan, bulk, progress)?,
            false => self.replay_segments(prescan, Some(bulk), progress, &|part| self.merge_part(part))?,
        }
        self.finish_rebuild()
    }

    /// Empties the tree. New settings are logged first: if a crash interrupts the rebuild, the next one uses the same
    /// settings. `is_valid`: whether the tree is valid from then on, with the checkpoints that follow.
    fn begin_rebuild(&self, is_changed: bool, is_valid: bool) -> Result<()> {
        let settings = self.parts.settings();
        if is_changed {
            let mut payload = self.parts.log.new_payload();
            Record::Settings(&settings).encode(&mut payload);
            let appended = self.parts.log.append(self.writer.lock().next_sequence, &payload)?;
            self.parts.log.commit(appended.end, Durability::Sync.level())?;
        }
        self.parts.tree.clear()?;
        let mut tree = self.parts.tree.write()?;
        if is_valid {
            meta::put_settings(&mut tree, &settings)?;
        }
        meta::put_current_terms(&mut tree)?;
        // Everything merged from here on has the terms of every declared index.
        for index in &self.parts.declared().indexes {
            meta::put_ready_index(&mut tree, index.definition.number, &declare::key_format(&index.definition))?;
        }
        tree.commit()
    }

    /// Merges what was replayed into memory, unless the log has every record that was ever written: memtables show the
    /// past only if nothing is missing in them.
    fn merge_unless_whole(&self) -> Result<()> {
        let segments = self.parts.log.segments();
        if segments.last().is_none_or(|newest| newest.number as usize == segments.len()) {
            return Ok(());
        }
        self.seal(&mut self.writer.lock());
        self.merge_sealed()
    }

    /// Makes the tree valid: everything in the log is in it.
    fn finish_rebuild(&self) -> Result<()> {
        let checkpoint = {
            let mut writer = self.writer.lock();
            self.seal(&mut writer);
            Checkpoint {
                replay_from: writer.log_end,
                next_sequence: writer.next_sequence,
                next_number: writer.next_number,
            }
        };
        self.merge_sealed()?;
        self.upkeep.lock().is_rebuilding = false;
        let mut tree = self.parts.tree.write()?;
        meta::put_checkpoint(&mut tree, &checkpoint)?;
        meta::put_settings(&mut tree, &self.parts.settings())?;
        tree.commit()
    }

    fn merge_part(&self, part: ReplayedPart) -> Result<()> {
        match part {
            ReplayedPart::Sealed => self.merge_sealed(),
            ReplayedPart::Bulk(table, log_end) => self.parts.merge_bulk(*table, log_end, &mut self.upkeep.lock()),
        }
    }

    /// As [`Store::replay_segments`]; sorts and writes on a second thread, and merges the tree on a third.
    fn replay_with_threads(
        &self,
        prescan: &LogPrescan,
        bulk: BulkReplay,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        std::thread::scope(|scope| {
            // A send waits until the part before is written, so memory holds at most two.
            let (part_sender, parts) = mpsc::sync_channel(0);
            let (written_sender, written) = mpsc::sync_channel(1);
            let writing = spawn_worker(scope, move || {
                parts.iter().try_for_each(|part| {
                    self.merge_part(part)?;
                    // A thread that is merging looks for further merges by itself.
                    written_sender.try_send(()).ok();
                    Ok(())
                })
            })?;
            let tree = &self.parts.tree;
            let merging = spawn_worker(scope, move || {
                written.iter().try_for_each(|()| {
                    while tree.merge_step(MergeGoal::Pace)? {}
                    Ok(())
                })
            })?;
            // Sending fails after an error of the second thread, which is returned below.
            let send = |part| part_sender.send(part).map_err(|_| Error::closed(""));
            let replayed = self.replay_segments(prescan, Some(bulk), progress, &send);
            drop(part_sender);
            finish(writing).and(finish(merging)).and(replayed)
        })
    }

    /// Replays the whole log. Calls `merge` with what has to be merged to free memory, and with what `bulk` has at the
    /// end.
    fn replay_segments(
        &self,
        prescan: &LogPrescan,
        mut bulk: Option<BulkReplay>,
        progress: &mut dyn FnMut(Progress),
        merge: &dyn Fn(ReplayedPart) -> Result<()>,
    ) -> Result<()> {
        let bulk_bytes_max = self.parts.options.memory_bytes;
        let segments = self.parts.log.segments();
        let total = segments.iter().map(|segment| segment.used_bytes).sum();
        let (mut done, mut log_end) = (0, LogPosition::START);
        for segment in &segments {
            let mut within = 0;
            self.parts.log.frames(segment.number, &mut |frame| {
                log_end = frame.end;
                if self.replay(&frame, prescan, bulk.as_mut())? {
                    merge(ReplayedPart::Sealed)?;
                }
                if let Some(bulk) = bulk.as_mut().filter(|bulk| bulk.table.byte_count() >= bulk_bytes_max) {
                    merge(ReplayedPart::Bulk(Box::new(std::mem::take(&mut bulk.table)), log_end))?;
                }
                within = u64::from(frame.end.offset());
                progress(Progress { done: done + within, total });
                Ok(())
            })?;
            done += segment.used_bytes;
            progress(Progress { done, total });
        }
        match bulk.filter(|bulk| !bulk.table.is_empty()) {
            Some(bulk) => merge(ReplayedPart::Bulk(Box::new(bulk.table), log_end)),
            None => Ok(()),
        }
    }
}

/// A thread that works beside the replay of the log.
fn spawn_worker<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> Result<()> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<()>>> {
    let thread = std::thread::Builder::new().name("stemma-rebuild".to_owned());
    thread.spawn_scoped(scope, work).map_err(Error::no_thread)
}

/// Waits for the end of a thread, and returns its error.
fn finish(worker: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
