//! HTTP responses and their bodies.

use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, VARY};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::{Failure, Result};

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse(Response<Body>);

/// The body of a response.
#[derive(Debug)]
pub(crate) enum Body {
    /// A body that is complete.
    Full(Option<Bytes>),
    /// A streamed body. An error closes the connection, which tells the client that the body is incomplete.
    Chunks {
        /// The receiver of the chunks.
        from: mpsc::Receiver<std::io::Result<Bytes>>,
        /// The total length in bytes, if known.
        length: Option<u64>,
    },
    /// A streamed body that is compressed while it is sent. The encoder is `None` at the end.
    Compressed {
        /// The receiver of the uncompressed chunks.
        from: mpsc::Receiver<std::io::Result<Bytes>>,
        encoder: Option<GzEncoder<Vec<u8>>>,
    },
}

/// The smallest body that is compressed, in bytes.
const COMPRESSED_BYTES_MIN: usize = 1024;

fn gzip_encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

impl HttpResponse {
    /// A JSON response.
    pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Result<Self> {
        let mut text = serde_json::to_vec(body).map_err(|error| Failure::internal(error.to_string()))?;
        text.push(b'\n');
        Ok(Self::text(status, "application/json", text))
    }

    /// A JSON response with status 200.
    pub(crate) fn ok(body: &impl Serialize) -> Result<Self> {
        Self::json(StatusCode::OK, body)
    }

    /// `{"ok": true}`.
    pub(crate) fn done(status: StatusCode) -> Self {
        Self::text(status, "application/json", &b"{\"ok\":true}\n"[..])
    }

    /// A response with a complete body.
    pub(crate) fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut response = Self::new(status, Body::Full(Some(body.into())));
        response.0.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }

    /// A response without content.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self::new(status, Body::Full(None))
    }

    /// A response with this body and no content headers.
    pub(crate) fn new(status: StatusCode, body: Body) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
        HttpResponse(response)
    }

    /// Adds a header. An invalid value is ignored.
    #[must_use]
    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers_mut().insert(name, value);
        }
        self
    }

    /// Compresses a body of JSON or text with gzip, unless it is small or a part. The body must not be a feed, whose
    /// chunks are sent at once.
    #[must_use]
    pub(crate) fn compressed(mut self) -> Self {
        let headers = self.0.headers();
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_text = kind.starts_with("application/json") || kind.starts_with("text/");
        if !is_text || headers.contains_key(CONTENT_ENCODING) || headers.contains_key(CONTENT_RANGE) {
            return self;
        }
        let body = match std::mem::replace(self.0.body_mut(), Body::Full(None)) {
            Body::Full(Some(bytes)) if bytes.len() >= COMPRESSED_BYTES_MIN => {
                let mut encoder = gzip_encoder();
                match encoder.write_all(&bytes).and_then(|()| encoder.finish()) {
                    Ok(compressed) => Ok(Body::Full(Some(compressed.into()))),
                    Err(_) => Err(Body::Full(Some(bytes))),
                }
            }
            Body::Chunks { from, length: None } => Ok(Body::Compressed { from, encoder: Some(gzip_encoder()) }),
            body => Err(body),
        };
        let is_compressed = body.is_ok();
        *self.0.body_mut() = body.unwrap_or_else(|unchanged| unchanged);
        if is_compressed {
            self.0.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        self.0.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
        self
    }

    /// Attaches a value that is not sent.
    #[must_use]
    pub(super) fn extended<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.0.extensions_mut().insert(value);
        self
    }

    /// The attached value of type `T`.
    pub(super) fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.extensions().get()
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        self.0
    }
}

impl From<Failure> for HttpResponse {
    fn from(failure: Failure) -> Self {
        let response = HttpResponse::json(failure.status(), &failure.body())
            .unwrap_or_else(|_| HttpResponse::empty(StatusCode::INTERNAL_SERVER_ERROR));
        match failure.header() {
            Some((name, value)) => response.with(name.clone(), value),
            None => response,
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Body::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Chunks { from, .. } => from.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
            Body::Compressed { from, encoder } => poll_compressed(from, encoder, context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Chunks { length: Some(length), .. } => SizeHint::with_exact(*length),
            Body::Chunks { length: None, .. } | Body::Compressed { .. } => SizeHint::new(),
        }
    }
}

/// Compresses chunks until there is output, or to the end.
fn poll_compressed(
    from: &mut mpsc::Receiver<std::io::Result<Bytes>>,
    encoder: &mut Option<GzEncoder<Vec<u8>>>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
    loop {
        let Some(mut running) = encoder.take() else { return Poll::Ready(None) };
        let output = match from.poll_recv(context) {
            Poll::Pending => {
                *encoder = Some(running);
                return Poll::Pending;
            }
            Poll::Ready(None) => running.finish(),
            Poll::Ready(Some(chunk)) => chunk.and_then(|chunk| running.write_all(&chunk)).map(|()| {
                let output = std::mem::take(running.get_mut());
                *encoder = Some(running);
                output
            }),
        };
        match output {
            Ok(output) if output.is_empty() => {}
            output => return Poll::Ready(Some(output.map(|output| Frame::data(output.into())))),
        }
    }
}
