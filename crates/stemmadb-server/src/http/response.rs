//! HTTP responses and their bodies.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
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
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Chunks { length: Some(length), .. } => SizeHint::with_exact(*length),
            Body::Chunks { length: None, .. } => SizeHint::new(),
        }
    }
}
