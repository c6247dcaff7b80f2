//! Bodies of requests, bounded in size and in time.

use std::io::Read;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use stemmadb::Value;
use tokio::time::timeout;

use super::weight::{Purpose, check_weight};
use crate::error::{Failure, Result};

/// So many bytes a second is the least that a request comes with, once it was waited for: who sends less holds a connection
/// for next to nothing.
const RATE_MIN: u64 = 128;

/// How long a body is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// How long it may stand still.
    still: Duration,
    /// When the first piece was waited for, and how many bytes came since; none: it may come as slowly as it likes.
    sent: Option<(Instant, u64)>,
}

impl Patience {
    /// With a client: a body neither stands still for longer than this nor comes by the byte.
    pub(crate) fn with_sender(still: Duration) -> Self {
        Patience { still, sent: Some((Instant::now(), 0)) }
    }

    /// With an answer of somebody who may have nothing to say for long.
    pub(crate) fn with_peer(still: Duration) -> Self {
        Patience { still, sent: None }
    }

    /// How long the next piece is waited for.
    fn left(&self) -> Duration {
        let Some((begun, byte_count)) = self.sent else { return self.still };
        let all = self.still + Duration::from_secs(byte_count / RATE_MIN);
        all.saturating_sub(begun.elapsed()).min(self.still)
    }

    fn count(&mut self, length: usize) {
        if let Some((_, byte_count)) = &mut self.sent {
            *byte_count += length as u64;
        }
    }
}

/// The whole body, if it is no longer than `bytes_max` and comes soon enough.
pub(crate) async fn read_all(mut body: Incoming, bytes_max: usize, mut patience: Patience) -> Result<Bytes> {
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

/// What a compressed body says, if it is no longer than `bytes_max`.
pub(crate) fn inflated(compressed: &[u8], bytes_max: usize) -> Result<Bytes> {
    let mut whole = Vec::new();
    let read = MultiGzDecoder::new(compressed).take(bytes_max as u64 + 1).read_to_end(&mut whole);
    match read {
        Ok(count) if count > bytes_max => Err(Failure::too_large("the request entity is too large")),
        Ok(_) => Ok(whole.into()),
        Err(error) => Err(Failure::bad_request(format!("The request's body is not gzip: {error}"))),
    }
}

/// The next piece of a body; none at its end.
pub(crate) async fn next_frame(body: &mut Incoming, patience: &mut Patience) -> Result<Option<Bytes>> {
    loop {
        let frame = timeout(patience.left(), body.frame()).await.map_err(|_| {
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
                    patience.count(data.len());
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
    if text.is_empty() {
        return Err(Failure::bad_request("invalid UTF-8 JSON: the body is empty"));
    }
    check_weight(text, purpose)?;
    let limits = stemmadb::Limits { bytes: usize::MAX, nodes: usize::MAX, ..stemmadb::Limits::default() };
    Value::parse_with(text, &limits).map_err(|error| Failure::bad_request(format!("invalid UTF-8 JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compressed_bodies_are_bounded_too() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&[b' '; 100_000]).unwrap();
        let compressed = encoder.finish().unwrap();
        assert_eq!(inflated(&compressed, 100_000).unwrap().len(), 100_000);
        assert_eq!(inflated(&compressed, 99_999).unwrap_err().status(), hyper::StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(inflated(b"{}", 10).unwrap_err().status(), hyper::StatusCode::BAD_REQUEST);
    }

    #[test]
    fn patience_grows_with_what_comes() {
        let still = Duration::from_secs(60);
        let waited = |byte_count, seconds| {
            let begun = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            Patience { still, sent: Some((begun, byte_count)) }.left().as_secs()
        };
        assert!((59..=60).contains(&waited(0, 0)) && waited(0, 61) == 0, "the first piece");
        assert_eq!(waited(60, 61), 0, "a byte a second");
        assert!((59..=60).contains(&waited(RATE_MIN * 3600, 3600)), "as fast as it must be");
        assert_eq!(waited(RATE_MIN * 1_000_000, 10), 60, "never longer than for one that stands still");
        assert_eq!(Patience::with_peer(still).left(), still);
    }
}
