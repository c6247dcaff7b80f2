//! Cancellation of reads whose client has left.
//!
//! A request that only reads has a [`Cancellation`]. It is cancelled when the request's record is dropped: when the
//! client disconnects, or after the response was sent. The library's reads on behalf of the request fail then, on
//! whatever thread they run. Requests that write are completed instead. A [`TimeLimit`] cancels a request that reads
//! for too long.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use stemmadb::Cancellation;

use crate::error::{Failure, Result};

tokio::task_local! {
    /// The cancellation of the request that this task answers.
    static CURRENT_REQUEST: Cancellation;
}

thread_local! {
    /// Whether this thread runs a handler within the task of its connection.
    static IS_IN_CONNECTION: Cell<bool> = const { Cell::new(false) };
}

/// Cancels when it is dropped.
#[derive(Default)]
pub(crate) struct CancelOnDrop(Cancellation);

impl CancelOnDrop {
    /// Runs the handler of a request that is cancelled when this is dropped. It begins in the connection's task, where
    /// a short one ends. When it waits, it moves to a task of its own. `None` if it panics.
    pub(crate) async fn run<T: Send + 'static>(&self, handler: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let mut handler = Box::pin(CURRENT_REQUEST.scope(self.0.clone(), handler));
        let begun = poll_fn(|context| {
            let _inside = InConnection::enter();
            // It is not polled again if it panics.
            Poll::Ready(catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))))
        });
        match begun.await.ok()? {
            Poll::Ready(result) => Some(result),
            Poll::Pending => tokio::spawn(handler).await.ok(),
        }
    }
}

/// This thread runs a handler within the task of its connection, until this is dropped.
struct InConnection;

impl InConnection {
    fn enter() -> Self {
        IS_IN_CONNECTION.set(true);
        InConnection
    }
}

impl Drop for InConnection {
    fn drop(&mut self) {
        IS_IN_CONNECTION.set(false);
    }
}

/// Moves the current handler to a task of its own if it still runs in that of its connection: a connection whose task
/// reads for long would not notice that its client leaves.
pub(super) async fn leave_connection() {
    poll_fn(|context| match IS_IN_CONNECTION.get() {
        true => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The cancellation of the request that the current task answers, if it can be cancelled.
pub(crate) fn of_current_request() -> Option<Cancellation> {
    CURRENT_REQUEST.try_with(Cancellation::clone).ok()
}

/// The time that the current request may take. When it has passed, the request's reads are cancelled, until this is
/// dropped.
pub(crate) struct TimeLimit {
    time: Option<Duration>,
    started: Instant,
    timer: Option<tokio::task::AbortHandle>,
}

impl TimeLimit {
    /// Starts a limit of the request that the current task answers; `None` for no limit.
    pub(crate) fn start(time: Option<Duration>) -> Self {
        let timer = time.zip(of_current_request()).map(|(time, cancellation)| {
            let cancel = async move {
                tokio::time::sleep(time).await;
                cancellation.cancel();
            };
            tokio::spawn(cancel).abort_handle()
        });
        TimeLimit { time, started: Instant::now(), timer }
    }

    /// The time if it has passed.
    fn passed(&self) -> Option<Duration> {
        self.time.filter(|time| self.started.elapsed() >= *time)
    }

    /// Waits for work that goes on when the time has passed.
    ///
    /// # Errors
    /// 408 if the time passes; those of the work.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(time) = self.time else { return work.await };
        let rest = time.saturating_sub(self.started.elapsed());
        // The work may also end because its reads were cancelled.
        self.check(tokio::time::timeout(rest, work).await.unwrap_or_else(|_| Err(took_longer(time))))
    }

    /// Returns `result`, or the error that the time has passed.
    ///
    /// # Errors
    /// 408 if the time has passed; that of `result`.
    pub(crate) fn check<T>(&self, result: Result<T>) -> Result<T> {
        match self.passed() {
            Some(time) => Err(took_longer(time)),
            None => result,
        }
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

fn took_longer(time: Duration) -> Failure {
    let reason = format!("the query took longer than its {} ms", time.as_millis());
    Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason)
}

/// Runs work that `cancellation` cancels.
pub(super) fn during<T>(cancellation: Option<&Cancellation>, work: impl FnOnce() -> T) -> T {
    match cancellation {
        Some(cancellation) => cancellation.during(work),
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use stemmadb::{Database, ErrorKind, Selector};

    use super::*;
    use crate::http::{blocking, reading};

    /// Reads until a read fails; returns the error. Every way of reading is cancelled.
    fn read_until_stopped(database: &Database) -> Result<ErrorKind> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let reads = [
                database.indexes().paths().map(drop),
                database.find(Selector::everything()).documents().map(drop),
                database.get("a").map(drop),
                database.snapshot().and_then(|snapshot| snapshot.revisions("a")).map(drop),
            ];
            if let Some(error) = reads.into_iter().find_map(std::result::Result::err) {
                return Ok(error.kind());
            }
        }
        panic!("the reads go on");
    }

    #[tokio::test]
    async fn panic_of_a_handler_is_not_that_of_its_connection() {
        let guard = CancelOnDrop::default();
        assert_eq!(guard.run(async { panic!("before it waits") }).await, None::<()>);
        let waits = async {
            leave_connection().await;
            panic!("in its own task")
        };
        assert_eq!(guard.run(waits).await, None::<()>);
        assert_eq!(guard.run(async { 1 }).await, Some(1));
    }

    #[test]
    fn reads_end_once_the_client_has_left() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let database = Database::in_memory();
            database.insert("a", &serde_json::json!({"n": 1})).unwrap();
            for is_reading in [true, false] {
                let (guard, database) = (CancelOnDrop::default(), database.clone());
                let (begun, has_begun) = tokio::sync::oneshot::channel();
                let work = move || {
                    begun.send(()).ok();
                    read_until_stopped(&database)
                };
                let handler = async move {
                    match is_reading {
                        true => reading(work).await,
                        false => blocking(work).await,
                    }
                };
                let (ended, has_ended) = tokio::sync::oneshot::channel();
                let handler = async { ended.send(handler.await.unwrap()).unwrap() };
                // The connection leaves as soon as the read has begun.
                tokio::select! {
                    _ = guard.run(handler) => panic!("the read ends before the client leaves"),
                    begun = has_begun => begun.unwrap(),
                }
                drop(guard);
                assert_eq!(has_ended.await.unwrap(), ErrorKind::Stopped);
            }
            assert!(database.get("a").unwrap().is_some(), "other reads are not concerned");
        });
    }
}
