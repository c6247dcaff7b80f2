//! Locks, condition variables and atomics, from `parking_lot` and `std`.
//!
//! Code whose outcome depends on the interleaving of threads must use these; plain counters may use `std` directly.
//! With the feature `shuttle`, for tests only, they are replaced by `shuttle`'s with the same interface: its scheduler
//! decides at each operation which thread continues, so that tests can try rare interleavings.

mod cancellation;
#[cfg(feature = "shuttle")]
mod scheduled;

pub(crate) use cancellation::refuse_if_cancelled;
pub use cancellation::{CancelCallback, Cancellation};

#[cfg(not(feature = "shuttle"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(feature = "shuttle")]
pub(crate) use scheduled::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread_local;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread_local;

/// The `std` versions, where they are faster.
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
