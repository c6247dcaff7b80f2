//! The connection to the client of a live query: server-sent events or a WebSocket.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::message::WatchMessage;

/// The connection to the client of a live query.
pub(super) enum Transport {
    Events(mpsc::Sender<std::io::Result<Bytes>>),
    /// Batches of messages; an empty batch is a heartbeat.
    Socket(mpsc::Sender<Vec<WatchMessage>>),
}

/// The client disconnected, or stopped reading for longer than the stall timeout.
#[derive(Debug)]
pub(super) struct ClientGone;

impl Transport {
    /// Sends a batch of messages; waits for a slow client up to the stall timeout.
    pub(super) async fn send(&self, messages: Vec<WatchMessage>, stall_timeout: Duration) -> Result<(), ClientGone> {
        let is_sent = match self {
            Transport::Events(sender) => {
                let mut text = Vec::new();
                messages.iter().for_each(|message| message.write_event(&mut text));
                timeout(stall_timeout, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok())
            }
            Transport::Socket(sender) => {
                timeout(stall_timeout, sender.send(messages)).await.is_ok_and(|sent| sent.is_ok())
            }
        };
        if is_sent { Ok(()) } else { Err(ClientGone) }
    }

    /// Sends a heartbeat.
    pub(super) async fn send_heartbeat(&self, stall_timeout: Duration) -> Result<(), ClientGone> {
        match self {
            Transport::Events(sender) => {
                let heartbeat = sender.send(Ok(Bytes::from_static(b": beat\n\n")));
                timeout(stall_timeout, heartbeat).await.map_err(|_| ClientGone)?.map_err(|_| ClientGone)
            }
            Transport::Socket(_) => self.send(Vec::new(), stall_timeout).await,
        }
    }

    /// Waits until the client disconnects.
    pub(super) async fn closed(&self) {
        match self {
            Transport::Events(sender) => sender.closed().await,
            Transport::Socket(sender) => sender.closed().await,
        }
    }
}
