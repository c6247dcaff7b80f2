//! What goes on behind the writers' backs: checkpoints, compaction, flushes by the clock, the end of documents.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::Store;
use crate::engine::checkpoint::Persisted;
use crate::sync::atomic::Ordering;
use crate::sync::{Condvar, Mutex};
use crate::{Error, Result};

/// A memtable that nobody has written to for this long is merged, so that later reads find everything in the tree.
const IDLE: Duration = Duration::from_millis(300);

/// Smaller memtables than this are left alone while idle: reading through them costs next to nothing.
const IDLE_BYTES: usize = 256 << 10;

/// State of whoever does the upkeep.
#[derive(Default)]
pub(super) struct Upkeep {
    pub(super) persisted: Persisted,
}

/// What the upkeep thread waits on.
#[derive(Default)]
pub(super) struct Wanted {
    state: Mutex<WantedState>,
    changed: Condvar,
}

#[derive(Default)]
struct WantedState {
    checkpoint: bool,
    /// When something written at an interval has to be flushed.
    flush_at: Option<Instant>,
    stop: bool,
}

impl Wanted {
    /// Asks for a checkpoint.
    pub(super) fn ask(&self) {
        self.state.lock().checkpoint = true;
        self.changed.notify_all();
    }

    /// Asks the threads to end.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Asks for a flush within `patience`.
    pub(super) fn flush_within(&self, patience: Duration) {
        let at = Instant::now() + patience;
        let mut state = self.state.lock();
        if state.flush_at.is_none_or(|asked| at < asked) {
            state.flush_at = Some(at);
            self.changed.notify_all();
        }
    }

    /// Waits until a flush is due; false to stop.
    fn flush_is_due(&self) -> bool {
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

    /// Waits for a request, at most `patience`; what was asked, or none to stop.
    fn wait(&self, patience: Duration) -> Option<bool> {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        while !state.checkpoint && !state.stop {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        if state.stop { None } else { Some(std::mem::take(&mut state.checkpoint)) }
    }
}

/// The threads that keep a database up; stopping them closes it.
pub(crate) struct Upkeeper {
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Upkeeper {
    /// Starts the threads, if the options ask for any.
    ///
    /// # Errors
    /// `Unavailable` if one can't be started; then none runs, and the store is closed.
    pub(crate) fn start(store: &Arc<Store>) -> Result<Self> {
        let mut upkeeper = Upkeeper { threads: Vec::new() };
        match upkeeper.start_threads(store) {
            Ok(()) => Ok(upkeeper),
            Err(error) => {
                // A thread that went on would keep the database open for good. What could not be closed is told when it is opened again.
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
            spawn("stemma-upkeep", Box::new(move || keeper.keep_up()))?;
            let flusher = store.clone();
            spawn("stemma-flush", Box::new(move || flusher.flush_when_due()))?;
            let sweeper = store.clone();
            spawn("stemma-expiry", Box::new(move || sweeper.sweep_when_due()))?;
            if store.has_unfinished_indexes() {
                let builder = store.clone();
                // A failure to write is kept in `broken`; an index that is not ready is built when the database is opened again.
                spawn("stemma-index", Box::new(move || _ = builder.build_unfinished()))?;
            }
        } else if !store.parts.options.read_only {
            store.finish_declaring()?;
        }
        Ok(())
    }

    /// Ends the threads, merges what is in memory, flushes and closes the log.
    pub(crate) fn stop(self, store: &Store) -> Result<()> {
        store.wanted.stop();
        store.sweeping.stop();
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
    fn keep_up(&self) {
        let mut seen = self.parts.publisher.published();
        while let Some(asked) = self.wanted.wait(IDLE) {
            let published = self.parts.publisher.published();
            let idle = !asked && published == seen && self.active_memtable().byte_count() >= IDLE_BYTES;
            seen = published;
            // A failure is kept in `broken`, where the next writer finds it.
            let kept_up = if idle { self.checkpoint() } else { self.merge_sealed() };
            let swept = kept_up.and_then(|()| self.sweep_on()).and_then(|()| self.sweep_content_if_wanted());
            if swept.and_then(|()| self.compact_if_worthwhile()).is_err() {
                self.memory_freed.notify_all();
                if self.broken.lock().is_some() || self.parts.log.is_poisoned() {
                    return;
                }
            }
        }
    }

    /// Takes away some of what is left of a dropped index, and asks to be called again if there is more.
    fn sweep_on(&self) -> Result<()> {
        if self.sweep()? {
            self.wanted.ask();
        }
        Ok(())
    }

    /// Sees that what was written at an interval is flushed by then. Without threads, now.
    pub(super) fn flush_within(&self, interval: Duration) -> Result<()> {
        if !self.parts.options.background {
            return self.flush();
        }
        self.wanted.flush_within(interval);
        Ok(())
    }

    fn flush_when_due(&self) {
        while self.wanted.flush_is_due() {
            if self.flush().is_err() {
                // The log is poisoned: whoever waits shall look again.
                self.parts.publisher.wake(false);
                return;
            }
        }
    }
}
