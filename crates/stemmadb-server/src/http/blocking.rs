//! Runs blocking work of a request: on the blocking pool, or on the request's own thread while no other read runs.

use std::sync::LazyLock;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::concurrency::ConcurrencyTracker;
use super::memory_budget::MemoryReservation;
use crate::error::{Failure, Result};

/// Counts the calls of [`reading`] that run in this process.
static READERS: LazyLock<ConcurrencyTracker> = LazyLock::new(ConcurrencyTracker::default);

/// Runs a read that is usually short but can be long. A read that runs alone is executed on this thread, and the
/// runtime moves the thread's other tasks elsewhere: waking another thread and being woken by it takes longer than most
/// reads. Concurrent reads go to the blocking pool.
pub(crate) async fn reading<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let reader = READERS.enter();
    if reader.is_alone && can_block_in_place() { tokio::task::block_in_place(work) } else { blocking(work).await }
}

/// Whether the runtime has other threads that can take over this thread's tasks.
pub(crate) fn can_block_in_place() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Runs work that may wait for the disk, or takes longer than a point read, on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let reservation = MemoryReservation::of_current_request();
    let work = move || {
        let _held = reservation;
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
    fn long_read_does_not_block_other_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (sender, receiver) = mpsc::channel();
            // The read ends only after another task of the only worker thread has run.
            let long = tokio::spawn(reading(move || Ok(receiver.recv_timeout(Duration::from_secs(60)).is_ok())));
            let concurrent = tokio::spawn(async move { reading(|| Ok(2)).await });
            assert_eq!(concurrent.await.unwrap().unwrap(), 2);
            tokio::spawn(async move { sender.send(()) }).await.unwrap().unwrap();
            assert!(long.await.unwrap().unwrap());
        });
    }
}
