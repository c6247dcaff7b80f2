//! The HTTP client of object stores: the server's own, behind the interface of `object_store`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::{Client, Error as ClientError};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::http::Body;
use crate::outbound::Network;

/// A slower upload is given up, in bytes per second.
const UPLOAD_RATE_MIN: u64 = 32 << 10;

/// Hands out one client to everything that sends requests to a store.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: Client<Network, Body>,
    /// How long a response may take to begin, and to continue.
    stall_timeout: Duration,
}

impl Connector {
    pub(super) fn new(client: Client<Network, Body>, stall_timeout: Duration) -> Self {
        Connector { client, stall_timeout }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let limit = self.stall_timeout + Duration::from_secs(bytes.len() as u64 / UPLOAD_RATE_MIN);
        let request = Request::from_parts(parts, Body::Full(Some(bytes)));
        let answer = timeout(limit, self.client.request(request)).await.map_err(|_| too_slow(limit))?;
        let (parts, body) = answer.map_err(classified)?.into_parts();
        let body = StallLimited { body, limit: self.stall_timeout, sleep: Box::pin(sleep(self.stall_timeout)) };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

fn too_slow(limit: Duration) -> HttpError {
    let what = format!("no answer for {} seconds", limit.as_secs());
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(std::io::ErrorKind::TimedOut, what))
}

/// A request that was interrupted may have been carried out, so only those are repeated that may be.
fn classified(error: ClientError) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, error)
}

/// The body of a response, which fails if it makes no progress.
struct StallLimited {
    body: Incoming,
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl HttpBody for StallLimited {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let limit = self.limit;
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => {
                self.sleep.as_mut().reset(Instant::now() + limit);
                Poll::Ready(frame.map(|frame| frame.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))))
            }
            Poll::Pending => {
                let is_late = self.sleep.as_mut().poll(context).is_ready();
                if is_late { Poll::Ready(Some(Err(too_slow(limit)))) } else { Poll::Pending }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
