//! WebSockets (RFC 6455): the handshake, and the messages over one.

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

use super::message::Message;
use crate::app::Call;
use crate::auth::check_page;
use crate::error::{Failure, Result};
use crate::http::Answer;

/// What a server appends to a client's key, to show that it knows what it does.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The longest message of a client; none is expected.
const HEARD_BYTES_MAX: usize = 64 << 10;

/// Whether the client asks for a WebSocket.
pub(super) fn is_wanted(call: &Call) -> bool {
    call.header("upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// The answer that makes a WebSocket of the connection, and what gives it then.
///
/// # Errors
/// 400 if the handshake is none; 403 if a page of another site asks: browsers let every page open a socket to everywhere, with the cookies
/// and passwords of that place.
pub(super) fn accept(call: &mut Call) -> Result<(Answer, OnUpgrade)> {
    check_page(&call.state.settings.config(), &call.parts, call.user.name.is_some())?;
    let wrong = || Failure::bad_request("The WebSocket's handshake is not that of version 13");
    let is_upgrade = call
        .header("connection")
        .is_some_and(|tokens| tokens.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    let key =
        call.header("sec-websocket-key").filter(|key| BASE64_STANDARD.decode(key).is_ok_and(|key| key.len() == 16));
    let key = key.filter(|_| is_upgrade && call.header("sec-websocket-version") == Some("13")).ok_or_else(wrong)?;
    let proof = BASE64_STANDARD.encode(Sha1::new().chain_update(key).chain_update(MAGIC).finalize());
    let upgrade = call.parts.extensions.remove::<OnUpgrade>().ok_or_else(wrong)?;
    let answer = Answer::empty(StatusCode::SWITCHING_PROTOCOLS)
        .with(UPGRADE, "websocket")
        .with(CONNECTION, "upgrade")
        .with(HeaderName::from_static("sec-websocket-accept"), &proof);
    Ok((answer, upgrade))
}

/// Sends what comes until either side ends it.
pub(super) async fn serve(upgrade: OnUpgrade, mut from: mpsc::Receiver<Vec<Message>>, stall_timeout: Duration) {
    let Ok(Ok(upgraded)) = timeout(stall_timeout, upgrade).await else { return };
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(HEARD_BYTES_MAX);
    config.max_frame_size = Some(HEARD_BYTES_MAX);
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
            // Pings are answered by the library; there is nothing else to say.
            heard = socket.next() => match heard {
                Some(Ok(frame)) if !frame.is_close() => {}
                _ => return,
            },
        }
    }
    let away = CloseFrame { code: CloseCode::Away, reason: Utf8Bytes::from_static("the watch is over") };
    timeout(stall_timeout, socket.close(Some(away))).await.ok();
}

async fn send(
    socket: &mut WebSocketStream<TokioIo<Upgraded>>,
    messages: Vec<Message>,
) -> std::result::Result<(), tokio_tungstenite::tungstenite::Error> {
    if messages.is_empty() {
        return socket.send(Frame::Ping(Bytes::new())).await;
    }
    for message in messages {
        socket.feed(Frame::Text(Utf8Bytes::try_from(message.json)?)).await?;
    }
    socket.flush().await
}
