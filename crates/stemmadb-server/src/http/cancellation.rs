//! Cancellation of reads whose client has left.
//!
//! A request that only reads has a [`Cancellation`]. It is cancelled when the request's record is dropped: when the
//! client disconnects, or after the response was sent. The library's reads on behalf of the request fail then, on
//! whatever thread they run. Requests that write are completed instead.

use stemmadb::Cancellation;

tokio::task_local! {
    /// The cancellation of the request that this task answers.
    static CURRENT_REQUEST: Cancellation;
}

/// Cancels when it is dropped.
#[derive(Default)]
pub(crate) struct CancelOnDrop(Cancellation);

impl CancelOnDrop {
    /// Runs the handler of a request that is cancelled when this is dropped, in a task of its own: a connection whose
    /// task reads would not notice that its client leaves.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        handler: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        tokio::spawn(CURRENT_REQUEST.scope(self.0.clone(), handler))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The cancellation of the request that the current task answers, if it can be cancelled.
pub(super) fn of_current_request() -> Option<Cancellation> {
    CURRENT_REQUEST.try_with(Cancellation::clone).ok()
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
    use std::time::{Duration, Instant};

    use stemmadb::{Database, ErrorKind, Selector};

    use super::*;
    use crate::error::Result;
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
                let handler = guard.spawn(async move {
                    match is_reading {
                        true => reading(work).await,
                        false => blocking(work).await,
                    }
                });
                has_begun.await.unwrap();
                drop(guard);
                assert_eq!(handler.await.unwrap().unwrap(), ErrorKind::Stopped);
            }
            assert!(database.get("a").unwrap().is_some(), "other reads are not concerned");
        });
    }
}
