//! Expiration: deletes expired documents as ordinary writes.
//!
//! Invariants: a document is deleted only if the state being deleted had expired, which is verified under the writer
//! lock. The thread sleeps until the earliest known expiration time; each commit reports the times of the documents it
//! writes.
//!
//! Concurrency: `ExpirationSchedule` is updated under the writer lock, both by commits and by the sweep that sets it
//! from the index, so no expiration time is lost in between.

use std::time::Duration;

use crate::engine::Store;
use crate::options::Durability;
use crate::sync::{Condvar, Mutex};
use crate::{ErrorKind, Result};

/// Documents deleted in one transaction; other writers run between two batches.
const BATCH_COUNT: usize = 256;

/// The clock is read at least this often, because it may be set.
const CLOCK_POLL: Duration = Duration::from_secs(60);

/// Delay after a failure, such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// The time of the next expiration, for the expiration thread.
#[derive(Default)]
pub(super) struct ExpirationSchedule {
    state: Mutex<ScheduleState>,
    changed: Condvar,
}

#[derive(Default)]
struct ScheduleState {
    /// The earliest known expiration time, in milliseconds since 1970.
    next_ms: Option<i64>,
    stop: bool,
}

impl ExpirationSchedule {
    /// Reports that a document expires at `end_ms`.
    pub(super) fn add(&self, end_ms: i64) {
        let mut state = self.state.lock();
        if state.next_ms.is_none_or(|next_ms| end_ms < next_ms) {
            state.next_ms = Some(end_ms);
            self.changed.notify_all();
        }
    }

    /// Sets the earliest expiration time. The caller holds the writer lock.
    fn set(&self, next_ms: Option<i64>) {
        self.state.lock().next_ms = next_ms;
    }

    /// Asks the thread to stop.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits for `time`; returns false if the thread should stop.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stop {
            self.changed.wait_for(&mut state, time);
        }
        !state.stop
    }
}

impl Store {
    /// Deletes all expired documents; returns how many.
    pub(crate) fn delete_expired(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            let (swept, is_done) = self.delete_expired_batch()?;
            count += swept;
            if is_done {
                return Ok(count);
            }
        }
    }

    /// Deletes one batch of expired documents. Returns how many, and whether none is left. Without durability: a
    /// deletion lost in a crash is repeated.
    fn delete_expired_batch(&self) -> Result<(u64, bool)> {
        self.write(Durability::None, |transaction| {
            let expired = transaction.base().first_expired(BATCH_COUNT)?;
            let mut swept = 0;
            for number in &expired {
                swept += u64::from(transaction.delete_if_expired(*number)?);
            }
            // After a branch is deleted, the next branch of the document may have expired as well: repeat until a batch
            // deletes nothing.
            let is_done = swept == 0;
            let next_ms = if is_done { transaction.base().next_expiration_ms()? } else { Some(i64::MIN) };
            self.expiration_schedule.set(next_ms);
            Ok((swept, is_done))
        })
    }

    /// Deletes documents as they expire, until it is stopped.
    pub(super) fn run_expiration(&self) {
        // Documents that were in the database when it was opened have not been reported.
        if self.parts.declared().expiries().next().is_some() {
            self.expiration_schedule.add(i64::MIN);
        }
        while self.wait_for_expiration() {
            match self.delete_expired() {
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(_) if !self.expiration_schedule.pause(RETRY) => return,
                _ => {}
            }
        }
    }

    /// Waits until a document has expired; returns false if the thread should stop.
    fn wait_for_expiration(&self) -> bool {
        let clock = &self.parts.options.clock;
        let mut state = self.expiration_schedule.state.lock();
        while !state.stop {
            match state.next_ms {
                None => self.expiration_schedule.changed.wait(&mut state),
                Some(next_ms) if next_ms <= clock.now_ms() => return true,
                Some(next_ms) => {
                    self.expiration_schedule.changed.wait_for(&mut state, clock.until(next_ms).min(CLOCK_POLL));
                }
            }
        }
        false
    }
}
