//! Answers that are made piece by piece, in bounded memory, and without a thread that waits for the client.
//!
//! Work is an `async` block that awaits nothing but [`Pieces::flush`]: it runs where it holds nobody up, until its next piece, and is parked until
//! the client has taken enough for another. So however many clients read slowly, they hold what their work holds (a snapshot, a position),
//! and no thread.
//!
//! What stays small is sent whole, with its length; and what fails before its first piece went out is a proper refusal. After that only
//! cutting the connection tells a client that not all came.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::answer::{Answer, Body};
use super::call::{blocking, reading};
use crate::error::Result;

/// Pieces are about so large: answers below it are sent whole.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces made before the client has taken the first.
const PIECES_AHEAD: usize = 4;

/// Where an answer is written to. Writers push to [`Pieces::buffer`], and call [`Pieces::flush_if_full`] now and then.
pub(crate) struct Pieces {
    pub(crate) buffer: Vec<u8>,
    made: Arc<Mutex<Vec<u8>>>,
}

impl Pieces {
    /// Sends what was written, if it is enough for a piece, and goes on when there is room for the next.
    pub(crate) async fn flush_if_full(&mut self) {
        if self.buffer.len() >= PIECE_BYTES {
            self.flush().await;
        }
    }

    /// Sends what was written, and goes on when there is room for the next piece.
    pub(crate) async fn flush(&mut self) {
        *self.made.lock() = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4));
        let mut is_parked = false;
        poll_fn(|_| if std::mem::replace(&mut is_parked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Writes a JSON string.
    pub(crate) fn string(&mut self, text: &str) {
        write_string(&mut self.buffer, text);
    }
}

/// The work is over: what it wrote last is the last piece.
impl Drop for Pieces {
    fn drop(&mut self) {
        *self.made.lock() = std::mem::take(&mut self.buffer);
    }
}

/// Work between two pieces.
struct Parked {
    work: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    made: Arc<Mutex<Vec<u8>>>,
}

enum Step {
    Piece(Vec<u8>),
    Done(Result<Vec<u8>>),
}

impl Parked {
    fn new<F: Future<Output = Result<()>> + Send + 'static>(work: impl FnOnce(Pieces) -> F) -> Self {
        let made = Arc::new(Mutex::new(Vec::new()));
        let pieces = Pieces { buffer: Vec::with_capacity(1024), made: made.clone() };
        Parked { work: Box::pin(work(pieces)), made }
    }

    /// Works up to the next piece.
    fn step(mut self) -> Result<(Self, Step)> {
        let polled = self.work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let made = std::mem::take(&mut *self.made.lock());
        let step = match polled {
            Poll::Pending => Step::Piece(made),
            Poll::Ready(result) => Step::Done(result.map(|()| made)),
        };
        Ok((self, step))
    }

    /// Sends piece after piece from here on. Waits for a client that is slow, but not for one that stands still.
    async fn send(mut self, mut step: Step, sender: mpsc::Sender<std::io::Result<Bytes>>, patience: Duration) {
        loop {
            let (piece, is_last) = match step {
                Step::Piece(piece) => (Ok(piece.into()), false),
                Step::Done(Ok(piece)) => (Ok(piece.into()), true),
                // It must arrive: an answer that just ends would look whole.
                Step::Done(Err(failure)) => (Err(std::io::Error::other(failure.to_string())), true),
            };
            let is_taken = matches!(timeout(patience, sender.send(piece)).await, Ok(Ok(())));
            if is_last || !is_taken {
                return;
            }
            (self, step) = match blocking(move || self.step()).await {
                Ok(next) => next,
                Err(failure) => {
                    let error = std::io::Error::other(failure.to_string());
                    timeout(patience, sender.send(Err(error))).await.ok();
                    return;
                }
            };
        }
    }

    /// A body of what is made from this step on.
    fn body(self, step: Step, length: Option<u64>, patience: Duration) -> Body {
        let (sender, from) = mpsc::channel(PIECES_AHEAD);
        tokio::spawn(self.send(step, sender, patience));
        Body::Pieces { from, length }
    }
}

/// Appends `text` as a JSON string.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    // Writing to memory can't fail.
    serde_json::to_writer(out, text).ok();
}

/// An answer that `work` writes.
///
/// # Errors
/// Those of `work`, if it fails before the first piece is sent.
pub(crate) async fn streamed<F: Future<Output = Result<()>> + Send + 'static>(
    status: StatusCode,
    content_type: &str,
    patience: Duration,
    work: impl FnOnce(Pieces) -> F,
) -> Result<Answer> {
    let parked = Parked::new(work);
    let body = match reading(move || parked.step()).await? {
        (_, Step::Done(whole)) => Body::Whole(Some(whole?.into())),
        (parked, step) => parked.body(step, None, patience),
    };
    Ok(Answer::new(status, body).with(hyper::header::CONTENT_TYPE, content_type))
}

/// A body of `length` bytes that `work` writes. If it fails, the connection is cut.
pub(crate) fn streamed_bytes<F: Future<Output = Result<()>> + Send + 'static>(
    length: u64,
    patience: Duration,
    work: impl FnOnce(Pieces) -> F,
) -> Body {
    Parked::new(work).body(Step::Piece(Vec::new()), Some(length), patience)
}
