//! Answers that are made piece by piece, in bounded memory, and without a thread that waits for the client.
//!
//! Work is an `async` block that awaits nothing but [`Pieces::flush`]: it runs where it holds nobody up, until its next piece, and is parked until
//! the client has taken enough for another. So however many clients read slowly, they hold what their work holds (a snapshot, a position),
//! and no thread.
//!
//! What stays small is sent whole, with its length; and what fails before its first piece went out is a proper refusal. After that only
//! cutting the connection tells a client that not all came. What is large and was made at once goes out piece by piece too: so all who read
//! are waited for alike.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, Body};
use super::blocking::{blocking, reading};
use super::memory_budget::MemoryReservation;
use crate::error::Result;

/// Pieces are about so large: answers below it are sent whole.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces made before the client has taken the first.
const PIECES_AHEAD: usize = 4;
/// So long a piece may take while others wait for the memory that its answer holds: 16 KiB a second, as those who send must.
const PIECE_TIME_WAITED_FOR: Duration = Duration::from_secs(4);

/// Where an answer is written to. Writers push to [`Pieces::buffer`], and blocking [`Pieces::flush_if_full`] now and then.
pub(crate) struct Pieces {
    pub(crate) buffer: Vec<u8>,
    made: Arc<Mutex<Vec<u8>>>,
}

impl Pieces {
    /// Sends what was written, if it is enough for a piece, and goes on when there is space for the next.
    pub(crate) async fn flush_if_full(&mut self) {
        if self.buffer.len() >= PIECE_BYTES {
            self.flush().await;
        }
    }

    /// Sends what was written, and goes on when there is space for the next piece.
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

    /// Sends piece after piece from here on.
    async fn send(mut self, mut step: Step, client: Client) {
        loop {
            let (piece, is_last) = match step {
                Step::Piece(piece) => (piece, false),
                Step::Done(Ok(piece)) => (piece, true),
                Step::Done(Err(failure)) => return client.cut(failure.to_string()),
            };
            if !client.takes(piece.into()).await {
                return client.cut(TOO_SLOW);
            }
            if is_last {
                return;
            }
            (self, step) = match blocking(move || self.step()).await {
                Ok(next) => next,
                Err(failure) => return client.cut(failure.to_string()),
            };
        }
    }

    /// A body of what is made from this step on.
    fn body(self, step: Step, length: Option<u64>, timeout: Duration) -> Body {
        let (client, body) = Client::new(length, timeout, MemoryReservation::of_current_request());
        tokio::spawn(self.send(step, client));
        body
    }
}

/// Why an answer was cut that its client did not take.
const TOO_SLOW: &str = "the client took too long to read";

/// A client that reads an answer piece by piece.
struct Client {
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    /// A place that no piece takes: an answer that just ended would look whole.
    last_place: mpsc::OwnedPermit<std::io::Result<Bytes>>,
    timeout: Duration,
    /// What the answer holds of the memory that there is for all.
    reservation: Option<Arc<MemoryReservation>>,
}

impl Client {
    fn new(length: Option<u64>, timeout: Duration, reservation: Option<Arc<MemoryReservation>>) -> (Self, Body) {
        let (sender, from) = mpsc::channel(PIECES_AHEAD + 1);
        let last_place = sender.clone().try_reserve_owned().expect("a new channel is empty");
        (Client { sender, last_place, timeout, reservation }, Body::Pieces { from, length })
    }

    /// Sends a piece, and tells whether the client took it in time: one that is slow is waited for, but not one that stands still, nor one
    /// in whose answer's place others wait.
    async fn takes(&self, piece: Bytes) -> bool {
        let mut place = std::pin::pin!(self.sender.reserve());
        let until = Instant::now() + self.timeout;
        loop {
            let next_look = until.min(Instant::now() + PIECE_TIME_WAITED_FOR);
            tokio::select! {
                biased;
                place = &mut place => return place.map(|place| place.send(Ok(piece))).is_ok(),
                () = sleep_until(next_look) => {}
            }
            if next_look == until || self.reservation.as_ref().is_some_and(|reservation| reservation.blocks_others()) {
                return false;
            }
        }
    }

    /// Cuts the connection after what the client has yet to take.
    fn cut(self, reason: impl Into<String>) {
        self.last_place.send(Err(std::io::Error::other(reason.into())));
    }
}

/// A body of these bytes. If there are many, whoever reads them slowly is waited for as where an answer is made piece by piece.
pub(crate) fn with_read_timeout(body: Body, timeout: Duration, reservation: Option<Arc<MemoryReservation>>) -> Body {
    let mut bytes = match body {
        Body::Whole(Some(bytes)) if bytes.len() > PIECES_AHEAD * PIECE_BYTES => bytes,
        other => return other,
    };
    let (client, body) = Client::new(Some(bytes.len() as u64), timeout, reservation);
    tokio::spawn(async move {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            if !client.takes(piece).await {
                return client.cut(TOO_SLOW);
            }
        }
    });
    body
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
    timeout: Duration,
    work: impl FnOnce(Pieces) -> F,
) -> Result<Answer> {
    let parked = Parked::new(work);
    let body = match reading(move || parked.step()).await? {
        (_, Step::Done(whole)) => Body::Whole(Some(whole?.into())),
        (parked, step) => parked.body(step, None, timeout),
    };
    Ok(Answer::new(status, body).with(hyper::header::CONTENT_TYPE, content_type))
}

/// A body of `length` bytes that `work` writes. If it fails, the connection is cut.
pub(crate) fn streamed_bytes<F: Future<Output = Result<()>> + Send + 'static>(
    length: u64,
    timeout: Duration,
    work: impl FnOnce(Pieces) -> F,
) -> Body {
    Parked::new(work).body(Step::Piece(Vec::new()), Some(length), timeout)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::super::memory_budget::MemoryBudget;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const MIB: usize = 1 << 20;

    /// An answer of a MiB, of which nobody takes anything.
    fn answer(reservation: Option<Arc<MemoryReservation>>) -> Body {
        with_read_timeout(Body::Whole(Some(vec![b'x'; MIB].into())), TIMEOUT, reservation)
    }

    /// What comes of a body in the end, and why it was cut if it was.
    async fn taken(mut body: Body) -> (usize, Option<String>) {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => length += frame.data_ref().map_or(0, Bytes::len),
                Err(error) => return (length, Some(error.to_string())),
            }
        }
        (length, None)
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_cut_and_can_tell() {
        let body = answer(None);
        tokio::time::sleep(TIMEOUT / 2).await;
        assert_eq!(taken(body).await, (MIB, None));
        let body = answer(None);
        tokio::time::sleep(TIMEOUT * 2).await;
        assert_eq!(taken(body).await, (PIECES_AHEAD * PIECE_BYTES, Some(TOO_SLOW.to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_is_waited_for_until_others_wait_for_what_it_holds() {
        let budget = MemoryBudget::new(MIB as u64, TIMEOUT);
        let (slow, overcommitted, waiting) = (budget.reservation(), budget.reservation(), budget.reservation());
        slow.grow(MIB).await.unwrap();
        overcommitted.grow(MIB).await.unwrap();
        let body = answer(Some(slow));
        tokio::time::sleep(TIMEOUT / 2).await;
        let begun = Instant::now();
        // It is given what the slow one had, long before its own timeout is over.
        waiting.grow(MIB).await.unwrap();
        assert!(begun.elapsed() <= PIECE_TIME_WAITED_FOR, "{:?}", begun.elapsed());
        assert_eq!(taken(body).await.1.as_deref(), Some(TOO_SLOW));
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_nothing_is_in_nobodys_way() {
        let budget = MemoryBudget::new(MIB as u64, TIMEOUT / 2);
        let (first, overcommitted, waiting) = (budget.reservation(), budget.reservation(), budget.reservation());
        first.grow(MIB).await.unwrap();
        overcommitted.grow(MIB).await.unwrap();
        let body = answer(Some(budget.reservation()));
        waiting.grow(MIB).await.unwrap_err();
        assert_eq!(taken(body).await, (MIB, None));
    }
}
