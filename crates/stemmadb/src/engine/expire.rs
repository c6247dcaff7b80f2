//! Sweeping away what has ended: documents that nobody sees any more are deleted, as whoever writes would do it.
//!
//! Invariants: a document is deleted only if the state that is deleted had ended, which is looked at under the writer lock; the thread
//! sleeps until the first end that any document has, which each commit tells it of.
//!
//! Concurrency: `Sweeping` is told under the writer lock, and set there to what the index says, so no end is missed in between.

use std::time::Duration;

use crate::engine::Store;
use crate::options::Durability;
use crate::sync::{Condvar, Mutex};
use crate::{ErrorKind, Result};

/// Documents deleted in one transaction: others write between two.
const BATCH_COUNT: usize = 256;

/// The clock is looked at again at least so often: somebody may set it.
const LOOK_UP: Duration = Duration::from_secs(60);

/// After a failure, such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// When there is something to sweep.
#[derive(Default)]
pub(super) struct Sweeping {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The first end that is known of.
    next_ms: Option<i64>,
    stop: bool,
}

impl Sweeping {
    /// A document ends then.
    pub(super) fn note(&self, end_ms: i64) {
        let mut state = self.state.lock();
        if state.next_ms.is_none_or(|next_ms| end_ms < next_ms) {
            state.next_ms = Some(end_ms);
            self.changed.notify_all();
        }
    }

    /// No document ends before then. Call it under the writer lock.
    fn set(&self, next_ms: Option<i64>) {
        self.state.lock().next_ms = next_ms;
    }

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits for some time; false to stop.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop {
            self.changed.wait_for(&mut state, time);
        }
        !state.stop
    }
}

impl Store {
    /// Deletes what has ended; how many documents.
    pub(crate) fn sweep_ended(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            let (swept, is_done) = self.sweep_some()?;
            count += swept;
            if is_done {
                return Ok(count);
            }
        }
    }

    /// Deletes some of what has ended; how many documents, and whether that is all. What a crash takes back is deleted again.
    fn sweep_some(&self) -> Result<(u64, bool)> {
        self.write(Durability::None, |transaction| {
            let ended = transaction.base().first_ended(BATCH_COUNT)?;
            let mut swept = 0;
            for number in &ended {
                swept += u64::from(transaction.sweep(*number)?);
            }
            // One of several branches may have been deleted, and the next one have ended too: look again, unless nothing was done.
            let is_done = swept == 0;
            let next_ms = if is_done { transaction.base().next_end_ms()? } else { Some(i64::MIN) };
            self.sweeping.set(next_ms);
            Ok((swept, is_done))
        })
    }

    /// Sweeps whenever a document has ended, until it is stopped.
    pub(super) fn sweep_when_due(&self) {
        // What was there when the database was opened has told nobody.
        if self.parts.declared().expiries().next().is_some() {
            self.sweeping.note(i64::MIN);
        }
        while self.wait_for_an_end() {
            match self.sweep_ended() {
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(_) if !self.sweeping.pause(RETRY) => return,
                _ => {}
            }
        }
    }

    /// Waits until a document has ended; false to stop.
    fn wait_for_an_end(&self) -> bool {
        let clock = &self.parts.options.clock;
        let mut state = self.sweeping.state.lock();
        while !state.stop {
            match state.next_ms {
                None => self.sweeping.changed.wait(&mut state),
                Some(next_ms) if next_ms <= clock.now_ms() => return true,
                Some(next_ms) => {
                    self.sweeping.changed.wait_for(&mut state, clock.until(next_ms).min(LOOK_UP));
                }
            }
        }
        false
    }
}
