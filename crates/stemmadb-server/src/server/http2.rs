//! HTTP/2 over TLS, for clients that ask for it: many requests at a time on one connection. WebSockets need HTTP/1.1.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;

use super::serve;
use crate::app::ServerState;
use crate::connections::{Activity, ConnectionSlot};
use crate::http::{ClientBody, PeerAddress};

/// Requests that a connection may have under way.
const REQUESTS_MAX: u32 = 100;
/// A peer that is silent for so long is asked for a sign of life, and has as long to give it.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves a connection until its client closes it or leaves it idle, or, once the server stops, until its requests are
/// answered.
pub(super) async fn drive<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    slot: Arc<ConnectionSlot>,
    state: Arc<ServerState>,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = state.config.limits.clone();
    let activity = Arc::new(Activity::default());
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.stall_timeout));
    let of_requests = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        // HTTP/2 has the host in another place.
        let authority = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        if let Some(authority) = authority {
            request.headers_mut().entry(HOST).or_insert(authority);
        }
        request.extensions_mut().insert(PeerAddress(peer));
        request.extensions_mut().insert(slot.clone());
        serve(state.clone(), request.map(ClientBody::Incoming), Arc::default(), Some(of_requests.begin()))
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS_MAX)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(PING_INTERVAL))
        .keep_alive_timeout(PING_INTERVAL)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = std::pin::pin!(connection);
    // Errors of a connection concern only its client.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {}
        () = activity.idle_for(limits.head_timeout) => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await.ok();
}
