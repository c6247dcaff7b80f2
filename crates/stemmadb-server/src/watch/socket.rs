//! WebSocket transport: the message loop.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message as Frame, Utf8Bytes};

use super::message::WatchMessage;

/// The longest message that a client may send. Messages are read and ignored.
const CLIENT_MESSAGE_BYTES_MAX: usize = 64 << 10;

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
