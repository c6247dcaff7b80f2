//! What a client is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::{Failure, Result};

/// What a client is sent.
#[derive(Debug)]
pub(crate) struct Answer(Response<Body>);

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// Pieces, as they are made. An error cuts the connection, which is how a client learns that not all came.
    Pieces {
        /// Where they come from.
        from: mpsc::Receiver<std::io::Result<Bytes>>,
        /// How many bytes they are, if that is known.
        length: Option<u64>,
    },
}

impl Answer {
    /// A JSON answer.
    pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Result<Self> {
        let mut text = serde_json::to_vec(body).map_err(|error| Failure::internal(error.to_string()))?;
        text.push(b'\n');
        Ok(Self::text(status, "application/json", text))
    }

    /// A JSON answer with status 200.
    pub(crate) fn ok(body: &impl Serialize) -> Result<Self> {
        Self::json(StatusCode::OK, body)
    }

    /// `{"ok": true}`.
    pub(crate) fn done(status: StatusCode) -> Self {
        Self::text(status, "application/json", &b"{\"ok\":true}\n"[..])
    }

    /// An answer whose body is known.
    pub(crate) fn text(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut answer = Self::new(status, Body::Whole(Some(body.into())));
        answer.0.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        answer
    }

    /// An answer without content.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self::new(status, Body::Whole(None))
    }

    /// An answer with this body, and nothing said about it.
    pub(crate) fn new(status: StatusCode, body: Body) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("must-revalidate"));
        Answer(response)
    }

    /// The same with one more header. A value that can't be one is left out.
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

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        let answer = Answer::json(failure.status(), &failure.body())
            .unwrap_or_else(|_| Answer::empty(StatusCode::INTERNAL_SERVER_ERROR));
        match failure.header() {
            Some((name, value)) => answer.with(name.clone(), value),
            None => answer,
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
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Pieces { from, .. } => from.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Pieces { length: Some(length), .. } => SizeHint::with_exact(*length),
            Body::Pieces { length: None, .. } => SizeHint::new(),
        }
    }
}
