//! WebSocket transport (RFC 6455): the handshake and the message loop.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures_util::{SinkExt, StreamExt};
use hyper::StatusCode;
use hyper::header::{CONNECTION, HeaderName, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sha1::{Digest, Sha1};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message as Frame, Utf8Bytes};

use super::message::WatchMessage;
use crate::app::Call;
use crate::auth::check_page;
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// The GUID that RFC 6455 appends to the client's key to compute `Sec-WebSocket-Accept`.
const ACCEPT_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The longest message that a client may send. Messages are read and ignored.
const CLIENT_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Whether the client requests a WebSocket.
pub(super) fn is_requested(call: &Call) -> bool {
    call.header("upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Accepts the handshake: returns the response and the pending upgrade of the connection.
///
/// # Errors
/// - 400 if the handshake is invalid.
/// - 403 if a page of another origin requests it: browsers let any page open a WebSocket to any server, and send that
///   server's cookies and credentials.
pub(super) fn accept(call: &mut Call) -> Result<(HttpResponse, OnUpgrade)> {
    check_page(&call.state.settings.config(), &call.parts, call.user.name.is_some())?;
    let invalid = || Failure::bad_request("The WebSocket handshake is invalid: version 13 is required");
    let is_upgrade = call
        .header("connection")
        .is_some_and(|tokens| tokens.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    let key =
        call.header("sec-websocket-key").filter(|key| BASE64_STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let key = key.filter(|_| is_upgrade && call.header("sec-websocket-version") == Some("13")).ok_or_else(invalid)?;
    let accept = BASE64_STANDARD.encode(Sha1::new().chain_update(key).chain_update(ACCEPT_GUID).finalize());
    let upgrade = call.parts.extensions.remove::<OnUpgrade>().ok_or_else(invalid)?;
    let answer = HttpResponse::empty(StatusCode::SWITCHING_PROTOCOLS)
        .with(UPGRADE, "websocket")
        .with(CONNECTION, "upgrade")
        .with(HeaderName::from_static("sec-websocket-accept"), &accept);
    Ok((answer, upgrade))
}

/// Sends messages until either side closes the connection.
pub(super) async fn serve(upgrade: OnUpgrade, mut from: mpsc::Receiver<Vec<WatchMessage>>, stall_timeout: Duration) {
    let Ok(Ok(upgraded)) = timeout(stall_timeout, upgrade).await else { return };
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(CLIENT_MESSAGE_BYTES_MAX);
    config.max_frame_size = Some(CLIENT_MESSAGE_BYTES_MAX);
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    loop {
        tokio::select! {
            messages = from.recv() => match messages {
                Some(messages) => match timeout(stall_timeout, send(&mut socket, messages)).await {
                    Ok(Ok(())) => {}
                    _ => return,
                },
                None => break,
            },
            // The library responds to pings; all other messages are ignored.
            received = socket.next() => match received {
                Some(Ok(frame)) if !frame.is_close() => {}
                _ => return,
            },
        }
    }
    let away = CloseFrame { code: CloseCode::Away, reason: Utf8Bytes::from_static("the live query ended") };
    timeout(stall_timeout, socket.close(Some(away))).await.ok();
}

async fn send(
    socket: &mut WebSocketStream<TokioIo<Upgraded>>,
    messages: Vec<WatchMessage>,
) -> std::result::Result<(), tokio_tungstenite::tungstenite::Error> {
    if messages.is_empty() {
        return socket.send(Frame::Ping(Bytes::new())).await;
    }
    for message in messages {
        socket.feed(Frame::Text(Utf8Bytes::try_from(message.json)?)).await?;
    }
    socket.flush().await
}
