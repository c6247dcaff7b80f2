//! WebSockets (RFC 6455): the handshake, and a bridge between a WebSocket's messages and a byte stream.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
#[cfg(unix)]
pub(crate) use bridge::bridge;
use hyper::StatusCode;
use hyper::header::{CONNECTION, HeaderName, UPGRADE};
use hyper::upgrade::OnUpgrade;
use sha1::{Digest, Sha1};

use crate::app::Call;
use crate::auth::check_page;
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// The GUID that RFC 6455 appends to the client's key to compute `Sec-WebSocket-Accept`.
const ACCEPT_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Whether the client requests a WebSocket.
pub(crate) fn is_requested(call: &Call) -> bool {
    call.header("upgrade").is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// Accepts the handshake: returns the response and the pending upgrade of the connection.
///
/// # Errors
/// - 400 if the handshake is invalid.
/// - 403 if a page of another origin requests it: browsers let any page open a WebSocket to any server, and send that
///   server's cookies and credentials.
pub(crate) fn accept(call: &mut Call) -> Result<(HttpResponse, OnUpgrade)> {
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

#[cfg(unix)]
mod bridge {
    use std::io;
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::stream::{SplitSink, SplitStream};
    use futures_util::{SinkExt, StreamExt};
    use hyper::upgrade::{OnUpgrade, Upgraded};
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;
    use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
    use tokio::time::timeout;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

    use crate::connections::next_chunk;

    /// The longest message that a client may send.
    const MESSAGE_BYTES_MAX: usize = 256 << 10;

    /// The longest message that is sent.
    const CHUNK_BYTES: usize = 32 << 10;

    /// The buffer for what the client sends.
    const READ_BUFFER_BYTES: usize = 16 << 10;

    /// How long the other direction may go on after one has ended.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

    /// How long a client may take to answer the close frame. Idle clients don't read it.
    const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

    type Socket = WebSocketStream<TokioIo<Upgraded>>;

    /// Carries the bytes of binary messages to the stream that `open` returns, and its bytes in binary messages to the
    /// client, until either side closes. The messages' boundaries have no meaning. Each direction holds one message: a
    /// side that does not read stops the other. `stall_timeout` is how long the client may take for the handshake and
    /// for each message.
    pub(crate) async fn bridge(
        upgrade: OnUpgrade,
        open: impl FnOnce() -> io::Result<UnixStream>,
        stall_timeout: Duration,
    ) {
        let Ok(Ok(upgraded)) = timeout(stall_timeout, upgrade).await else { return };
        let Ok(stream) = open() else { return };
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(MESSAGE_BYTES_MAX);
        config.max_frame_size = Some(MESSAGE_BYTES_MAX);
        config.read_buffer_size = READ_BUFFER_BYTES;
        config.write_buffer_size = 0;
        let socket = Socket::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let ((to_client, from_client), (from_stream, to_stream)) = (socket.split(), stream.into_split());
        let mut incoming = pin!(receive(from_client, to_stream));
        let mut outgoing = pin!(send(from_stream, to_client, stall_timeout));
        tokio::select! {
            () = &mut incoming => timeout(CLOSE_TIMEOUT, outgoing).await.ok(),
            () = &mut outgoing => timeout(ANSWER_TIMEOUT, incoming).await.ok(),
        };
    }

    async fn receive(mut from_client: SplitStream<Socket>, mut to_stream: OwnedWriteHalf) {
        while let Some(Ok(message)) = from_client.next().await {
            let is_carried = match message {
                Message::Binary(bytes) => to_stream.write_all(&bytes).await.is_ok(),
                Message::Text(_) => false,
                // The library answers pings and the close frame, after which the stream ends.
                _ => true,
            };
            if !is_carried {
                break;
            }
        }
        to_stream.shutdown().await.ok();
    }

    async fn send(from_stream: OwnedReadHalf, mut to_client: SplitSink<Socket, Message>, stall_timeout: Duration) {
        while let Some(chunk) = next_chunk(&from_stream, CHUNK_BYTES).await {
            match timeout(stall_timeout, to_client.send(Message::Binary(chunk.into()))).await {
                Ok(Ok(())) => {}
                _ => return,
            }
        }
        timeout(CLOSE_TIMEOUT, to_client.close()).await.ok();
    }
}
