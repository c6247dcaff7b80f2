//! Live queries (`_watch`): stream the result of a query and then its changes, or the changes at matching paths, as
//! server-sent events or over a WebSocket. Subscriptions to messages (`_subscribe`) are streamed in the same way.
//!
//! ```text
//! writer ─ stemmadb::Watch ─ notification ─ WatchSession: deltas ─ Transport ─ events or WebSocket
//! ```
//!
//! A waiting session occupies no thread. A slow client delays only its own session, which buffers a bounded number of
//! batches: further deltas accumulate in the library's bounded inbox, and if that overflows, the session reads the
//! changes since the last sequence that it sent.

mod live_result;
mod message;
mod paths;
mod request;
mod session;
mod socket;
mod topics;
mod transport;
mod virtual_session;
mod window;

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::app::Call;
use crate::connections::ConnectionSlot;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{Body, HttpResponse};
use crate::virtual_databases::OpenVirtual;
use crate::websocket;
use paths::PathSession;
use session::WatchSession;
use topics::TopicSession;
use transport::Transport;
use virtual_session::VirtualSession;

pub(crate) use live_result::{LiveResult, ResultChange};
pub(crate) use request::WatchRequest;
pub(crate) use topics::SubscribeRequest;

/// The number of batches that are buffered for a client.
const BATCHES_BUFFERED: usize = 2;

/// Starts a live query: over a WebSocket if the client requests an upgrade, else as server-sent events.
///
/// # Errors
/// - 503 if there are too many live queries.
/// - 400 if the WebSocket handshake is invalid.
/// - 403 if a page of another origin requests a WebSocket.
pub(crate) fn watch(mut call: Call, served: Arc<ServedDatabase>, request: WatchRequest) -> Result<HttpResponse> {
    let (answer, transport, permit) = open(&mut call)?;
    let session_check = call.session_check();
    let is_of_paths = !request.paths.is_empty();
    let session = WatchSession::new(call.state, served, call.user, request, transport);
    tokio::spawn(async move {
        match is_of_paths {
            true => PathSession::new(session).run(session_check).await,
            false => session.run(session_check).await,
        }
        drop(permit);
    });
    Ok(answer)
}

/// As [`watch`], for a virtual database.
///
/// # Errors
/// Those of [`watch`]; 501 for a request that only other databases answer.
pub(crate) fn watch_virtual(mut call: Call, open: Arc<OpenVirtual>, mut request: WatchRequest) -> Result<HttpResponse> {
    virtual_session::check(&request)?;
    if let Some(restriction) = &call.restriction {
        request.selector = restriction.selector().and(request.selector);
        // A session that is resumed reports documents that left without knowing whether the client had them.
        request.token = None;
    }
    let (answer, transport, permit) = self::open(&mut call)?;
    let session_check = call.session_check();
    let session = VirtualSession::new(call.state, open, call.user, request, transport);
    tokio::spawn(async move {
        session.run(session_check).await;
        drop(permit);
    });
    Ok(answer)
}

/// Starts a subscription to messages, which counts as a live query.
///
/// # Errors
/// Those of [`watch`]; 400 if a pattern is malformed.
pub(crate) fn subscribe(
    mut call: Call,
    served: Arc<ServedDatabase>,
    request: SubscribeRequest,
) -> Result<HttpResponse> {
    let subscription = served.database().subscribe_topic(&request.topics)?;
    let (answer, transport, permit) = open(&mut call)?;
    let session_check = call.session_check();
    let session = TopicSession::new(call.state, served, call.user, request, transport);
    tokio::spawn(async move {
        session.run(subscription, session_check).await;
        drop(permit);
    });
    Ok(answer)
}

/// Begins the response of a stream.
fn open(call: &mut Call) -> Result<(HttpResponse, Transport, OwnedSemaphorePermit)> {
    let permit = call.state.watches.clone().try_acquire_owned();
    let count_max = call.state.config.limits.watch_count;
    let too_many = || format!("There are {count_max} live queries already: end some, or raise limits.watch_count");
    let permit =
        permit.map_err(|_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", too_many()))?;
    let stall_timeout = call.state.config.limits.stall_timeout;
    if websocket::is_requested(call) {
        let (answer, upgrade) = websocket::accept(call)?;
        let (sender, from) = mpsc::channel(BATCHES_BUFFERED);
        let connection = call.parts.extensions.get::<Arc<ConnectionSlot>>().cloned();
        tokio::spawn(async move {
            socket::serve(upgrade, from, stall_timeout).await;
            drop(connection);
        });
        return Ok((answer, Transport::Socket(sender), permit));
    }
    let (sender, from) = mpsc::channel(BATCHES_BUFFERED);
    let answer = HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None });
    let answer = answer.with(CONTENT_TYPE, "text/event-stream").with(CACHE_CONTROL, "no-cache");
    Ok((answer, Transport::Events(sender), permit))
}
