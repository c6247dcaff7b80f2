//! Upkeep of one database: checkpoints, compaction, merges of the tree, timed flushes and expiration. The
//! [background pool](super::background) calls it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Store;
use crate::engine::background::{Registration, Work};
use crate::engine::checkpoint::Persisted;
use crate::engine::statistics::PathStatistics;
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::tree::MergeGoal;
use crate::{Error, Result};

/// A memtable that was not written to for this long is merged, so that later reads find everything in the tree; and
/// runs of the tree are merged further.
const IDLE: Duration = Duration::from_millis(300);

/// Idle memtables below this size are not merged: reading through them costs next to nothing.
const IDLE_BYTES: usize = 256 << 10;

/// Delay after a failed merge or checkpoint, such as on a full disk.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// State that only the running checkpoint uses.
#[derive(Default)]
pub(super) struct Upkeep {
    pub(super) persisted: Persisted,
    /// The statistics with ranges that have grown too large. The next checkpoint that changes them splits these ranges;
    /// so does the last one before the database is idle.
    pub(super) overfull: Vec<PathStatistics>,
    /// Whether the tree lacks documents that are before its checkpoint, so that it is not valid yet.
    pub(super) is_rebuilding: bool,
}

impl Upkeep {
    /// Records the statistics that a checkpoint changed.
    pub(super) fn note_overfull(&mut self, changed: Vec<PathStatistics>) {
        self.overfull.retain(|old| changed.iter().all(|new| new.path() != old.path()));
        self.overfull.extend(changed.into_iter().filter(PathStatistics::is_overfull));
    }
}

/// The background work of a database.
#[derive(Default)]
pub(super) struct Background {
    registration: Mutex<Option<Arc<Registration>>>,
    /// Whether an upkeep is scheduled that finds out whether the database is idle.
    watches_idleness: AtomicBool,
    /// When that upkeep was scheduled, and the published sequence at that time.
    watched_since: Mutex<Option<(Instant, Sequence)>>,
    is_at_rest: AtomicBool,
    /// The deadline of the next flush for writes with interval durability.
    flush_at: Mutex<Option<Instant>>,
    is_stopping: AtomicBool,
}

impl Background {
    /// Whether the database is being closed: long work ends early.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Schedules work, if the database has background work.
    pub(super) fn schedule(&self, work: Work, delay: Duration) {
        if let Some(registration) = &*self.registration.lock() {
            registration.schedule(work, delay);
        }
    }
}

/// The background work of a database; stopping it closes the database.
pub(crate) struct Upkeeper {
    registration: Option<Arc<Registration>>,
    index_builder: Option<std::thread::JoinHandle<()>>,
}

impl Upkeeper {
    /// Starts the background work that the options ask for.
    ///
    /// # Errors
    /// `Unavailable` if a thread can't be started; then nothing runs, and the store is closed.
    pub(crate) fn start(store: &Arc<Store>) -> Result<Self> {
        let mut upkeeper = Upkeeper { registration: None, index_builder: None };
        match upkeeper.start_work(store) {
            Ok(()) => Ok(upkeeper),
            Err(error) => {
                // Work that kept running would keep the database open. Errors while closing it are reported when it is
                // opened again.
                upkeeper.stop(store).ok();
                Err(error)
            }
        }
    }

    fn start_work(&mut self, store: &Arc<Store>) -> Result<()> {
        if store.parts.options.read_only {
            return Ok(());
        }
        if !store.parts.options.background {
            return store.finish_index_work();
        }
        let registration = Arc::new(Registration::new(Arc::downgrade(store))?);
        self.registration = Some(registration.clone());
        *store.background.registration.lock() = Some(registration);
        if store.has_upkeep() {
            store.background.schedule(Work::Upkeep, Duration::ZERO);
        }
        store.watch_idleness();
        store.begin_expiration();
        if store.has_unfinished_indexes() {
            let builder = store.clone();
            let thread = std::thread::Builder::new().name("stemma-index".to_owned());
            // A write error is kept in `broken`; an index that is not ready is built when the database is opened again.
            let thread = thread.spawn(move || _ = builder.build_unfinished()).map_err(Error::no_thread)?;
            self.index_builder = Some(thread);
        }
        Ok(())
    }

    /// Stops background work, merges what is in memory, flushes and closes the log. All later reads and writes fail.
    pub(crate) fn stop(self, store: &Store) -> Result<()> {
        store.stop_building();
        store.background.is_stopping.store(true, Ordering::Relaxed);
        if let Some(registration) = self.registration {
            registration.stop();
        }
        if self.index_builder.is_some_and(|thread| thread.join().is_err()) {
            store.note_panic();
        }
        let is_healthy = store.broken.lock().is_none() && !store.parts.log.is_poisoned();
        let merged = if is_healthy && !store.parts.options.read_only { store.checkpoint() } else { Ok(()) };
        {
            let _writer = store.writer.lock();
            store.closed.store(true, Ordering::Release);
        }
        if is_healthy {
            // Without the copy, the next owner replays more.
            store.ship_tree().ok();
        }
        let closed = if is_healthy { store.parts.log.close() } else { Ok(()) };
        store.parts.tree.close();
        store.parts.publisher.wake(true);
        merged.and(closed)
    }
}

impl Store {
    /// Does scheduled work.
    pub(super) fn do_work(&self, work: Work) {
        match work {
            Work::Upkeep => self.do_upkeep(),
            Work::Merge => self.do_merge_step(),
            Work::Compact => self.do_compaction(),
            Work::Flush => self.flush_if_due(),
            Work::Expire => self.expire_due(),
            Work::Train => self.try_training(),
            // If it fails, the next upkeep tries again: only a take-over would take longer.
            Work::Ship => _ = self.ship_tree(),
        }
    }

    /// Records that background work panicked; the next writer reports it.
    pub(super) fn note_panic(&self) {
        *self.broken.lock() = Some(Error::internal("an upkeep thread panicked"));
        self.memory_freed.notify_all();
    }

    /// Whether background work is running now.
    pub(crate) fn has_running_work(&self) -> bool {
        self.background.registration.lock().as_ref().is_some_and(|registration| registration.has_running_work())
    }

    /// Requests a checkpoint of the sealed memtables.
    pub(super) fn request_checkpoint(&self) {
        self.background.schedule(Work::Upkeep, Duration::ZERO);
    }

    /// Ensures that upkeep notices when the database is idle again. Called after each write.
    pub(super) fn watch_idleness(&self) {
        if self.background.watches_idleness.load(Ordering::Relaxed)
            || self.background.watches_idleness.swap(true, Ordering::AcqRel)
        {
            return;
        }
        *self.background.watched_since.lock() = Some((Instant::now(), self.parts.publisher.published()));
        self.background.schedule(Work::Upkeep, IDLE);
    }

    /// Whether the database is idle: nothing was written since this upkeep was scheduled.
    fn is_idle(&self) -> bool {
        let Some((since, published)) = *self.background.watched_since.lock() else { return false };
        let rest = IDLE.saturating_sub(since.elapsed());
        if !rest.is_zero() {
            self.background.schedule(Work::Upkeep, rest);
            return false;
        }
        *self.background.watched_since.lock() = None;
        self.background.watches_idleness.store(false, Ordering::Release);
        let is_idle = published == self.parts.publisher.published();
        if !is_idle {
            self.watch_idleness();
        }
        is_idle
    }

    fn do_upkeep(&self) {
        let is_idle = self.is_idle();
        let is_worthwhile = self.active_memtable().byte_count() >= IDLE_BYTES;
        // A failure is kept in `broken`, where the next writer finds it, or the checkpoint is tried again.
        let kept_up = if is_idle && is_worthwhile { self.checkpoint() } else { self.merge_sealed() };
        let swept = kept_up.and_then(|()| self.sweep_dropped_indexes());
        if self.parts.options.is_replica {
            return self.rest_if(is_idle);
        }
        let swept = swept.and_then(|()| self.sweep_content_if_needed());
        if swept.is_ok_and(|()| self.wasteful_segment().is_ok_and(|segment| segment.is_some())) {
            self.background.schedule(Work::Compact, Duration::ZERO);
        }
        if self.must_ship_tree() {
            self.background.schedule(Work::Ship, Duration::ZERO);
        }
        self.rest_if(is_idle);
    }

    /// Has the tree merged further if the database is idle.
    fn rest_if(&self, is_idle: bool) {
        if is_idle {
            self.background.is_at_rest.store(true, Ordering::Relaxed);
            self.background.schedule(Work::Merge, Duration::ZERO);
        }
    }

    /// Whether the last use of the database left upkeep to do.
    fn has_upkeep(&self) -> bool {
        !self.view.read().sealed.is_empty() || self.has_dropped_indexes()
    }

    /// Compacts one segment of the log, and schedules the next one.
    fn do_compaction(&self) {
        match self.compact_if_worthwhile() {
            Ok(true) => self.background.schedule(Work::Compact, Duration::ZERO),
            Ok(false) => {}
            // Damage, or a failed write, which the next writer finds in `broken`. The next upkeep tries again.
            Err(_) => _ = self.memory_freed.notify_all(),
        }
    }

    /// Does one step of a merge of the tree, and schedules the next one.
    fn do_merge_step(&self) {
        let is_at_rest = self.background.is_at_rest.load(Ordering::Relaxed);
        let goal = if is_at_rest { MergeGoal::Rest } else { MergeGoal::Pace };
        match self.parts.tree.merge_step(goal) {
            Ok(true) => self.background.schedule(Work::Merge, Duration::ZERO),
            Ok(false) => {
                self.background.is_at_rest.store(false, Ordering::Relaxed);
                if is_at_rest {
                    self.parts.tree.close_files();
                    self.parts.log.close_idle_file();
                }
            }
            Err(error) if error.kind() == crate::ErrorKind::Unavailable => self.background.schedule(Work::Merge, RETRY),
            // Damage: reads report it.
            Err(_) => {}
        }
    }

    /// Does the merges of the tree that are due, or leaves them to the background.
    pub(super) fn keep_pace(&self) -> Result<()> {
        if self.parts.options.background {
            self.background.schedule(Work::Merge, Duration::ZERO);
            return Ok(());
        }
        loop {
            match self.parts.tree.merge_step(MergeGoal::Pace) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // The next checkpoint tries again; this one has succeeded.
                Err(error) if error.kind() == crate::ErrorKind::Unavailable => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the rows of a dropped index, and requests another run if there are more.
    fn sweep_dropped_indexes(&self) -> Result<()> {
        if self.sweep_dropped_index()? {
            self.request_checkpoint();
        }
        Ok(())
    }

    /// Ensures that what was written is flushed within `interval`. Without background work, flushes now.
    pub(super) fn flush_within(&self, interval: Duration) -> Result<()> {
        if !self.parts.options.background {
            return self.flush();
        }
        let at = Instant::now() + interval;
        let mut flush_at = self.background.flush_at.lock();
        if flush_at.is_none_or(|earliest| at < earliest) {
            *flush_at = Some(at);
            drop(flush_at);
            self.background.schedule(Work::Flush, interval);
        }
        Ok(())
    }

    fn flush_if_due(&self) {
        // Cleared before the flush: what is written from here on needs another one.
        *self.background.flush_at.lock() = None;
        if self.flush().is_err() {
            // The log is poisoned: waiting threads have to check it again.
            self.parts.publisher.wake(false);
        }
    }
}
