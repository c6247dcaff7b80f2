//! Locks, conditions and atomics: `parking_lot`'s and `std`'s.
//!
//! Whatever decides what another thread does takes them from here; counters of what was used may be `std`'s. With the feature `shuttle`, which is for tests only, they are others of the same
//! form: whoever takes one may be made to wait there while others go on, so that a test can try orders that seldom happen.

#[cfg(feature = "shuttle")]
mod chosen;

#[cfg(feature = "shuttle")]
pub(crate) use chosen::{Condvar, Mutex, MutexGuard, RwLock, thread_mark};
#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

/// Those of `std`, where they serve better.
pub(crate) mod plain {
    #[cfg(feature = "shuttle")]
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(not(feature = "shuttle"))]
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
}

pub(crate) mod atomic {
    #[cfg(feature = "shuttle")]
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    #[cfg(not(feature = "shuttle"))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// What no two threads that run have in common; never zero.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}
