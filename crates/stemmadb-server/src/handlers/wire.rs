//! The route `_wire`: the wire protocol over a WebSocket.

#[cfg(unix)]
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hyper::StatusCode;

use crate::app::Call;
use crate::connections::ConnectionSlot;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, PeerAddress};
use crate::websocket;

/// `GET /_wire`
///
/// The messages are carried to and from a local socket, which is served like a Unix socket's connection: a connection
/// over a WebSocket has the rights, limits and threads of any other.
pub(crate) async fn connect(mut call: Call) -> Result<HttpResponse> {
    let state = call.state.clone();
    if cfg!(not(unix)) || state.wire.get().is_none() {
        return Err(Failure::new(
            StatusCode::NOT_IMPLEMENTED,
            "not_implemented",
            "The wire protocol is not served over WebSockets: see the setting wire.websocket",
        ));
    }
    if !websocket::is_requested(&call) {
        return Err(Failure::new(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_required",
            "This route is a WebSocket for clients of the wire protocol: connect to stemma+ws://",
        ));
    }
    let (answer, upgrade) = websocket::accept(&mut call)?;
    let peer = call.parts.extensions.get::<PeerAddress>();
    let peer = peer.map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |peer| peer.0);
    let slot = call.parts.extensions.get::<Arc<ConnectionSlot>>().cloned();
    #[cfg(unix)]
    tokio::spawn(async move {
        let open = || state.wire.get().map_or(Err(ErrorKind::NotConnected.into()), |open| open(peer));
        websocket::bridge(upgrade, open, state.config.limits.stall_timeout).await;
        drop(slot);
    });
    #[cfg(not(unix))]
    drop((upgrade, peer, slot));
    Ok(answer)
}
