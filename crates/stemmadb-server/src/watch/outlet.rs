//! The way to a client: a stream of events, or a socket.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::message::Message;

/// The way to a client.
pub(super) enum Outlet {
    Events(mpsc::Sender<std::io::Result<Bytes>>),
    /// Messages that are sent together; none at all is a beat.
    Socket(mpsc::Sender<Vec<Message>>),
}

/// The client is gone, or stands still.
#[derive(Debug)]
pub(super) struct Gone;

impl Outlet {
    /// Sends messages. Waits for a client that is slow, but not for one that stands still.
    pub(super) async fn send(&self, messages: Vec<Message>, patience: Duration) -> Result<(), Gone> {
        let is_taken = match self {
            Outlet::Events(sender) => {
                let mut text = Vec::new();
                messages.iter().for_each(|message| message.write_event(&mut text));
                timeout(patience, sender.send(Ok(text.into()))).await.is_ok_and(|sent| sent.is_ok())
            }
            Outlet::Socket(sender) => timeout(patience, sender.send(messages)).await.is_ok_and(|sent| sent.is_ok()),
        };
        if is_taken { Ok(()) } else { Err(Gone) }
    }

    /// Shows that the watch lives.
    pub(super) async fn beat(&self, patience: Duration) -> Result<(), Gone> {
        match self {
            Outlet::Events(sender) => {
                let beat = sender.send(Ok(Bytes::from_static(b": beat\n\n")));
                timeout(patience, beat).await.map_err(|_| Gone)?.map_err(|_| Gone)
            }
            Outlet::Socket(_) => self.send(Vec::new(), patience).await,
        }
    }

    /// Waits until the client is gone.
    pub(super) async fn closed(&self) {
        match self {
            Outlet::Events(sender) => sender.closed().await,
            Outlet::Socket(sender) => sender.closed().await,
        }
    }
}
