//! HTTP responses and their bodies.

use std::io::Write;

use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue, VARY};
use hyper::{Response, StatusCode};
use serde::Serialize;
use stemmadb_http::foundation::{Body, gzip_encoder};

use crate::error::{Failure, Result};

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse(Response<Body>);

/// The smallest body that is compressed, in bytes.
const COMPRESSED_BYTES_MIN: usize = 1024;

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

    /// The status.
    pub(crate) fn status(&self) -> StatusCode {
        self.0.status()
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
