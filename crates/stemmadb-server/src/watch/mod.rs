//! What changes in the answer to a query? A watch tells the answer, and then what each write changes in it, as server-sent events or over a
//! WebSocket.
//!
//! ```text
//! writer ─ library's watch ─ notice ─ live: what is new? ─ outlet ─ events, or a socket
//! ```
//!
//! Whoever waits holds no thread. Whoever reads slowly holds no more than a piece: what happens meanwhile is kept in the library's bounded
//! inbox, and beyond it looked up when there is room.

mod live;
mod message;
mod outlet;
mod request;
mod socket;
mod window;

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};
use tokio::sync::mpsc;

use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::{Answer, Body, Call};
use crate::server::Place;
use live::Live;
use outlet::Outlet;

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
    let place = call.state.watches.clone().try_acquire_owned();
    let too_many =
        |_| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "There are too many watches");
    let place = place.map_err(too_many)?;
    let patience = call.state.config.limits.stall_timeout;
    let (answer, outlet) = if socket::is_wanted(&call) {
        let (answer, upgrade) = socket::accept(&mut call)?;
        let (sender, from) = mpsc::channel(PIECES_AHEAD);
        let held = call.parts.extensions.get::<Arc<Place>>().cloned();
        tokio::spawn(async move {
            socket::serve(upgrade, from, patience).await;
            drop(held);
        });
        (answer, Outlet::Socket(sender))
    } else {
        let (sender, from) = mpsc::channel(PIECES_AHEAD);
        let answer = Answer::new(StatusCode::OK, Body::Pieces { from, length: None });
        (answer.with(CONTENT_TYPE, "text/event-stream").with(CACHE_CONTROL, "no-cache"), Outlet::Events(sender))
    };
    let standing = call.standing();
    let live = Live::new(call.state, served, call.user, request, outlet);
    tokio::spawn(async move {
        live.run(standing).await;
        drop(place);
    });
    Ok(answer)
}
