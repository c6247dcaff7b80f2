//! Streams of rows: fed by a blocking thread that reads a query, or by a task that follows the database.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{Notify, mpsc, oneshot};

use super::CancelOnDrop;
use crate::changes::{Change, Delta, Message, PathChange, PathSubscription, Subscription, TopicSubscription, Watch};
use crate::query::Cancellation;
use crate::{Error, Result};

/// The number of rows that are read ahead of the stream's reader.
const ROWS_AHEAD: usize = 64;

/// A stream of rows, made by methods of [`AsyncDatabase`](super::AsyncDatabase). At most 64 rows are read ahead;
/// dropping it cancels the query or feed.
pub struct AsyncRows<T> {
    rows: mpsc::Receiver<Result<T>>,
    _cancels: CancelOnDrop,
}

impl<T: Send + 'static> AsyncRows<T> {
    /// Calls `open` on a blocking thread, which then reads its rows; all of that is [cancelled](Cancellation::during)
    /// when the stream is dropped. For crates that give access to databases elsewhere.
    ///
    /// # Errors
    /// Those of `open`; `Unavailable` if the runtime shuts down.
    pub async fn open<I: Iterator<Item = Result<T>>>(
        open: impl FnOnce(&Cancellation) -> Result<I> + Send + 'static,
    ) -> Result<Self> {
        let (sender, rows) = mpsc::channel(ROWS_AHEAD);
        let (opened, is_open) = oneshot::channel();
        let cancellation = Cancellation::new();
        // If the future is dropped while the query is planned, this cancels it.
        let stream = AsyncRows { rows, _cancels: CancelOnDrop(cancellation.clone()) };
        let reader = tokio::task::spawn_blocking(move || {
            cancellation.during(|| match open(&cancellation) {
                // A row that can't be sent is not wanted anymore.
                Ok(mut found) => opened.send(Ok(())).is_ok() && found.all(|row| sender.blocking_send(row).is_ok()),
                Err(error) => opened.send(Err(error)).is_ok(),
            })
        });
        match is_open.await {
            Ok(outcome) => outcome.map(|()| stream),
            // The thread has ended without an answer.
            Err(_) => match reader.await {
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                _ => Err(Error::unavailable("the runtime is shutting down")),
            },
        }
    }

    /// Follows `source` until it ends or the stream is dropped.
    pub(super) fn follow<S: Follow<Row = T>>(source: S) -> Self {
        let (sender, rows) = mpsc::channel(ROWS_AHEAD);
        let changed = Arc::new(Notify::new());
        let callback = changed.clone();
        // `notify_one` stores a permit, so that a change between reading and waiting is not missed.
        source.notify(Box::new(move || callback.notify_one()));
        tokio::spawn(send_followed(source, changed, sender));
        AsyncRows { rows, _cancels: CancelOnDrop(Cancellation::new()) }
    }

    /// Returns the next row; `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<T>> {
        self.rows.recv().await
    }
}

impl<T> std::fmt::Debug for AsyncRows<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncRows").finish_non_exhaustive()
    }
}

impl<T> Stream for AsyncRows<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.rows.poll_recv(context)
    }
}

/// Something that returns rows as they are published.
pub(super) trait Follow: Send + 'static {
    type Row: Send + 'static;

    /// Calls `callback` whenever there may be a row, or the database is closed.
    fn notify(&self, callback: Box<dyn Fn() + Send + Sync>);

    /// The next row, if there is one already.
    fn read(&mut self) -> Result<Option<Self::Row>>;

    /// Whether the database is closed and every row was read.
    fn is_closed(&self) -> bool;
}

impl Follow for Subscription {
    type Row = Change;

    fn notify(&self, callback: Box<dyn Fn() + Send + Sync>) {
        self.on_change(callback);
    }

    fn read(&mut self) -> Result<Option<Change>> {
        self.next_within(Duration::ZERO)
    }

    fn is_closed(&self) -> bool {
        Subscription::is_closed(self)
    }
}

impl Follow for Watch {
    type Row = Delta;

    fn notify(&self, callback: Box<dyn Fn() + Send + Sync>) {
        Watch::notify(self, callback);
    }

    fn read(&mut self) -> Result<Option<Delta>> {
        self.next_within(Duration::ZERO)
    }

    fn is_closed(&self) -> bool {
        Watch::is_closed(self)
    }
}

impl Follow for PathSubscription {
    type Row = PathChange;

    fn notify(&self, callback: Box<dyn Fn() + Send + Sync>) {
        PathSubscription::notify(self, callback);
    }

    fn read(&mut self) -> Result<Option<PathChange>> {
        self.next_within(Duration::ZERO)
    }

    fn is_closed(&self) -> bool {
        PathSubscription::is_closed(self)
    }
}

impl Follow for TopicSubscription {
    type Row = Arc<Message>;

    fn notify(&self, callback: Box<dyn Fn() + Send + Sync>) {
        TopicSubscription::notify(self, callback);
    }

    fn read(&mut self) -> Result<Option<Arc<Message>>> {
        Ok(self.next_within(Duration::ZERO))
    }

    fn is_closed(&self) -> bool {
        TopicSubscription::is_closed(self)
    }
}

/// What a blocking thread read from a source.
struct Page<S: Follow> {
    source: S,
    rows: Vec<Result<S::Row>>,
    /// Whether nothing more can be read.
    is_last: bool,
}

fn read_page<S: Follow>(mut source: S) -> Page<S> {
    let mut rows = Vec::new();
    while rows.len() < ROWS_AHEAD {
        // Asked before reading: rows that are published before the end are read.
        let is_closed = source.is_closed();
        match source.read() {
            Ok(Some(row)) => rows.push(Ok(row)),
            Ok(None) => return Page { source, rows, is_last: is_closed },
            Err(error) => {
                rows.push(Err(error));
                return Page { source, rows, is_last: true };
            }
        }
    }
    Page { source, rows, is_last: false }
}

/// Sends the rows of `source`; waits without a thread while there are none.
async fn send_followed<S: Follow>(mut source: S, changed: Arc<Notify>, sender: mpsc::Sender<Result<S::Row>>) {
    loop {
        let Ok(page) = tokio::task::spawn_blocking(move || read_page(source)).await else { return };
        let is_caught_up = page.rows.len() < ROWS_AHEAD;
        for row in page.rows {
            if sender.send(row).await.is_err() {
                return;
            }
        }
        if page.is_last {
            return;
        }
        source = page.source;
        if is_caught_up {
            tokio::select! {
                () = changed.notified() => {}
                () = sender.closed() => return,
            }
        }
    }
}
