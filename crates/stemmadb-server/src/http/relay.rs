//! Bodies and answers that are passed on between a client and another server, in bounded memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, SERVER, TRANSFER_ENCODING};
use hyper::{Method, Response};
use stemmadb_http::foundation::{Body, BodyTimeout, next_frame};
use tokio::sync::mpsc;

use super::blocking::server_runtime;
use super::response::HttpResponse;

/// The headers of an answer that belong to the connection, or are made here.
const KEPT_BACK: [HeaderName; 5] = [CONTENT_LENGTH, TRANSFER_ENCODING, DATE, SERVER, CONNECTION];

/// The chunks of a body that are read before the receiver has taken the first.
const CHUNKS_AHEAD: usize = 4;

/// A body that is read while it is sent. `held` is dropped at its end.
pub(crate) fn relayed_body<B>(
    mut body: B,
    length: Option<u64>,
    mut timeouts: BodyTimeout,
    held: impl Send + 'static,
) -> Body
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Display + Send,
{
    let (sender, from) = mpsc::channel(CHUNKS_AHEAD);
    server_runtime().spawn(async move {
        let _held = held;
        loop {
            let chunk = match next_frame(&mut body, &mut timeouts).await {
                Ok(None) => return,
                Ok(Some(chunk)) => Ok(chunk),
                Err(failure) => Err(std::io::Error::other(failure.to_string())),
            };
            let is_end = chunk.is_err();
            if sender.send(chunk).await.is_err() || is_end {
                return;
            }
        }
    });
    Body::Chunks { from, length }
}

/// A body that ends when a future does, such as a feed of another server when this one stops.
pub(crate) struct EndingBody<B> {
    body: B,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<B> EndingBody<B> {
    pub(crate) fn new(body: B, end: impl Future<Output = ()> + Send + 'static) -> Self {
        EndingBody { body, end: Box::pin(end) }
    }
}

impl<B: HttpBody + Unpin> HttpBody for EndingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut self.body).poll_frame(context),
        }
    }
}

/// The answer of another server as an answer of this one. `held` is dropped at its end.
pub(crate) fn relayed_answer<B>(
    method: &Method,
    answer: Response<B>,
    timeouts: BodyTimeout,
    held: impl Send + 'static,
) -> HttpResponse
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Display + Send,
{
    let (parts, body) = answer.into_parts();
    let length = body.size_hint().exact();
    let body = match length {
        Some(0) => Body::Full(None),
        _ => relayed_body(body, length, timeouts, held),
    };
    let mut response = HttpResponse::new(parts.status, body);
    for (name, value) in &parts.headers {
        if !KEPT_BACK.contains(name)
            && let Ok(value) = value.to_str()
        {
            response = response.with(name.clone(), value);
        }
    }
    match parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()) {
        Some(length) if *method == Method::HEAD => response.with(CONTENT_LENGTH, length),
        _ => response,
    }
}
