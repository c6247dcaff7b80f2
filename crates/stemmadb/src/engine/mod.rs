//! The storage engine: coordinates the log, the tree and the memtables for writes, checkpoints and recovery.
//!
//! Invariants:
//! - The tree never holds data that the durable log does not: a checkpoint flushes the log past the memtable that it
//!   merges before it commits.
//! - Readers see only published transactions, and a transaction is published once it is as durable as its writer
//!   requested.
//! - A memtable is dropped only after the tree holds all of it.
//!
//! Concurrency: locks are taken in the order `building`, `compaction`, `upkeep` (one checkpoint at a time), `writer`
//! (the writer lock), `view`. No thread waits for the disk while it holds one of the last two.

mod active_tasks;
mod ancestry;
mod background;
mod check;
mod checkpoint;
mod commit_hook;
mod compact;
mod content_sweep;
mod declare;
mod dictionaries;
pub(crate) mod directory;
mod edit;
mod expire;
mod export;
mod follow;
mod history;
pub(crate) mod identity;
mod info;
pub(crate) mod key_file;
mod log_prescan;
mod operations;
mod pace;
mod past;
mod rebuild;
mod recover;
mod reencrypt;
mod salvage;
mod schemas;
mod shape_names;
mod shipped_tree;
mod statistics;
mod unique;
mod upkeep;
mod write;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::cache::CacheShares;
use crate::cipher::EncryptionKey;
use crate::document::Document;
use crate::index::{DeclaredIndexes, DocumentNumber};
use crate::log::{Level, LogPosition};
use crate::memtable::Memtable;
use crate::options::Durability;
use crate::read::read_timestamp::ReadTimestamp;
use crate::read::{Snapshot, StoreParts};
use crate::revision::{Revision, Sequence};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::{Error, Result};
use pace::MemoryUse;

pub use active_tasks::{ActiveTask, ActiveTaskKind};
pub use check::{CheckReport, Damage};
pub(crate) use commit_hook::{CommitHook, OnAppended};
pub use content_sweep::SweepReport;
pub use declare::{Duplicates, IndexInfo, IndexState};
pub use edit::Edit;
pub(crate) use export::StoreExport;
pub(crate) use follow::{Follower, Poll, is_gone};
pub use info::{Info, OldestSnapshot};
pub(crate) use operations::{Operation, RunningOperation};
pub(crate) use salvage::salvage;
pub use salvage::{SalvageReport, Salvaged, SalvagedRevision};
pub(crate) use upkeep::Upkeeper;
use write::{Receipt, Writer};
pub use write::{Transaction, writing_as};

/// An open database: the shared read state, the writer, the memtables, and the state of background work.
pub(crate) struct Store {
    pub(crate) parts: Arc<StoreParts>,
    writer: Mutex<Writer>,
    view: RwLock<View>,
    /// Serializes checkpoints.
    upkeep: Mutex<upkeep::Upkeep>,
    /// Serializes compactions.
    compaction: Mutex<()>,
    /// Serializes builds of declared indexes.
    building: Mutex<()>,
    index_builds: declare::IndexBuilds,
    active_tasks: active_tasks::ActiveTasks,
    expiration_schedule: expire::ExpirationSchedule,
    background: upkeep::Background,
    /// Signaled when a checkpoint frees memory, and when no checkpoint can free any more.
    memory_freed: Condvar,
    memory_lock: Mutex<()>,
    /// The error that stopped background work, if any.
    broken: Mutex<Option<Error>>,
    closed: AtomicBool,
    commit_hooks: commit_hook::CommitHooks,
    /// How many times a writer had to wait for memory since the database was opened.
    stall_count: AtomicU64,
    /// Why no checkpoint has succeeded since a time, if the next one may.
    checkpoint_failure: Mutex<Option<checkpoint::CheckpointFailure>>,
    pace: pace::Pace,
    shipping: shipped_tree::Shipping,
    /// Whether only deletions are accepted, because there is little space.
    deletions_only: AtomicBool,
    past_readers: history::PastReaders,
    overlays: past::Overlays,
    /// Keys that replaced the one the database was opened with, newest last.
    newer_keys: Mutex<Vec<EncryptionKey>>,
}

/// The memtables on top of the tree.
struct View {
    active: Arc<Memtable>,
    /// Oldest first.
    sealed: Vec<Sealed>,
}

impl View {
    /// Memory used by the memtables.
    fn byte_count(&self) -> usize {
        self.sealed.iter().map(|sealed| sealed.memtable.byte_count()).sum::<usize>() + self.active.byte_count()
    }
}

/// A full memtable that waits to be merged into the tree.
#[derive(Clone)]
struct Sealed {
    memtable: Arc<Memtable>,
    /// The end of the last frame whose records this memtable (or an older one) holds. Once the memtable is merged,
    /// recovery may replay from here.
    log_end: LogPosition,
    next_sequence: Sequence,
    next_number: DocumentNumber,
    /// All shapes below this number are named in the log at or before `log_end`.
    shape_count: usize,
    /// All dictionaries below this number are in the log at or before `log_end`.
    dictionary_count: usize,
    /// The declared indexes as of `log_end`.
    declared: Arc<DeclaredIndexes>,
}

impl Store {
    /// A snapshot of everything published.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.parts.refuse_if_closed()?;
        self.snapshot_at(None)
    }

    /// A snapshot of everything appended, published or not: the state that a transaction starts from. The caller holds
    /// the writer lock.
    fn newest_snapshot(&self) -> Result<Snapshot> {
        self.snapshot_at(Some(Sequence::EVERYTHING))
    }

    /// Takes the snapshot under one lock, so that no checkpoint can drop a memtable in between. The order matters: what
    /// a running checkpoint has merged so far was published before, and what is published is in the memtables already.
    fn snapshot_at(&self, at: Option<Sequence>) -> Result<Snapshot> {
        let view = self.view.read();
        let declared = self.parts.declared();
        let tree = self.parts.tree.read();
        let columns = self.parts.caches.columns.for_tree(&tree);
        let is_published = at.is_none();
        let at = at.unwrap_or_else(|| self.parts.publisher.published());
        let mut memtables: SmallVec<[Arc<Memtable>; 4]> =
            view.sealed.iter().map(|sealed| sealed.memtable.clone()).collect();
        if !view.active.is_empty() {
            memtables.push(view.active.clone());
        }
        let segments = self.parts.log.segments_snapshot();
        let read_timestamp = ReadTimestamp::of(&declared, &self.parts.options.clock);
        Ok(Snapshot {
            parts: self.parts.clone(),
            at,
            is_published,
            memtables,
            tree,
            columns,
            segments,
            declared,
            read_timestamp,
            past: None,
        })
    }

    fn active_memtable(&self) -> Arc<Memtable> {
        self.view.read().active.clone()
    }

    /// Runs `work` under the writer lock and commits what it wrote, all or nothing.
    ///
    /// # Errors
    /// Whatever `work` returns; `Invalid` if this thread has a transaction open; `Closed` or `Unavailable` if the
    /// database takes no writes.
    pub(crate) fn write<T>(
        &self,
        durability: Durability,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        self.refuse_reentry(Operation::Write)?;
        self.wait_for_turn();
        self.wait_for_memory()?;
        let level = durability.level();
        let (base_sequence, outcome) = {
            let mut writer = self.writer.lock();
            let _running = self.begin(Operation::Write)?;
            let mut transaction = Transaction::begin(self, &writer)?;
            let base_sequence = transaction.base().sequence();
            let result = work(&mut transaction);
            (base_sequence, result.and_then(|result| Ok((result, transaction.commit(&mut writer, level)?))))
        };
        let (result, receipt) = match outcome {
            Ok((result, Some(receipt))) => (result, receipt),
            // A result that was read must not be returned before the data it was read from is published and durable.
            Ok((result, None)) => return self.wait_for(base_sequence).map(|()| result),
            Err(error) => return self.wait_for(base_sequence).and(Err(error)),
        };
        #[cfg(test)]
        let last_sequence = receipt.last_sequence;
        self.pace.add_write(receipt.memory_bytes);
        self.finish(receipt, level)?;
        if let Durability::Interval(interval) = durability {
            self.flush_within(interval)?;
        }
        self.keep_dictionary_current();
        self.watch_idleness();
        #[cfg(test)]
        self.check_sampled(last_sequence);
        Ok(result)
    }

    /// Verifies the whole database after a sample of the commits, if it is small: unit tests notice an inconsistency
    /// even if they don't call `check`.
    #[cfg(test)]
    fn check_sampled(&self, sequence: Sequence) {
        const INTERVAL: u64 = 97;
        const NUMBERS_MAX: u64 = 500;
        let is_due =
            sequence.get().is_multiple_of(INTERVAL) && self.parts.publisher.published_numbers().0 <= NUMBERS_MAX;
        // Compaction holds its lock while it writes.
        if !is_due || self.compaction.try_lock().is_none() {
            return;
        }
        // An error is a planned failure of the test's disk.
        if let Ok(report) = self.check(&mut |_| ()) {
            assert!(report.is_sound(), "inconsistent after the commit of {sequence:?}: {:?}", report.damages);
        }
    }

    /// Registers `hook`, which is asked before each later transaction for as long as it is alive. Register it within a
    /// transaction to miss none.
    pub(crate) fn add_commit_hook(&self, hook: std::sync::Weak<dyn CommitHook>) {
        self.commit_hooks.add(hook);
    }

    /// A transaction that holds no lock and is never committed: it shows what its edits would do.
    pub(crate) fn speculate(&self) -> Result<Transaction<'_>> {
        Transaction::speculate(self)
    }

    /// Reads the published document `id`. A cached document needs no snapshot.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        self.parts.refuse_if_closed()?;
        match self.parts.caches.documents.get(id, self.parts.publisher.published()) {
            Some(document) if !self.parts.has_expired_by_now(&document)? => Ok(Some(document)),
            Some(_) => Ok(None),
            None => self.snapshot()?.get(id),
        }
    }

    /// Flushes everything appended to the log.
    pub(crate) fn flush(&self) -> Result<()> {
        self.parts.refuse_if_closed()?;
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.parts.publisher.advance(&self.parts.log);
        Ok(())
    }

    /// Applies one edit in its own transaction.
    pub(crate) fn edit(&self, durability: Durability, edit: Edit) -> Result<Revision> {
        let prepared = self.parts.prepare(edit)?;
        self.write(durability, |transaction| transaction.stage(prepared))
    }

    /// Applies each edit independently, in one frame: one edit may fail while the others are committed.
    pub(crate) fn bulk(&self, durability: Durability, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        self.bulk_with(durability, edits, |_| true, |_, _| Ok(()))
    }

    /// Like [`Store::bulk`], but stops after an edit whose error `continues` does not accept. `also` then writes in the
    /// same frame; if it fails, nothing is written.
    pub(crate) fn bulk_with(
        &self,
        durability: Durability,
        edits: Vec<Edit>,
        continues: impl Fn(&Error) -> bool,
        also: impl FnOnce(&mut Transaction<'_>, &[Result<Revision>]) -> Result<()>,
    ) -> Result<Vec<Result<Revision>>> {
        let prepared: Vec<_> = edits.into_iter().map(|edit| self.parts.prepare(edit)).collect();
        self.write(durability, |transaction| {
            transaction.check_each_edit();
            let mut outcomes = Vec::with_capacity(prepared.len());
            for prepared in prepared {
                let outcome = prepared.and_then(|prepared| transaction.stage(prepared));
                let stops = outcome.as_ref().is_err_and(|error| !continues(error));
                outcomes.push(outcome);
                if stops {
                    break;
                }
            }
            also(transaction, &outcomes)?;
            Ok(outcomes)
        })
    }

    /// Waits until the transaction is as durable as requested, and published.
    fn finish(&self, receipt: Receipt, level: Level) -> Result<()> {
        let StoreParts { log, publisher, .. } = &*self.parts;
        let committed = log.commit(receipt.end, level);
        publisher.advance(log);
        // Publication decides the outcome: a write that readers saw is not reported as failed, and one that is reported
        // as failed is never published.
        if publisher.wait_for(receipt.last_sequence, || committed.is_err() || log.is_poisoned()) {
            return Ok(());
        }
        publisher.wake(false);
        self.memory_freed.notify_all();
        committed.and_then(|()| Err(failed_before()))
    }

    /// Waits until everything written up to `sequence` is published.
    fn wait_for(&self, sequence: Sequence) -> Result<()> {
        if self.parts.publisher.wait_for(sequence, || self.parts.log.is_poisoned()) {
            Ok(())
        } else {
            Err(failed_before())
        }
    }

    /// Returns an error if the database takes no writes.
    fn refuse_if_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::database_closed());
        }
        if self.parts.options.read_only {
            return Err(Error::unavailable("the database is open for reading only")
                .with_hint("to write, open it without `read_only`, on a disk that takes writes"));
        }
        self.refuse_if_broken()?;
        match self.parts.options.is_replica {
            true => Err(replica_refuses_writes()),
            false => Ok(()),
        }
    }

    /// Returns an error if the database is closed, or what was derived from the log could not be written.
    fn refuse_if_broken(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::database_closed());
        }
        match &*self.broken.lock() {
            Some(error) => Err(error.duplicate()),
            None => Ok(()),
        }
    }

    /// Seals the active memtable if it is full. The caller holds the writer lock. One half of the memory takes writes
    /// while the other half is merged: the more one checkpoint merges, the fewer runs are merged later.
    fn seal_if_full(&self, writer: &mut Writer) {
        if self.is_full(&self.active_memtable()) {
            self.seal(writer);
        }
    }

    /// Contents in the log count like memory: recovery reads them after a crash until the memtable is merged.
    fn is_full(&self, memtable: &Memtable) -> bool {
        memtable.byte_count().max(memtable.content_bytes()) >= self.parts.memory_bytes_max() / 2
    }

    /// Seals the active memtable unless it is empty. The caller holds the writer lock.
    fn seal(&self, writer: &mut Writer) {
        if !self.active_memtable().is_empty() {
            self.seal_even_if_empty(writer);
        }
    }

    /// Seals the active memtable. Merging an empty one only moves the checkpoint to the end of the log.
    fn seal_even_if_empty(&self, writer: &mut Writer) {
        let active = self.active_memtable();
        // After a full memtable, the next one probably gets full as well.
        let next = if self.is_full(&active) { Memtable::with_room_of(&active) } else { Memtable::new() };
        let mut view = self.view.write();
        debug_assert!(
            view.sealed.last().is_none_or(|last| {
                last.log_end <= writer.log_end
                    && last.next_sequence <= writer.next_sequence
                    && last.next_number <= writer.next_number
            }),
            "memtables are sealed in log order"
        );
        let memtable = std::mem::replace(&mut view.active, Arc::new(next));
        view.sealed.push(Sealed {
            memtable,
            log_end: writer.log_end,
            next_sequence: writer.next_sequence,
            next_number: writer.next_number,
            shape_count: writer.logged_shape_count,
            dictionary_count: writer.logged_dictionary_count,
            declared: self.parts.declared(),
        });
        drop(view);
        self.request_checkpoint();
    }

    fn memory_bytes(&self) -> usize {
        self.view.read().byte_count()
    }

    /// Changes the memory of the open database: the bounds on its caches and on its memtables. What exceeds the latter
    /// is merged in the background.
    pub(crate) fn set_memory(&self, cache_bytes: u64, memory_bytes: usize) {
        let shares = CacheShares::of(directory::cache_budgets(&self.parts.options).scaled_to(cache_bytes));
        self.parts.caches.set_bytes_max(shares);
        self.parts.tree.set_cache_bytes(shares.tree_bytes);
        // Nothing can be merged into a tree that is read only.
        if self.parts.options.read_only {
            return;
        }
        self.parts.memory_bytes.store(memory_bytes.max(1 << 20), Ordering::Relaxed);
        if self.parts.options.background && self.is_full(&self.active_memtable()) {
            // A running write seals it when it commits.
            if let Some(mut writer) = self.writer.try_lock() {
                self.seal_if_full(&mut writer);
            }
        }
    }

    /// Whether the database takes writes: it was opened for writing, and no write or flush of the log has failed.
    pub(crate) fn takes_writes(&self) -> bool {
        let StoreParts { options, log, .. } = &*self.parts;
        !options.read_only && !options.is_replica && !log.is_poisoned() && self.broken.lock().is_none()
    }

    /// Sets whether only deletions are accepted.
    pub(crate) fn set_deletions_only(&self, deletions_only: bool) {
        self.deletions_only.store(deletions_only, Ordering::Release);
    }

    /// Returns an error if only deletions are accepted.
    pub(crate) fn refuse_if_deletions_only(&self) -> Result<()> {
        match self.deletions_only.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::unavailable("the disk is full: only deletions are accepted")
                .with_hint("free some space; other writes are accepted again by themselves")),
        }
    }

    /// Slows a writer down while checkpoints or merges don't keep up.
    fn wait_for_turn(&self) {
        if !self.parts.options.background {
            return;
        }
        let delay = self.pace.delay(self.memory_use(), self.parts.tree.run_count());
        if let Some(delay) = delay {
            std::thread::sleep(delay);
        }
    }

    fn memory_use(&self) -> MemoryUse {
        let view = self.view.read();
        let used = view.byte_count();
        MemoryUse {
            free: self.parts.memory_bytes_max().saturating_sub(used),
            sealed: view.sealed.first().map(|sealed| sealed.memtable.byte_count()),
        }
    }

    /// Blocks a writer while the memtables exceed their memory bound. Writers slow down; they are not refused.
    fn wait_for_memory(&self) -> Result<()> {
        if self.memory_bytes() <= self.parts.memory_bytes_max() {
            return Ok(());
        }
        self.stall_count.fetch_add(1, Ordering::Relaxed);
        if !self.parts.options.background {
            return self.checkpoint();
        }
        let mut lock = self.memory_lock.lock();
        while self.memory_bytes() > self.parts.memory_bytes_max() {
            self.refuse_if_broken()?;
            self.index_builds.refuse_if_stopped()?;
            self.refuse_if_checkpoints_fail()?;
            if self.view.read().sealed.is_empty() {
                break;
            }
            self.memory_freed.wait_for(&mut lock, Duration::from_millis(50));
        }
        Ok(())
    }
}

fn replica_refuses_writes() -> Error {
    Error::unavailable("this is a replica of the database: the owner of its log takes the writes")
        .with_hint("write to the process that owns the log")
}

fn failed_before() -> Error {
    Error::closed("the log failed while this transaction waited for one before it")
        .with_hint("reopen the database: the transaction may or may not be in it")
}

#[cfg(test)]
mod tests;
