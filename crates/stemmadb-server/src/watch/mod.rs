//! What changes in the answer to a query? A watch tells the answer, and then what each write changes in it, as server-sent events or over a
//! WebSocket.
//!
//! ```text
//! writer ─ library's watch ─ notice ─ session: what is new? ─ transport ─ events, or a socket
//! ```
//!
//! Whoever waits holds no thread. Whoever reads slowly holds no more than a piece: what happens meanwhile is kept in the library's bounded
//! inbox, and beyond it looked up when there is room.

mod message;
mod request;
mod session;
mod socket;
mod transport;
mod window;

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use tokio::sync::mpsc;

use crate::app::Call;
use crate::connections::ConnectionSlot;
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::{Answer, Body};
use session::WatchSession;
use transport::Transport;

pub(crate) use request::Request;

/// Watches at once, of all databases.
pub(crate) const WATCHES_MAX: usize = 4096;

/// Pieces made before the client has taken the first.
const PIECES_AHEAD: usize = 2;

/// Begins a watch: over a WebSocket, if that is what the client asks for.
///
/// # Errors
/// 503 if there are too many; for a socket, 400 if the handshake is none, 403 if a page of another site asks for it.
pub(crate) fn watch(mut call: Call, served: Arc<Served>, request: Request) -> Result<Answer> {
    let permit = call.state.watches.clone().try_acquire_owned();
    let too_many =
        |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "There are too many watches");
    let permit = permit.map_err(too_many)?;
    let stall_timeout = call.state.config.limits.stall_timeout;
    let (answer, transport) = if socket::is_wanted(&call) {
        let (answer, upgrade) = socket::accept(&mut call)?;
        let (sender, from) = mpsc::channel(PIECES_AHEAD);
        let held = call.parts.extensions.get::<Arc<ConnectionSlot>>().cloned();
        tokio::spawn(async move {
            socket::serve(upgrade, from, stall_timeout).await;
            drop(held);
        });
        (answer, Transport::Socket(sender))
    } else {
        let (sender, from) = mpsc::channel(PIECES_AHEAD);
        let answer = Answer::new(StatusCode::OK, Body::Pieces { from, length: None });
        (answer.with(CONTENT_TYPE, "text/event-stream").with(CACHE_CONTROL, "no-cache"), Transport::Events(sender))
    };
    let session_check = call.session_check();
    let session = WatchSession::new(call.state, served, call.user, request, transport);
    tokio::spawn(async move {
        session.run(session_check).await;
        drop(permit);
    });
    Ok(answer)
}
