//! The interface of `parking_lot` on top of `shuttle`, whose scheduler chooses which thread continues at each
//! operation.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::sync;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// Guard of a locked mutex.
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only while it is unlocked or waiting.
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard { mutex: self, guard: Some(guard) })
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `work` while the mutex is unlocked.
    pub(crate) fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
        drop(guard.guard.take());
        let done = work();
        guard.guard = guard.mutex.lock().guard.take();
        done
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the guard is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("the guard is locked")
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        RwLock(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_write(&self) -> Option<sync::RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

/// Whether a wait ended by timeout.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(locked) = guard.guard.take() {
            guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ignores the deadline, as `shuttle` has no clock: waits until woken.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> TimedOut {
        self.wait(guard);
        TimedOut(false)
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> TimedOut {
        self.wait(guard);
        TimedOut(false)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
