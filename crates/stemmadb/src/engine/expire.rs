//! Expiration: deletes expired documents as ordinary writes.
//!
//! Invariants: a document is deleted only if the state being deleted had expired, which is verified under the writer
//! lock. Work is scheduled for the earliest known expiration time; each commit reports the times of the documents it
//! writes.
//!
//! Concurrency: `ExpirationSchedule` is updated under the writer lock, both by commits and by the sweep that sets it
//! from the index, so no expiration time is lost in between.

use std::time::Duration;

use crate::engine::Store;
use crate::engine::background::Work;
use crate::options::Durability;
use crate::sync::Mutex;
use crate::{ErrorKind, Result};

/// Documents deleted in one transaction; other writers run between two batches.
const BATCH_COUNT: usize = 256;

/// The clock is read at least this often, because it may be set.
const CLOCK_POLL: Duration = Duration::from_secs(60);

/// Delay after a failure, such as a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// The time of the next expiration.
#[derive(Default)]
pub(super) struct ExpirationSchedule {
    /// The earliest known expiration time, in milliseconds since 1970.
    next_ms: Mutex<Option<i64>>,
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
            // Under the writer lock, so no commit reports a time in between.
            *self.expiration_schedule.next_ms.lock() = next_ms;
            Ok((swept, is_done))
        })
    }

    /// Reports that a document expires at `end_ms`.
    pub(super) fn add_expiration(&self, end_ms: i64) {
        // The owner of the log deletes documents.
        if self.parts.options.is_replica {
            return;
        }
        let mut next_ms = self.expiration_schedule.next_ms.lock();
        if next_ms.is_none_or(|next_ms| end_ms < next_ms) {
            *next_ms = Some(end_ms);
            drop(next_ms);
            self.schedule_expiration(end_ms);
        }
    }

    /// Schedules the deletion of documents that were in the database when it was opened.
    pub(super) fn begin_expiration(&self) {
        if self.parts.declared().expiries().next().is_some() {
            self.add_expiration(i64::MIN);
        }
    }

    fn schedule_expiration(&self, end_ms: i64) {
        self.background.schedule(Work::Expire, self.parts.options.clock.until(end_ms).min(CLOCK_POLL));
    }

    /// Deletes the documents that have expired by now, and schedules the next deletion.
    pub(super) fn expire_due(&self) {
        let Some(next_ms) = *self.expiration_schedule.next_ms.lock() else { return };
        if next_ms > self.parts.options.clock.now_ms() {
            return self.schedule_expiration(next_ms);
        }
        match self.delete_expired() {
            Ok(_) => {
                if let Some(next_ms) = *self.expiration_schedule.next_ms.lock() {
                    self.schedule_expiration(next_ms);
                }
            }
            Err(error) if error.kind() == ErrorKind::Closed => {}
            Err(_) => self.background.schedule(Work::Expire, RETRY),
        }
    }
}
