//! Streams of rows, fed by a blocking thread that reads a query or a feed.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use stemmadb::{Cancellation, Error, Result, asynchronous};
use tokio::sync::{mpsc, oneshot};

use super::CancelOnDrop;

/// The number of rows that are read ahead of the stream's reader.
const ROWS_AHEAD: usize = 64;

/// A stream of rows, made by methods of [`AsyncDatabase`](super::AsyncDatabase). At most 64 rows are read ahead;
/// dropping it stops the query or feed, also on the server.
#[derive(Debug)]
pub enum AsyncRows<T> {
    /// Of an embedded database, whose feeds occupy no thread.
    Embedded(asynchronous::AsyncRows<T>),
    /// Read by a blocking thread.
    Read(ReadRows<T>),
}

/// Rows that a blocking thread reads. See [`AsyncRows`].
pub struct ReadRows<T> {
    rows: mpsc::Receiver<Result<T>>,
    _cancels: CancelOnDrop,
}

impl<T> std::fmt::Debug for ReadRows<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRows").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> AsyncRows<T> {
    /// Calls `open` on a blocking thread, which then reads its rows, all of it cancelled when the stream is dropped.
    /// Returns the error of `open` if it fails.
    pub(super) async fn open<I: Iterator<Item = Result<T>>>(
        open: impl FnOnce(&Cancellation) -> Result<I> + Send + 'static,
    ) -> Result<Self> {
        let (sender, rows) = mpsc::channel(ROWS_AHEAD);
        let (opened, is_open) = oneshot::channel();
        let cancellation = Cancellation::new();
        let stream = ReadRows { rows, _cancels: CancelOnDrop(cancellation.clone()) };
        let reader = tokio::task::spawn_blocking(move || {
            cancellation.during(|| match open(&cancellation) {
                // A row that can't be sent is not wanted anymore.
                Ok(mut found) => opened.send(Ok(())).is_ok() && found.all(|row| sender.blocking_send(row).is_ok()),
                Err(error) => opened.send(Err(error)).is_ok(),
            })
        });
        match is_open.await {
            Ok(outcome) => outcome.map(|()| AsyncRows::Read(stream)),
            // The thread has ended without an answer.
            Err(_) => match reader.await {
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                _ => Err(Error::unavailable("the runtime is shutting down")),
            },
        }
    }

    /// Returns the next row; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<T>> {
        match self {
            AsyncRows::Embedded(rows) => rows.next().await,
            AsyncRows::Read(read) => read.rows.recv().await,
        }
    }
}

impl<T: Unpin> Stream for AsyncRows<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.get_mut() {
            AsyncRows::Embedded(rows) => Pin::new(rows).poll_next(context),
            AsyncRows::Read(read) => read.rows.poll_recv(context),
        }
    }
}
