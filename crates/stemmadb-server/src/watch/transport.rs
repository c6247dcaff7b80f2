//! The way to a client: a stream of events, or a socket.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::message::Message;

/// The way to a client.
pub(super) enum Transport {
    Events(mpsc::Sender<std::io::Result<Bytes>>),
    /// Messages that are sent together; none at all is a beat.
    Socket(mpsc::Sender<Vec<Message>>),
}

/// The client is gone, or stands still.
#[derive(Debug)]
pub(super) struct ClientGone;

impl Transport {
    /// Sends messages. Waits for a client that is slow, but not for one that stands still.
    pub(super) async fn send(&self, messages: Vec<Message>, stall_timeout: Duration) -> Result<(), ClientGone> {
        let is_taken = match self {
            Transport::Events(sender) => {
                let mut text = Vec::new();
                messages.iter().for_each(|message| message.write_event(&mut text));
                timeout(stall_timeout, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok())
            }
            Transport::Socket(sender) => {
                timeout(stall_timeout, sender.send(messages)).await.is_ok_and(|sent| sent.is_ok())
            }
        };
        if is_taken { Ok(()) } else { Err(ClientGone) }
    }

    /// Shows that the watch lives.
    pub(super) async fn beat(&self, stall_timeout: Duration) -> Result<(), ClientGone> {
        match self {
            Transport::Events(sender) => {
                let beat = sender.send(Ok(Bytes::from_static(b": beat\n\n")));
                timeout(stall_timeout, beat).await.map_err(|_| ClientGone)?.map_err(|_| ClientGone)
            }
            Transport::Socket(_) => self.send(Vec::new(), stall_timeout).await,
        }
    }

    /// Waits until the client is gone.
    pub(super) async fn closed(&self) {
        match self {
            Transport::Events(sender) => sender.closed().await,
            Transport::Socket(sender) => sender.closed().await,
        }
    }
}
