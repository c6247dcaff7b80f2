//! Bodies of requests, bounded in size and in time.

use std::io::Read;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use stemmadb::Value;
use tokio::time::timeout;

use crate::error::{Failure, Result};

/// A body of many small values takes more memory than its text: it has at most one for so many bytes, or as many as a document may have.
const BYTES_PER_NODE_MIN: usize = 8;

/// The whole body, if it is no longer than `bytes_max` and never stands still for longer than `patience`.
pub(crate) async fn read_all(mut body: Incoming, bytes_max: usize, patience: Duration) -> Result<Bytes> {
    let too_large = || Failure::too_large("the request entity is too large");
    if body.size_hint().lower() > bytes_max as u64 {
        pass_over(body, patience).await;
        return Err(too_large());
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = next_frame(&mut body, patience).await? {
        if whole.len() + frame.len() > bytes_max {
            pass_over(body, patience).await;
            return Err(too_large());
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(frame);
        }
        whole.extend_from_slice(&frame);
    }
    Ok(whole.freeze())
}

/// So much of a body that is too large is still read.
const PASSED_BYTES_MAX: usize = 4 << 20;

/// Reads on without keeping it, up to a bound: who is hung up on while still sending may not see why.
async fn pass_over(mut body: Incoming, patience: Duration) {
    let mut left = PASSED_BYTES_MAX;
    while let Ok(Some(frame)) = next_frame(&mut body, patience).await {
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
pub(crate) async fn next_frame(body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>> {
    loop {
        let frame = timeout(patience, body.frame()).await.map_err(|_| {
            Failure::new(hyper::StatusCode::REQUEST_TIMEOUT, "timeout", "The request's body stood still for too long.")
        })?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::bad_request(format!("The request's body ended early: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The JSON value that `bytes` are.
///
/// # Errors
/// 400 if they are none.
pub(crate) fn read_json(bytes: &[u8]) -> Result<Value> {
    let of_a_document = stemmadb::Limits::default();
    let nodes = of_a_document.nodes.max(bytes.len() / BYTES_PER_NODE_MIN);
    let limits = stemmadb::Limits { bytes: usize::MAX, nodes, ..of_a_document };
    Value::parse_with(bytes, &limits).map_err(|error| Failure::bad_request(format!("invalid UTF-8 JSON: {error}")))
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
}
