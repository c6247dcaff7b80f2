//! Runs blocking work of a request: on the blocking pool, or on the request's own thread while no other read runs.

use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};

use super::MemoryReservation;
use super::cancellation::{during, leave_connection, of_current_request};
use super::concurrency::ConcurrencyTracker;
use crate::error::{Failure, Result};

/// Counts the calls of [`reading`] that run in this process.
static READERS: LazyLock<ConcurrencyTracker> = LazyLock::new(ConcurrencyTracker::default);

thread_local! {
    /// The server's runtime, on a thread with another one.
    static SERVER_RUNTIME: OnceCell<Handle> = const { OnceCell::new() };
}

/// The server's runtime: it has the blocking pool, and runs what lasts longer than a request.
pub(crate) fn server_runtime() -> Handle {
    SERVER_RUNTIME.with(|runtime| runtime.get().cloned()).unwrap_or_else(Handle::current)
}

/// Tells this thread, which has a runtime of its own, the server's. The first one stays.
pub(crate) fn set_server_runtime(runtime: Handle) {
    SERVER_RUNTIME.with(|known| known.set(runtime).ok());
}

/// Work on the blocking pool. It goes on if this is dropped.
pub(crate) struct BlockingWork<T> {
    task: JoinHandle<()>,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Future for BlockingWork<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(Pin::new(&mut self.task).poll(context))?;
        let result = self.result.lock().take();
        Poll::Ready(Ok(result.expect("work that ended without a panic has a result")))
    }
}

/// Runs work that no end of a request cancels on the blocking pool.
///
/// All calls share one type of task: the runtime's code for another one takes 5 KB in the program, and there would be
/// more than a hundred.
pub(crate) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BlockingWork<T> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let task: Box<dyn FnOnce() + Send> = Box::new(move || {
        let result = work();
        *slot.lock() = Some(result);
    });
    BlockingWork { task: server_runtime().spawn_blocking(task), result }
}

/// Runs a read that is usually short but can be long. A read that runs alone is executed on this thread, and the
/// runtime moves the thread's other tasks elsewhere: waking another thread and being woken by it takes longer than most
/// reads. Concurrent reads go to the blocking pool.
pub(crate) async fn reading<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    leave_connection().await;
    let reader = READERS.enter();
    match reader.is_alone && can_block_in_place() {
        true => tokio::task::block_in_place(|| during(of_current_request().as_ref(), work)),
        false => blocking(work).await,
    }
}

/// Whether the runtime has other threads that can take over this thread's tasks.
pub(crate) fn can_block_in_place() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// Runs work that may wait for the disk, or takes longer than a point read, on the blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (reservation, cancellation) = (MemoryReservation::of_current_request(), of_current_request());
    let work = move || {
        let _held = reservation;
        during(cancellation.as_ref(), work)
    };
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Failure::internal(format!("a handler failed: {error}"))),
    }
}

/// The most threads of the blocking pool. A program that embeds the server gives this to its runtime.
pub const BLOCKING_THREADS_MAX: usize = 256;

/// The most reads of feeds and live queries that run at the same time.
const NOTIFIED_READS_MAX: usize = 16;

static NOTIFIED_READS: Semaphore = Semaphore::const_new(NOTIFIED_READS_MAX);
static INITIAL_READS: Semaphore = Semaphore::const_new(NOTIFIED_READS_MAX);

/// Runs a short read of a feed or live query on the blocking pool. Only a few run at the same time: a write that
/// concerns thousands of them would otherwise start a thread for each, and requests would wait for all of them.
pub(crate) async fn notified_read<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    // The semaphore is never closed.
    let _permit = NOTIFIED_READS.acquire().await.ok();
    blocking(work).await
}

/// Runs a read of a feed or live query that may take long: of what there was before it began to wait. Bounded like
/// [`notified_read`], and apart from it: feeds that wait are notified while others read for long.
pub(crate) async fn initial_read<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let _permit = INITIAL_READS.acquire().await.ok();
    blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::super::MemoryBudget;
    use super::*;

    #[test]
    fn reads_of_feeds_take_few_threads() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let reads = (0..10 * NOTIFIED_READS_MAX).map(|_| {
                let (running, most) = (running.clone(), most.clone());
                tokio::spawn(notified_read(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }))
            });
            for read in reads.collect::<Vec<_>>() {
                read.await.unwrap().unwrap();
            }
            assert!((1..=NOTIFIED_READS_MAX).contains(&most.load(Ordering::SeqCst)));
        });
    }

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

    #[tokio::test]
    async fn work_that_outlives_a_request_keeps_its_reservation() {
        const BYTES: usize = 1 << 20;
        let budget = MemoryBudget::new(BYTES as u64, Duration::from_secs(600));
        let reservation = budget.reservation();
        reservation.grow(BYTES).await.unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = reservation.clone().scope(blocking(move || {
            sender.send(()).ok();
            ended.recv().ok();
            Ok(())
        }));
        let request = tokio::spawn(work);
        receiver.await.unwrap();
        request.abort();
        drop(reservation);
        assert!(request.await.is_err());
        assert!(!budget.is_unused());
        drop(end);
        // The memory is free once the work has ended.
        while !budget.is_unused() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
