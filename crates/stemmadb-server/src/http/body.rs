//! Bodies of requests, bounded in size and in time.

use std::io::Read;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use stemmadb::Value;
use tokio::time::timeout;

use super::room::Share;
use super::weight::{Purpose, check_weight};
use crate::error::{Failure, Result};

/// So many bytes a second is the least that a request comes with, once it was waited for: who sends less holds a connection
/// for next to nothing.
const RATE_MIN: u64 = 128;
/// The least while others wait for the memory that it holds.
const RATE_MIN_WAITED_FOR: u64 = 16 << 10;

/// How long a body is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// How long it may stand still.
    still: Duration,
    /// How long is still waited, which grows with what comes; none: it may come as slowly as it likes.
    left: Option<Duration>,
    /// So many bytes are worth a second.
    rate_min: u64,
}

impl Patience {
    /// With a client: a body neither stands still for longer than this nor comes by the byte.
    pub(crate) fn with_sender(still: Duration) -> Self {
        Patience { still, left: Some(still), rate_min: RATE_MIN }
    }

    /// With an answer of somebody who may have nothing to say for long.
    pub(crate) fn with_peer(still: Duration) -> Self {
        Patience { still, left: None, rate_min: RATE_MIN }
    }

    /// Others wait for memory, or do no longer, some of which `share` may hold: who has all the time in the world loses it for good then.
    fn hurry(&mut self, share: &Share) {
        self.rate_min = if share.is_waited_for() { RATE_MIN_WAITED_FOR } else { RATE_MIN };
        if share.is_in_the_way() {
            self.left.get_or_insert(self.still);
        }
    }

    /// How long the next piece is waited for.
    fn left(&self) -> Duration {
        self.left.unwrap_or(self.still)
    }

    /// Notes a piece, and how long it was waited for. However much came before, the rest comes as fast as it must.
    fn count(&mut self, length: usize, waited: Duration) {
        if let Some(left) = self.left {
            let worth = Duration::from_millis((length as u64).saturating_mul(1000) / self.rate_min);
            self.left = Some((left.saturating_sub(waited) + worth).min(self.still));
        }
    }
}

/// The whole body, if it is no longer than `bytes_max` and comes soon enough. What came takes room of `share`.
pub(crate) async fn read_all(
    mut body: Incoming,
    bytes_max: usize,
    mut patience: Patience,
    share: Option<&Share>,
) -> Result<Bytes> {
    let too_large = || Failure::too_large("the request entity is too large");
    if body.size_hint().lower() > bytes_max as u64 {
        pass_over(body, patience).await;
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = next_frame(&mut body, &mut patience).await? {
        if whole.len() + frame.len() > bytes_max {
            pass_over(body, patience).await;
            return Err(too_large());
        }
        if let Some(share) = share {
            if let Err(failure) = share.grow(frame.len()).await {
                drop(whole);
                pass_over(body, patience).await;
                return Err(failure);
            }
            patience.hurry(share);
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(frame);
        }
        whole.extend_from_slice(&frame);
        // Once some is there the rest is believed to come: growing by copies would take twice as much.
        if whole.len() >= BELIEVED_FROM {
            let rest = usize::try_from(body.size_hint().exact().unwrap_or(0)).unwrap_or(usize::MAX);
            whole.reserve(rest.min(bytes_max - whole.len()));
        }
    }
    Ok(whole.freeze())
}

/// From here on there is room for as much as is said to come.
const BELIEVED_FROM: usize = 1 << 20;
/// So much of a body that is too large is still read.
const PASSED_BYTES_MAX: usize = 4 << 20;

/// Reads on without keeping it, up to a bound: who is hung up on while still sending may not see why.
async fn pass_over(mut body: Incoming, mut patience: Patience) {
    let mut left = PASSED_BYTES_MAX;
    while let Ok(Some(frame)) = next_frame(&mut body, &mut patience).await {
        match left.checked_sub(frame.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}

/// What a compressed body says, if it is no longer than `bytes_max`. It takes room of `share`.
pub(crate) async fn inflated(compressed: &[u8], bytes_max: usize, share: &Share) -> Result<Bytes> {
    let (mut whole, mut decoder) = (Vec::new(), MultiGzDecoder::new(compressed));
    loop {
        let read = decoder.by_ref().take(INFLATED_AT_ONCE).read_to_end(&mut whole);
        let count = read.map_err(|error| Failure::bad_request(format!("The request's body is not gzip: {error}")))?;
        if whole.len() > bytes_max {
            return Err(Failure::too_large("the request entity is too large"));
        }
        if count == 0 {
            return Ok(whole.into());
        }
        share.grow(count).await?;
    }
}

/// So much of a compressed body is made before more room is taken.
const INFLATED_AT_ONCE: u64 = 256 << 10;

/// The next piece of a body; none at its end.
pub(crate) async fn next_frame(body: &mut Incoming, patience: &mut Patience) -> Result<Option<Bytes>> {
    let begun = Instant::now();
    loop {
        let frame = timeout(patience.left().saturating_sub(begun.elapsed()), body.frame()).await.map_err(|_| {
            Failure::new(
                hyper::StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "The request's body stood still for too long, or came too slowly.",
            )
        })?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::bad_request(format!("The request's body ended early: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    patience.count(data.len(), begun.elapsed());
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The JSON value that `text` is.
///
/// # Errors
/// 400 if it is none; 413 if it would take far more memory than it is long.
pub(crate) fn read_json(text: &[u8], purpose: Purpose) -> Result<Value> {
    check_weight(text, purpose)?;
    parse(text)
}

/// The same of a request's body: what is made of it takes room of `share`.
///
/// # Errors
/// Also 503, if there is none for long.
pub(crate) async fn read_json_within(text: &[u8], purpose: Purpose, share: &Share) -> Result<Value> {
    share.grow(check_weight(text, purpose)?).await?;
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

    use super::super::room::Room;
    use super::*;

    #[tokio::test]
    async fn compressed_bodies_are_bounded_too() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[b' '; 100_000]).unwrap();
        let compressed = encoder.finish().unwrap();
        let share = Room::new(0, Duration::ZERO).share();
        assert_eq!(inflated(&compressed, 100_000, &share).await.unwrap().len(), 100_000);
        let status = async |compressed: &[u8]| inflated(compressed, 99_999, &share).await.unwrap_err().status();
        assert_eq!(status(&compressed).await, hyper::StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(status(b"{}").await, hyper::StatusCode::BAD_REQUEST);
    }

    #[test]
    fn patience_grows_with_what_comes_and_not_without_end() {
        let (still, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let left_after = |pieces: &[(u64, Duration)]| {
            let mut patience = Patience::with_sender(still);
            pieces.iter().for_each(|(length, waited)| patience.count(*length as usize, *waited));
            patience.left()
        };
        assert_eq!(left_after(&[]), still, "the first piece");
        assert!(left_after(&[(1, second); 61]) < second, "a byte a second");
        assert_eq!(left_after(&[(RATE_MIN, second); 3600]), still, "as fast as it must be");
        assert_eq!(
            left_after(&[(1 << 26, second), (0, still)]),
            Duration::ZERO,
            "what came fast pays for nothing later"
        );
        let mut hurried = Patience { rate_min: RATE_MIN_WAITED_FOR, ..Patience::with_sender(still) };
        (0..61).for_each(|_| hurried.count(RATE_MIN as usize, second));
        assert!(hurried.left() < second, "while others wait for what it holds");
        assert_eq!(Patience::with_peer(still).left(), still);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_has_all_the_time_until_others_wait_for_what_its_answer_holds() {
        const MIB: usize = 1 << 20;
        let (still, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let room = Room::new(MIB as u64, still);
        let (slow, beyond, waiting) = (room.share(), room.share(), room.share());
        slow.grow(MIB).await.unwrap();
        beyond.grow(MIB).await.unwrap();
        let mut patience = Patience::with_peer(still);
        let mut takes_an_hour = |share: &Share| {
            (0..3600).for_each(|_| {
                patience.hurry(share);
                patience.count(1, second);
            });
            patience.left() == still
        };
        assert!(takes_an_hour(&slow), "nobody waits");
        let waiting = tokio::spawn(async move { waiting.grow(MIB).await });
        tokio::time::sleep(second).await;
        assert!(takes_an_hour(&room.share()), "it holds nothing");
        assert!(!takes_an_hour(&slow));
        drop(slow);
        waiting.await.unwrap().unwrap();
    }
}
