//! Background work: checkpoints, compaction, timed flushes and expiration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Store;
use crate::engine::checkpoint::Persisted;
use crate::sync::atomic::Ordering;
use crate::sync::{Condvar, Mutex};
use crate::tree::MergeGoal;
use crate::{Error, Result};

/// A memtable that was not written to for this long is merged, so that later reads find everything in the tree.
const IDLE: Duration = Duration::from_millis(300);

/// Idle memtables below this size are not merged: reading through them costs next to nothing.
const IDLE_BYTES: usize = 256 << 10;

/// State that only the running checkpoint uses.
#[derive(Default)]
pub(super) struct Upkeep {
    pub(super) persisted: Persisted,
}

/// Requests to the background threads.
#[derive(Default)]
pub(super) struct UpkeepRequests {
    state: Mutex<RequestState>,
    changed: Condvar,
}

#[derive(Default)]
struct RequestState {
    checkpoint: bool,
    /// The merges of the tree that are requested.
    merge: Option<MergeGoal>,
    /// The deadline of the next flush for writes with interval durability.
    flush_at: Option<Instant>,
    stop: bool,
}

impl UpkeepRequests {
    /// Requests a checkpoint.
    pub(super) fn request_checkpoint(&self) {
        self.state.lock().checkpoint = true;
        self.changed.notify_all();
    }

    /// Requests merges of the tree.
    fn request_merge(&self, goal: MergeGoal) {
        let mut state = self.state.lock();
        if state.merge != Some(MergeGoal::Rest) {
            state.merge = Some(goal);
        }
        self.changed.notify_all();
    }

    /// Waits for a request to merge; none if the thread should stop.
    fn wait_for_merge(&self) -> Option<MergeGoal> {
        let mut state = self.state.lock();
        while !state.stop && state.merge.is_none() {
            self.changed.wait(&mut state);
        }
        if state.stop { None } else { state.merge.take() }
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    /// Asks the threads to stop.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Requests a flush within `timeout`.
    pub(super) fn flush_within(&self, timeout: Duration) {
        let at = Instant::now() + timeout;
        let mut state = self.state.lock();
        if state.flush_at.is_none_or(|earliest| at < earliest) {
            state.flush_at = Some(at);
            self.changed.notify_all();
        }
    }

    /// Waits until a flush is due; returns false if the thread should stop.
    fn wait_for_flush_due(&self) -> bool {
        let mut state = self.state.lock();
        while !state.stop {
            match state.flush_at {
                None => self.changed.wait(&mut state),
                Some(at) if at <= Instant::now() => {
                    state.flush_at = None;
                    return true;
                }
                Some(at) => {
                    self.changed.wait_until(&mut state, at);
                }
            }
        }
        false
    }

    /// Waits for a request, at most for `timeout`. Returns whether a checkpoint was requested; none if the thread
    /// should stop.
    fn wait(&self, timeout: Duration) -> Option<bool> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.checkpoint && !state.stop {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        if state.stop { None } else { Some(std::mem::take(&mut state.checkpoint)) }
    }
}

/// The background threads of a database; stopping them closes it.
pub(crate) struct Upkeeper {
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Upkeeper {
    /// Starts the threads that the options ask for.
    ///
    /// # Errors
    /// `Unavailable` if one can't be started; then none runs, and the store is closed.
    pub(crate) fn start(store: &Arc<Store>) -> Result<Self> {
        let mut upkeeper = Upkeeper { threads: Vec::new() };
        match upkeeper.start_threads(store) {
            Ok(()) => Ok(upkeeper),
            Err(error) => {
                // A thread that kept running would keep the database open. Errors while closing it are reported when it
                // is opened again.
                upkeeper.stop(store).ok();
                Err(error)
            }
        }
    }

    fn start_threads(&mut self, store: &Arc<Store>) -> Result<()> {
        let mut spawn = |name: &str, work: Box<dyn FnOnce() + Send>| -> Result<()> {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
            self.threads.push(thread.map_err(Error::no_thread)?);
            Ok(())
        };
        if store.parts.options.background && !store.parts.options.read_only {
            let keeper = store.clone();
            spawn("stemma-upkeep", Box::new(move || keeper.run_upkeep()))?;
            let merger = store.clone();
            spawn("stemma-merge", Box::new(move || merger.run_merges()))?;
            let flusher = store.clone();
            spawn("stemma-flush", Box::new(move || flusher.flush_when_due()))?;
            let sweeper = store.clone();
            spawn("stemma-expiry", Box::new(move || sweeper.run_expiration()))?;
            if store.has_unfinished_indexes() {
                let builder = store.clone();
                // A write error is kept in `broken`; an index that is not ready is built when the database is opened
                // again.
                spawn("stemma-index", Box::new(move || _ = builder.build_unfinished()))?;
            }
        } else if !store.parts.options.read_only {
            store.finish_index_work()?;
        }
        Ok(())
    }

    /// Stops the threads, merges what is in memory, flushes and closes the log.
    pub(crate) fn stop(self, store: &Store) -> Result<()> {
        store.requests.stop();
        store.expiration_schedule.stop();
        store.stop_building();
        for thread in self.threads {
            if thread.join().is_err() {
                *store.broken.lock() = Some(Error::internal("an upkeep thread panicked"));
            }
        }
        let is_healthy = store.broken.lock().is_none() && !store.parts.log.is_poisoned();
        let merged = if is_healthy && !store.parts.options.read_only { store.checkpoint() } else { Ok(()) };
        {
            let _writer = store.writer.lock();
            store.closed.store(true, Ordering::Release);
        }
        let closed = if is_healthy { store.parts.log.close() } else { Ok(()) };
        store.parts.publisher.wake(true);
        merged.and(closed)
    }
}

impl Store {
    fn run_upkeep(&self) {
        let mut last_published = self.parts.publisher.published();
        let mut is_at_rest = false;
        while let Some(requested) = self.requests.wait(IDLE) {
            let published = self.parts.publisher.published();
            if requested || published != last_published {
                is_at_rest = false;
            } else if !std::mem::replace(&mut is_at_rest, true) {
                self.requests.request_merge(MergeGoal::Rest);
            }
            let idle = !requested && published == last_published && self.active_memtable().byte_count() >= IDLE_BYTES;
            last_published = published;
            // A failure is kept in `broken`, where the next writer finds it.
            let kept_up = if idle { self.checkpoint() } else { self.merge_sealed() };
            let swept =
                kept_up.and_then(|()| self.sweep_dropped_indexes()).and_then(|()| self.sweep_content_if_needed());
            if swept.and_then(|()| self.compact_if_worthwhile()).is_err() {
                self.memory_freed.notify_all();
                if self.broken.lock().is_some() || self.parts.log.is_poisoned() {
                    return;
                }
            }
        }
    }

    /// Merges runs of the tree in the background. After an error, such as a full disk, the next request tries again.
    fn run_merges(&self) {
        while let Some(goal) = self.requests.wait_for_merge() {
            while !self.requests.is_stopped() && self.parts.tree.merge_step(goal).is_ok_and(|is_done| is_done) {}
        }
    }

    /// Does the merges of the tree that are due, or leaves them to the background.
    pub(super) fn keep_pace(&self) -> Result<()> {
        if self.parts.options.background {
            self.requests.request_merge(MergeGoal::Pace);
            return Ok(());
        }
        while self.parts.tree.merge_step(MergeGoal::Pace)? {}
        Ok(())
    }

    /// Removes some rows of a dropped index, and requests another run if there are more.
    fn sweep_dropped_indexes(&self) -> Result<()> {
        if self.sweep_dropped_index()? {
            self.requests.request_checkpoint();
        }
        Ok(())
    }

    /// Ensures that what was written is flushed within `interval`. Without background threads, flushes now.
    pub(super) fn flush_within(&self, interval: Duration) -> Result<()> {
        if !self.parts.options.background {
            return self.flush();
        }
        self.requests.flush_within(interval);
        Ok(())
    }

    fn flush_when_due(&self) {
        while self.requests.wait_for_flush_due() {
            if self.flush().is_err() {
                // The log is poisoned: waiting threads have to check it again.
                self.parts.publisher.wake(false);
                return;
            }
        }
    }
}
