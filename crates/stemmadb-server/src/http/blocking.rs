//! Runs blocking work of a request: on the blocking pool, or on the request's own thread while no other read runs.

use std::sync::LazyLock;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::concurrency::ConcurrencyTracker;
use super::memory_budget::MemoryReservation;
use crate::error::{Failure, Result};

/// Counts the calls of [`reading`] that run in this process.
static READERS: LazyLock<ConcurrencyTracker> = LazyLock::new(ConcurrencyTracker::default);

/// Runs a read that is a few look-ups as a rule, and may be long. Who reads alone does it on this thread, whose other work goes on elsewhere
/// meanwhile: to wake another thread and to be woken by it takes longer than most reads. Who comes while others read goes to the blocking pool.
pub(crate) async fn reading<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let reader = READERS.enter();
    if reader.is_alone && can_block_in_place() { tokio::task::block_in_place(work) } else { blocking(work).await }
}

/// Whether the runtime has other threads for what this one leaves.
pub(crate) fn can_block_in_place() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Runs what may wait for the disk, or take longer than a point read, where it holds nobody up.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let share = MemoryReservation::of_current_request();
    let work = move || {
        let _held = share;
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Failure::internal(format!("a handler failed: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_read_holds_nobody_up() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (tell, told) = mpsc::channel();
            // It ends when another task of the only worker has run.
            let long = tokio::spawn(reading(move || Ok(told.recv_timeout(Duration::from_secs(60)).is_ok())));
            let beside = tokio::spawn(async move { reading(|| Ok(2)).await });
            assert_eq!(beside.await.unwrap().unwrap(), 2);
            tokio::spawn(async move { tell.send(()) }).await.unwrap().unwrap();
            assert!(long.await.unwrap().unwrap());
        });
    }
}
