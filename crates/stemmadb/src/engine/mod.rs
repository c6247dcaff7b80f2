//! Where is everything? The log, the tree and the memtables, and how a write goes through them.
//!
//! Invariants:
//! - The tree never holds what the durable log does not: a checkpoint flushes the log past what it merges before it commits.
//! - What a reader sees was published; what was published is as durable as was asked.
//! - A memtable is dropped only after the tree holds all of it.
//!
//! Concurrency: `building`, then `compaction`, then `upkeep` (one checkpoint at a time), then `writer` (the writer lock), then `view`; nobody
//! waits for the disk while holding one of the last two.

mod ancestry;
mod check;
mod checkpoint;
mod commit_hook;
mod compact;
mod content_sweep;
mod declare;
pub(crate) mod directory;
mod edit;
mod expire;
mod info;
mod log_prescan;
mod progress;
mod recover;
mod salvage;
mod schemas;
mod shape_names;
mod statistics;
mod unique;
mod upkeep;
mod write;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::document::Document;
use crate::index::{DeclaredIndexes, DocumentNumber};
use crate::log::{Level, LogPosition};
use crate::memtable::Memtable;
use crate::options::Durability;
use crate::read::read_timestamp::ReadTimestamp;
use crate::read::{Snapshot, StoreParts};
use crate::revision::{Revision, Sequence};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, RwLock};
use crate::{Error, Result};

pub use check::{CheckReport, Damage};
pub(crate) use commit_hook::{CommitHook, OnAppended};
pub use content_sweep::Swept;
pub use declare::{Duplicates, IndexInfo, IndexState};
pub use edit::Edit;
pub use info::Info;
pub use progress::Progress;
pub(crate) use salvage::salvage;
pub use salvage::{SalvageReport, Salvaged, SalvagedRevision};
pub(crate) use upkeep::Upkeeper;
pub use write::Transaction;
use write::{Receipt, Writer};

/// An open database.
pub(crate) struct Store {
    pub(crate) parts: Arc<StoreParts>,
    writer: Mutex<Writer>,
    view: RwLock<View>,
    /// Held by whoever checkpoints.
    upkeep: Mutex<upkeep::Upkeep>,
    /// Held by whoever compacts.
    compaction: Mutex<()>,
    /// Held by whoever builds a declared index.
    building: Mutex<()>,
    declaring: declare::Declaring,
    sweeping: expire::Sweeping,
    wanted: upkeep::Wanted,
    /// Signalled when a checkpoint has freed memory, and when it never will.
    memory_freed: Condvar,
    memory_lock: Mutex<()>,
    /// Why upkeep stopped, if it did.
    broken: Mutex<Option<Error>>,
    closed: AtomicBool,
    commit_hooks: commit_hook::CommitHooks,
    /// The mark of the thread whose transaction is open.
    writing_thread: AtomicUsize,
    /// How often a writer waited for memory.
    stall_count: AtomicU64,
}

/// Notes that a transaction of this thread is open, as long as it lives.
struct Here<'a>(&'a AtomicUsize);

impl<'a> Here<'a> {
    fn mark(place: &'a AtomicUsize) -> Self {
        place.store(crate::sync::thread_mark(), Ordering::Relaxed);
        Here(place)
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What lies on top of the tree.
struct View {
    active: Arc<Memtable>,
    /// Oldest first.
    sealed: Vec<Sealed>,
}

/// A full memtable on its way into the tree.
#[derive(Clone)]
struct Sealed {
    memtable: Arc<Memtable>,
    /// The end of the last frame that is in it (or in an older one): once it is merged, recovery may begin here.
    log_end: LogPosition,
    next_sequence: Sequence,
    next_number: DocumentNumber,
    /// Shapes below this number are in the log at or before its end.
    shape_count: usize,
    /// The declared indexes as of that end.
    declared: Arc<DeclaredIndexes>,
}

impl Store {
    /// A snapshot of everything published.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        self.snapshot_at(None)
    }

    /// A snapshot of everything appended, published or not: what the writer works on. Call it under the writer lock.
    fn newest_snapshot(&self) -> Result<Snapshot> {
        self.snapshot_at(Some(Sequence(u64::MAX >> 1)))
    }

    /// Tree, sequence and memtables are taken under one lock, so no checkpoint can drop a memtable in between; and in this order:
    /// what a running checkpoint has merged so far was published before, and what is published is in the memtables already.
    fn snapshot_at(&self, at: Option<Sequence>) -> Result<Snapshot> {
        let view = self.view.read();
        let declared = self.parts.declared();
        let tree = self.parts.tree.read()?;
        let columns = self.parts.caches.columns.of(&tree);
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
        })
    }

    fn active_memtable(&self) -> Arc<Memtable> {
        self.view.read().active.clone()
    }

    /// Runs `work` under the writer lock and commits what it wrote, all or nothing.
    pub(crate) fn write<T>(
        &self,
        durability: Durability,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        self.refuse_reentry()?;
        self.wait_for_memory()?;
        let level = durability.level();
        let (seen, outcome) = {
            let mut writer = self.writer.lock();
            let _here = Here::mark(&self.writing_thread);
            let mut transaction = Transaction::begin(self, &writer)?;
            let seen = transaction.base().sequence();
            let result = work(&mut transaction);
            (seen, result.and_then(|result| Ok((result, transaction.commit(&mut writer, level)?))))
        };
        let (result, receipt) = match outcome {
            Ok((result, Some(receipt))) => (result, receipt),
            // What it read must not be known before it can be seen, and is there to stay.
            Ok((result, None)) => return self.wait_for(seen).map(|()| result),
            Err(error) => return self.wait_for(seen).and(Err(error)),
        };
        self.finish(receipt, level)?;
        if let Durability::Interval(interval) = durability {
            self.flush_within(interval)?;
        }
        Ok(result)
    }

    /// Asks `hook` before each transaction from now on, as long as it lives. Call it within a transaction to miss none.
    pub(crate) fn add_commit_hook(&self, hook: std::sync::Weak<dyn CommitHook>) {
        self.commit_hooks.add(hook);
    }

    /// A transaction that holds no lock and is never committed: it shows what its edits would do.
    pub(crate) fn speculate(&self) -> Result<Transaction<'_>> {
        Transaction::speculate(self)
    }

    /// The document `id`, of everything published; a hot one without a snapshot.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        match self.parts.caches.documents.get(id, self.parts.publisher.published()) {
            Some(document) if !self.parts.has_ended_by_now(&document)? => Ok(Some(document)),
            Some(_) => Ok(None),
            None => self.snapshot()?.get(id),
        }
    }

    /// Flushes everything appended.
    pub(crate) fn flush(&self) -> Result<()> {
        self.parts.log.commit(self.parts.log.end(), Level::Flushed)?;
        self.parts.publisher.advance(&self.parts.log);
        Ok(())
    }

    /// Applies one edit in a transaction of its own.
    pub(crate) fn edit(&self, durability: Durability, edit: Edit) -> Result<Revision> {
        let prepared = self.parts.prepare(edit)?;
        self.write(durability, |transaction| transaction.stage(prepared))
    }

    /// Applies each edit on its own merits, in one frame: one may fail and the others stand.
    pub(crate) fn bulk(&self, durability: Durability, edits: Vec<Edit>) -> Result<Vec<Result<Revision>>> {
        let prepared: Vec<_> = edits.into_iter().map(|edit| self.parts.prepare(edit)).collect();
        self.write(durability, |transaction| {
            transaction.judge_each();
            Ok(prepared.into_iter().map(|prepared| transaction.stage(prepared?)).collect())
        })
    }

    /// Waits until the transaction is as durable as was asked, and visible.
    fn finish(&self, receipt: Receipt, level: Level) -> Result<()> {
        let StoreParts { log, publisher, .. } = &*self.parts;
        let committed = log.commit(receipt.end, level);
        publisher.advance(log);
        // Whether it is visible decides: what readers saw is not refused, and what is refused nobody sees later.
        if publisher.wait_for(receipt.last_sequence, || committed.is_err() || log.is_poisoned()) {
            return Ok(());
        }
        publisher.wake(false);
        self.memory_freed.notify_all();
        committed.and_then(|()| Err(failed_before()))
    }

    /// Waits until what was written up to `sequence` is visible.
    fn wait_for(&self, sequence: Sequence) -> Result<()> {
        if self.parts.publisher.wait_for(sequence, || self.parts.log.is_poisoned()) {
            Ok(())
        } else {
            Err(failed_before())
        }
    }

    /// A write within a transaction on the same thread would wait for itself.
    fn refuse_reentry(&self) -> Result<()> {
        if self.writing_thread.load(Ordering::Relaxed) != crate::sync::thread_mark() {
            return Ok(());
        }
        Err(Error::invalid("a write to the database itself within a transaction of the same thread")
            .with_hint("write through the transaction that the function was given"))
    }

    fn refuse_if_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed("the database is closed"));
        }
        if self.parts.options.read_only {
            return Err(Error::unavailable("the database is open for reading only")
                .with_hint("to write, open it without `read_only`, on a disk that takes writes"));
        }
        match &*self.broken.lock() {
            Some(error) => Err(error.duplicate()),
            None => Ok(()),
        }
    }

    /// Makes a full memtable's place free. Call it under the writer lock. One half of the memory is written to while the other is
    /// merged: the more is merged at once, the fewer pages of the tree each document costs.
    fn seal_if_full(&self, writer: &mut Writer) {
        let full = self.active_memtable().byte_count() >= self.parts.options.memory_bytes / 2;
        if full {
            self.seal(writer);
        }
    }

    /// Seals the active memtable, if there is anything in it. Call it under the writer lock.
    fn seal(&self, writer: &mut Writer) {
        let mut view = self.view.write();
        if view.active.is_empty() {
            return;
        }
        let memtable = std::mem::replace(&mut view.active, Arc::new(Memtable::new()));
        view.sealed.push(Sealed {
            memtable,
            log_end: writer.log_end,
            next_sequence: writer.next_sequence,
            next_number: writer.next_number,
            shape_count: writer.logged_shape_count,
            declared: self.parts.declared(),
        });
        drop(view);
        self.wanted.ask();
    }

    fn memory_bytes(&self) -> usize {
        let view = self.view.read();
        view.sealed.iter().map(|sealed| sealed.memtable.byte_count()).sum::<usize>() + view.active.byte_count()
    }

    /// Holds a writer back while memtables fill their bound: slower, never refused.
    fn wait_for_memory(&self) -> Result<()> {
        if self.memory_bytes() <= self.parts.options.memory_bytes {
            return Ok(());
        }
        self.stall_count.fetch_add(1, Ordering::Relaxed);
        if !self.parts.options.background {
            return self.checkpoint();
        }
        let mut lock = self.memory_lock.lock();
        while self.memory_bytes() > self.parts.options.memory_bytes {
            self.refuse_if_closed()?;
            self.declaring.refuse_if_stopped()?;
            if self.view.read().sealed.is_empty() {
                break;
            }
            self.memory_freed.wait_for(&mut lock, std::time::Duration::from_millis(50));
        }
        Ok(())
    }
}

fn failed_before() -> Error {
    Error::closed("the log failed while this transaction waited for one before it")
        .with_hint("reopen the database: the transaction may or may not be in it")
}

#[cfg(test)]
mod tests;
