//! Request bodies, limited in size and in time.

use std::fmt::Display;
use std::io::Read;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::Body;
use stemmadb::Value;
use tokio::time::timeout;

use super::error::{Failure, Result};
use super::json_memory::{JsonPurpose, check_json_memory};
use super::memory_budget::MemoryReservation;

/// The minimum rate in bytes per second, after the first wait. It prevents slow senders from holding connections at
/// almost no cost.
const RATE_MIN: u64 = 128;
/// The minimum rate while other requests wait for the memory that the body holds.
const RATE_MIN_WAITED_FOR: u64 = 16 << 10;

/// Timeouts of a body that is being received.
#[derive(Debug, Clone)]
pub struct BodyTimeout {
    /// How long the body may make no progress.
    stall_timeout: Duration,
    /// The time left, which grows with each byte received; none: no minimum rate is required.
    left: Option<Duration>,
    /// The required rate in bytes per second: each second's worth of bytes adds a second to the time left.
    rate_min: u64,
}

impl BodyTimeout {
    /// With a client: a body may neither pause for longer than this nor arrive more slowly than the minimum rate.
    pub fn for_client(stall_timeout: Duration) -> Self {
        BodyTimeout { stall_timeout, left: Some(stall_timeout), rate_min: RATE_MIN }
    }

    /// For a response of a peer, which may stay silent for long, such as a changes feed.
    pub fn for_peer(stall_timeout: Duration) -> Self {
        BodyTimeout { stall_timeout, left: None, rate_min: RATE_MIN }
    }

    /// Adapts the required rate to whether other requests wait for memory. Once they wait for memory that `reservation`
    /// holds, a body without a total timeout gets one for good.
    fn update_rate(&mut self, reservation: &MemoryReservation) {
        self.rate_min = if reservation.has_waiters() { RATE_MIN_WAITED_FOR } else { RATE_MIN };
        if reservation.blocks_others() {
            self.left.get_or_insert(self.stall_timeout);
        }
    }

    /// The timeout for the next chunk.
    fn left(&self) -> Duration {
        self.left.unwrap_or(self.stall_timeout)
    }

    /// Records a chunk and the time spent waiting for it. The time left never exceeds `stall_timeout`, so a fast start
    /// does not permit a slow rest.
    fn record_chunk(&mut self, length: usize, waited: Duration) {
        if let Some(left) = self.left {
            let worth = Duration::from_millis((length as u64).saturating_mul(1000) / self.rate_min);
            self.left = Some((left.saturating_sub(waited) + worth).min(self.stall_timeout));
        }
    }
}

/// Reads a whole body of at most `bytes_max` bytes. The received bytes are charged to `reservation`.
pub async fn read_all<B: Body<Data = Bytes, Error: Display> + Unpin>(
    mut body: B,
    bytes_max: usize,
    mut timeouts: BodyTimeout,
    reservation: Option<&MemoryReservation>,
) -> Result<Bytes> {
    let too_large = || Failure::too_large("the request entity is too large");
    if body.size_hint().lower() > bytes_max as u64 {
        discard(body, timeouts).await;
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = next_frame(&mut body, &mut timeouts).await? {
        if whole.len() + frame.len() > bytes_max {
            discard(body, timeouts).await;
            return Err(too_large());
        }
        if let Some(reservation) = reservation {
            if let Err(failure) = reservation.grow(frame.len()).await {
                drop(whole);
                discard(body, timeouts).await;
                return Err(failure);
            }
            timeouts.update_rate(reservation);
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(frame);
        }
        whole.extend_from_slice(&frame);
        // After the first part the announced length is trusted, because growing the buffer step by step could need
        // twice the memory.
        if whole.len() >= PREALLOCATE_FROM_BYTES {
            let rest = usize::try_from(body.size_hint().exact().unwrap_or(0)).unwrap_or(usize::MAX);
            whole.reserve(rest.min(bytes_max - whole.len()));
        }
    }
    Ok(whole.freeze())
}

/// The number of received bytes after which a buffer of the announced length is allocated.
const PREALLOCATE_FROM_BYTES: usize = 1 << 20;
/// The number of bytes of a too large body that are still read and discarded.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

/// Reads and discards the rest of a body, up to a limit: a client whose connection is closed while it still sends may
/// not read the response.
async fn discard<B: Body<Data = Bytes, Error: Display> + Unpin>(mut body: B, mut timeouts: BodyTimeout) {
    let mut left = DISCARDED_BYTES_MAX;
    while let Ok(Some(frame)) = next_frame(&mut body, &mut timeouts).await {
        match left.checked_sub(frame.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// Decompresses a body to at most `bytes_max` bytes, which are charged to `reservation`.
pub async fn decompress(compressed: &[u8], bytes_max: usize, reservation: &MemoryReservation) -> Result<Bytes> {
    let (mut whole, mut decoder) = (Vec::new(), MultiGzDecoder::new(compressed));
    loop {
        let read = decoder.by_ref().take(DECOMPRESS_CHUNK_BYTES).read_to_end(&mut whole);
        let count = read.map_err(|error| Failure::bad_request(format!("The request's body is not gzip: {error}")))?;
        if whole.len() > bytes_max {
            return Err(Failure::too_large("the request entity is too large"));
        }
        if count == 0 {
            return Ok(whole.into());
        }
        reservation.grow(count).await?;
    }
}

/// The number of bytes that are decompressed before more memory is reserved.
const DECOMPRESS_CHUNK_BYTES: u64 = 256 << 10;

/// Reads the next chunk of a body. Returns `None` at its end.
pub async fn next_frame<B: Body<Data = Bytes, Error: Display> + Unpin>(
    body: &mut B,
    timeouts: &mut BodyTimeout,
) -> Result<Option<Bytes>> {
    let begun = Instant::now();
    loop {
        let frame = timeout(timeouts.left().saturating_sub(begun.elapsed()), body.frame()).await.map_err(|_| {
            Failure::new(
                hyper::StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "The body stood still for too long, or came too slowly.",
            )
        })?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::bad_request(format!("The body ended early: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    timeouts.record_chunk(data.len(), begun.elapsed());
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Parses a JSON body.
///
/// # Errors
/// 400 if it is not valid JSON; 413 if parsing it would take far more memory than its length.
pub fn read_json(text: &[u8], purpose: JsonPurpose) -> Result<Value> {
    check_json_memory(text, purpose)?;
    parse(text)
}

/// Like [`read_json`], and charges the parsed value to `reservation`.
///
/// # Errors
/// Also 503 if no memory becomes free in time.
pub async fn read_json_within(text: &[u8], purpose: JsonPurpose, reservation: &MemoryReservation) -> Result<Value> {
    reservation.grow(check_json_memory(text, purpose)?).await?;
    parse(text)
}

fn parse(text: &[u8]) -> Result<Value> {
    if text.is_empty() {
        return Err(Failure::bad_request("invalid UTF-8 JSON: the body is empty"));
    }
    let limits = stemmadb::Limits { bytes: usize::MAX, nodes: usize::MAX, ..stemmadb::Limits::default() };
    Value::parse_with(text, &limits).map_err(|error| Failure::bad_request(format!("invalid UTF-8 JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::memory_budget::MemoryBudget;
    use super::*;

    #[tokio::test]
    async fn decompressed_bodies_are_limited() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[b' '; 100_000]).unwrap();
        let compressed = encoder.finish().unwrap();
        let reservation = MemoryBudget::new(0, Duration::ZERO).reservation();
        assert_eq!(decompress(&compressed, 100_000, &reservation).await.unwrap().len(), 100_000);
        let status = async |compressed: &[u8]| decompress(compressed, 99_999, &reservation).await.unwrap_err().status();
        assert_eq!(status(&compressed).await, hyper::StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(status(b"{}").await, hyper::StatusCode::BAD_REQUEST);
    }

    #[test]
    fn timeout_grows_with_received_bytes_up_to_a_limit() {
        let (stall_timeout, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let left_after = |pieces: &[(u64, Duration)]| {
            let mut timeouts = BodyTimeout::for_client(stall_timeout);
            pieces.iter().for_each(|(length, waited)| timeouts.record_chunk(*length as usize, *waited));
            timeouts.left()
        };
        assert_eq!(left_after(&[]), stall_timeout, "the first piece");
        assert!(left_after(&[(1, second); 61]) < second, "a byte a second");
        assert_eq!(left_after(&[(RATE_MIN, second); 3600]), stall_timeout, "exactly the minimum rate");
        assert_eq!(
            left_after(&[(1 << 26, second), (0, stall_timeout)]),
            Duration::ZERO,
            "a fast start does not permit a slow rest"
        );
        let mut hurried = BodyTimeout { rate_min: RATE_MIN_WAITED_FOR, ..BodyTimeout::for_client(stall_timeout) };
        (0..61).for_each(|_| hurried.record_chunk(RATE_MIN as usize, second));
        assert!(hurried.left() < second, "a higher rate is required while others wait");
        assert_eq!(BodyTimeout::for_peer(stall_timeout).left(), stall_timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn peer_is_not_rushed_until_its_memory_is_needed() {
        const MIB: usize = 1 << 20;
        let (stall_timeout, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let budget = MemoryBudget::new(MIB as u64, stall_timeout);
        let (slow, overcommitted, waiting) = (budget.reservation(), budget.reservation(), budget.reservation());
        slow.grow(MIB).await.unwrap();
        overcommitted.grow(MIB).await.unwrap();
        let mut timeouts = BodyTimeout::for_peer(stall_timeout);
        let mut takes_an_hour = |reservation: &MemoryReservation| {
            (0..3600).for_each(|_| {
                timeouts.update_rate(reservation);
                timeouts.record_chunk(1, second);
            });
            timeouts.left() == stall_timeout
        };
        assert!(takes_an_hour(&slow), "nobody waits");
        let waiting = tokio::spawn(async move { waiting.grow(MIB).await });
        tokio::time::sleep(second).await;
        assert!(takes_an_hour(&budget.reservation()), "it holds nothing");
        assert!(!takes_an_hour(&slow));
        drop(slow);
        waiting.await.unwrap().unwrap();
    }
}
