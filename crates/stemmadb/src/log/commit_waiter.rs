//! Commit waiter: blocks threads until the flush that covers their frames is done.
//!
//! If a hundred threads slept on one condition variable, every flush would wake all of them, most only to sleep again.
//! Each *round* (a flush and the threads it serves) therefore has its own waiter. Two suffice, since at any time one
//! round is running and one is gathering. A woken thread checks an atomic and returns without taking the log's lock.
//!
//! Uses `std`'s condition variable instead of `parking_lot`'s, which passes the mutex from each woken thread to the
//! next one, while here all can proceed concurrently (9 against 5 µs of processor time for each of 100 threads).

use std::sync::PoisonError;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::plain::{Condvar, Mutex, MutexGuard};

/// Why a waiting thread woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// The awaited condition holds.
    Done,
    /// The round has no leader; this thread is to lead it.
    Leader,
}

/// Waits for the start or the end of one round.
#[derive(Default)]
pub(super) struct CommitWaiter {
    mutex: Mutex<()>,
    moved: Condvar,
    /// The round without a leader; 0 if none.
    vacant: AtomicU64,
}

impl CommitWaiter {
    /// Sleeps until `is_done`, or until this thread is to lead `round`.
    pub(super) fn wait(&self, round: u64, is_done: impl Fn() -> bool) -> Woken {
        let mut guard = self.lock();
        loop {
            if is_done() {
                // The wakeup may have been meant for a thread that is still asleep.
                if self.vacant.load(Ordering::Acquire) == round {
                    self.moved.notify_one();
                }
                return Woken::Done;
            }
            if self.claim(round) {
                return Woken::Leader;
            }
            guard = self.moved.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all waiting threads: their condition holds.
    pub(super) fn open(&self) {
        drop(self.lock());
        self.moved.notify_all();
    }

    /// Wakes one of the threads waiting for `round` to lead it; if none is waiting, the next one to arrive leads.
    pub(super) fn call_leader(&self, round: u64) {
        let guard = self.lock();
        self.vacant.store(round, Ordering::Release);
        drop(guard);
        self.moved.notify_one();
    }

    /// Claims the leadership of `round`; false if it is taken.
    pub(super) fn claim(&self, round: u64) -> bool {
        self.vacant.compare_exchange(round, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The mutex protects no data, only the order of checking and sleeping: a panic elsewhere does no harm here.
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
