//! Streamed responses: produced chunk by chunk in bounded memory, without a thread that waits for the client.
//!
//! The producer is an `async` block that awaits nothing but [`ResponseWriter::flush`]. It runs on the blocking pool
//! until it has filled a chunk, and is parked until the client has taken enough for another. A slow client therefore
//! holds what the producer holds (a snapshot, a position), and no thread.
//!
//! A small response is sent complete, with its length, and an error before the first chunk becomes an error response.
//! After that the only way to report an error is to close the connection. Large complete bodies are sent in chunks too,
//! so that the same timeouts apply to every reader.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb::Cancellation;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::blocking::{blocking, reading};
use super::cancellation::{during, of_current_request};
use super::response::HttpResponse;
use super::{Body, MemoryReservation};
use crate::error::Result;

/// The approximate size of a chunk. Smaller responses are sent complete.
const CHUNK_BYTES: usize = 64 << 10;
/// The number of chunks that are produced before the client has taken the first.
const CHUNKS_AHEAD: usize = 4;
/// The timeout for a chunk while others wait for the memory that the response holds: 16 KiB per second, as for senders.
const CHUNK_TIMEOUT_UNDER_PRESSURE: Duration = Duration::from_secs(4);

/// The writer of a streamed response. Producers append to [`ResponseWriter::buffer`] and call
/// [`ResponseWriter::flush_if_full`] regularly.
pub(crate) struct ResponseWriter {
    pub(crate) buffer: Vec<u8>,
    filled: Arc<Mutex<Vec<u8>>>,
}

impl ResponseWriter {
    /// Sends the buffer if it has enough for a chunk, and waits until there is space for the next.
    pub(crate) async fn flush_if_full(&mut self) {
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush().await;
        }
    }

    /// Sends the buffer and waits until there is space for the next chunk.
    pub(crate) async fn flush(&mut self) {
        *self.filled.lock() = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4));
        let mut is_parked = false;
        poll_fn(|_| if std::mem::replace(&mut is_parked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Writes a JSON string.
    pub(crate) fn string(&mut self, text: &str) {
        write_string(&mut self.buffer, text);
    }
}

/// Passes on the last chunk when the producer ends.
impl Drop for ResponseWriter {
    fn drop(&mut self) {
        *self.filled.lock() = std::mem::take(&mut self.buffer);
    }
}

/// A producer between two chunks.
struct ParkedProducer {
    work: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    filled: Arc<Mutex<Vec<u8>>>,
    /// That of the request.
    cancellation: Option<Cancellation>,
}

enum ProducerStep {
    Chunk(Vec<u8>),
    Done(Result<Vec<u8>>),
}

impl ParkedProducer {
    fn new<F: Future<Output = Result<()>> + Send + 'static>(work: impl FnOnce(ResponseWriter) -> F) -> Self {
        let filled = Arc::new(Mutex::new(Vec::new()));
        let writer = ResponseWriter { buffer: Vec::with_capacity(1024), filled: filled.clone() };
        ParkedProducer { work: Box::pin(work(writer)), filled, cancellation: of_current_request() }
    }

    /// Runs the producer up to the next chunk.
    fn step(mut self) -> Result<(Self, ProducerStep)> {
        let cancellation = self.cancellation.clone();
        let polled = during(cancellation.as_ref(), || self.work.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        let filled = std::mem::take(&mut *self.filled.lock());
        let step = match polled {
            Poll::Pending => ProducerStep::Chunk(filled),
            Poll::Ready(result) => ProducerStep::Done(result.map(|()| filled)),
        };
        Ok((self, step))
    }

    /// Sends the given chunk and all further ones.
    async fn send(mut self, mut step: ProducerStep, sender: ChunkSender) {
        loop {
            let (chunk, is_last) = match step {
                ProducerStep::Chunk(chunk) => (chunk, false),
                ProducerStep::Done(Ok(chunk)) => (chunk, true),
                ProducerStep::Done(Err(failure)) => return sender.abort(failure.to_string()),
            };
            if !sender.send_chunk(chunk.into()).await {
                return sender.abort(TOO_SLOW);
            }
            if is_last {
                return;
            }
            (self, step) = match blocking(move || self.step()).await {
                Ok(next) => next,
                Err(failure) => return sender.abort(failure.to_string()),
            };
        }
    }

    /// Returns the body of this chunk and all further ones.
    fn body(self, step: ProducerStep, length: Option<u64>, timeout: Duration) -> Body {
        let (sender, body) = ChunkSender::new(length, timeout, MemoryReservation::of_current_request());
        tokio::spawn(self.send(step, sender));
        body
    }
}

/// The reason for closing the connection of a client that reads too slowly.
const TOO_SLOW: &str = "the client took too long to read";

/// The sending side of a streamed body.
struct ChunkSender {
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    /// A slot reserved for the final error, without which a truncated response would look complete.
    error_slot: mpsc::OwnedPermit<std::io::Result<Bytes>>,
    timeout: Duration,
    /// The memory that the response holds of the budget.
    reservation: Option<Arc<MemoryReservation>>,
}

impl ChunkSender {
    fn new(length: Option<u64>, timeout: Duration, reservation: Option<Arc<MemoryReservation>>) -> (Self, Body) {
        let (sender, from) = mpsc::channel(CHUNKS_AHEAD + 1);
        let error_slot = sender.clone().try_reserve_owned().expect("a new channel is empty");
        (ChunkSender { sender, error_slot, timeout, reservation }, Body::Chunks { from, length })
    }

    /// Sends a chunk. Returns whether the client took it in time. A slow client is waited for, unless it makes no
    /// progress or others wait for the memory that its response holds.
    async fn send_chunk(&self, chunk: Bytes) -> bool {
        let mut slot = std::pin::pin!(self.sender.reserve());
        let until = Instant::now() + self.timeout;
        loop {
            let next_check = until.min(Instant::now() + CHUNK_TIMEOUT_UNDER_PRESSURE);
            tokio::select! {
                biased;
                slot = &mut slot => return slot.map(|slot| slot.send(Ok(chunk))).is_ok(),
                () = sleep_until(next_check) => {}
            }
            if next_check == until || self.reservation.as_ref().is_some_and(|reservation| reservation.blocks_others()) {
                return false;
            }
        }
    }

    /// Closes the connection after the chunks that are still queued.
    fn abort(self, reason: impl Into<String>) {
        self.error_slot.send(Err(std::io::Error::other(reason.into())));
    }
}

/// Applies the timeouts of streamed bodies to a large complete body.
pub(crate) fn with_read_timeout(body: Body, timeout: Duration, reservation: Option<Arc<MemoryReservation>>) -> Body {
    let mut bytes = match body {
        Body::Full(Some(bytes)) if bytes.len() > CHUNKS_AHEAD * CHUNK_BYTES => bytes,
        other => return other,
    };
    let (sender, body) = ChunkSender::new(Some(bytes.len() as u64), timeout, reservation);
    tokio::spawn(async move {
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
            if !sender.send_chunk(chunk).await {
                return sender.abort(TOO_SLOW);
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

/// A response that `work` writes.
///
/// # Errors
/// Those of `work`, if it fails before the first chunk is sent.
pub(crate) async fn streamed<F: Future<Output = Result<()>> + Send + 'static>(
    status: StatusCode,
    content_type: &str,
    timeout: Duration,
    work: impl FnOnce(ResponseWriter) -> F,
) -> Result<HttpResponse> {
    let producer = ParkedProducer::new(work);
    let body = match reading(move || producer.step()).await? {
        (_, ProducerStep::Done(whole)) => Body::Full(Some(whole?.into())),
        (producer, step) => producer.body(step, None, timeout),
    };
    Ok(HttpResponse::new(status, body).with(hyper::header::CONTENT_TYPE, content_type))
}

/// A body of `length` bytes that `work` writes. If it fails, the connection is closed.
pub(crate) fn streamed_bytes<F: Future<Output = Result<()>> + Send + 'static>(
    length: u64,
    timeout: Duration,
    work: impl FnOnce(ResponseWriter) -> F,
) -> Body {
    ParkedProducer::new(work).body(ProducerStep::Chunk(Vec::new()), Some(length), timeout)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::super::MemoryBudget;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const MIB: usize = 1 << 20;

    /// A body of 1 MiB that nothing reads.
    fn large_body(reservation: Option<Arc<MemoryReservation>>) -> Body {
        with_read_timeout(Body::Full(Some(vec![b'x'; MIB].into())), TIMEOUT, reservation)
    }

    /// Reads a body to its end. Returns its length, and the error if it was cut off.
    async fn read_to_end(mut body: Body) -> (usize, Option<String>) {
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
    async fn stalled_reader_is_disconnected_with_an_error() {
        let body = large_body(None);
        tokio::time::sleep(TIMEOUT / 2).await;
        assert_eq!(read_to_end(body).await, (MIB, None));
        let body = large_body(None);
        tokio::time::sleep(TIMEOUT * 2).await;
        assert_eq!(read_to_end(body).await, (CHUNKS_AHEAD * CHUNK_BYTES, Some(TOO_SLOW.to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_disconnected_once_others_wait_for_its_memory() {
        let budget = MemoryBudget::new(MIB as u64, TIMEOUT);
        let (slow, overcommitted, waiting) = (budget.reservation(), budget.reservation(), budget.reservation());
        slow.grow(MIB).await.unwrap();
        overcommitted.grow(MIB).await.unwrap();
        let body = large_body(Some(slow));
        tokio::time::sleep(TIMEOUT / 2).await;
        let begun = Instant::now();
        // The waiting request gets the slow one's memory long before its own timeout.
        waiting.grow(MIB).await.unwrap();
        assert!(begun.elapsed() <= CHUNK_TIMEOUT_UNDER_PRESSURE, "{:?}", begun.elapsed());
        assert_eq!(read_to_end(body).await.1.as_deref(), Some(TOO_SLOW));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_without_memory_is_not_disconnected() {
        let budget = MemoryBudget::new(MIB as u64, TIMEOUT / 2);
        let (first, overcommitted, waiting) = (budget.reservation(), budget.reservation(), budget.reservation());
        first.grow(MIB).await.unwrap();
        overcommitted.grow(MIB).await.unwrap();
        let body = large_body(Some(budget.reservation()));
        waiting.grow(MIB).await.unwrap_err();
        assert_eq!(read_to_end(body).await, (MIB, None));
    }
}
