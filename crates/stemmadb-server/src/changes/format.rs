//! The text of a feed in each of CouchDB's modes, and how it is sent.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use stemmadb::{Change, Document, Revision};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::request::FeedMode;
use crate::accounts::SessionCheck;
use crate::documents::DocumentPrinter;
use crate::error::{Failure, Result};
use crate::http::{Body, HttpResponse, write_string};

/// The size in bytes at which a batch of rows is complete.
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// The value of `pending` is exact up to this count.
pub(crate) const PENDING_COUNTED: u64 = 10_000;

/// CouchDB's limit of a feed without one.
const LIMIT_MAX: u64 = 1_000_000_000_000_000;

impl FeedMode {
    /// What is sent while there are no changes.
    pub(crate) fn heartbeat(self) -> &'static str {
        match self {
            FeedMode::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        }
    }

    /// The text after the last row.
    pub(crate) fn ending(self, last: &str, pending: u64) -> String {
        match self {
            FeedMode::Normal | FeedMode::Longpoll => format!("\n],\n\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
            FeedMode::Continuous => format!("{{\"last_seq\":\"{last}\",\"pending\":{pending}}}\n"),
            FeedMode::EventSource => String::new(),
        }
    }
}

/// Whether the row that has `index` rows before it shows its sequence. As in CouchDB, these are the rows at which the
/// number of rows left is a multiple of the interval.
pub(crate) fn shows_sequence(limit: u64, index: u64, interval: u64) -> bool {
    limit.min(LIMIT_MAX).saturating_sub(index).is_multiple_of(interval)
}

/// A row of a feed.
pub(crate) struct ChangeRow<'a> {
    pub(crate) feed: FeedMode,
    /// The number of rows before it.
    pub(crate) index: u64,
    /// The sequence that it shows.
    pub(crate) sequence: Option<&'a str>,
    /// The sequence that it has as an event.
    pub(crate) event_id: &'a str,
    pub(crate) change: &'a Change,
    pub(crate) leaves: &'a [Revision],
    pub(crate) document: Option<ChangeDocument<'a>>,
}

/// The document of a row.
pub(crate) enum ChangeDocument<'a> {
    Stored(DocumentPrinter<'a>, &'a Document),
    /// As another server has printed it.
    Printed(Vec<u8>),
}

impl ChangeRow<'_> {
    /// Appends the row. Blocks.
    ///
    /// # Errors
    /// If the document can't be read.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        match self.feed {
            FeedMode::EventSource => out.extend_from_slice(b"data: "),
            FeedMode::Normal | FeedMode::Longpoll if self.index > 0 => out.extend_from_slice(b",\n"),
            _ => {}
        }
        out.extend_from_slice(b"{\"seq\":");
        match self.sequence {
            Some(sequence) => write_string(out, sequence),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"id\":");
        write_string(out, self.change.id.as_str());
        out.extend_from_slice(b",\"changes\":[");
        for (at, leaf) in self.leaves.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b"{\"rev\":" } else { b",{\"rev\":" });
            write_string(out, &leaf.to_string());
            out.push(b'}');
        }
        out.push(b']');
        if self.change.deleted {
            out.extend_from_slice(b",\"deleted\":true");
        }
        if let Some(document) = &self.document {
            out.extend_from_slice(b",\"doc\":");
            match document {
                ChangeDocument::Stored(printer, document) => printer.print(document, out)?,
                ChangeDocument::Printed(text) => out.extend_from_slice(text),
            }
        }
        out.push(b'}');
        match self.feed {
            FeedMode::Continuous => out.push(b'\n'),
            FeedMode::EventSource => out.extend_from_slice(format!("\nid: {}\n\n", self.event_id).as_bytes()),
            FeedMode::Normal | FeedMode::Longpoll => {}
        }
        Ok(())
    }
}

/// The client of a feed that stays open.
pub(crate) struct FeedClient {
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    stall_timeout: Duration,
}

impl FeedClient {
    /// # Errors
    /// If the client has left, or takes nothing for too long.
    pub(crate) async fn send(&self, chunk: Bytes) -> Result<()> {
        match timeout(self.stall_timeout, self.sender.send(Ok(chunk))).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(client_gone()),
        }
    }

    /// Waits until the client has left; returns the error of its feed.
    pub(crate) async fn left(&self) -> Failure {
        self.sender.closed().await;
        client_gone()
    }
}

fn client_gone() -> Failure {
    Failure::internal("the client disconnected")
}

/// The response of a feed that stays open, which `run` sends to its client.
pub(crate) fn live_response<F>(
    feed: FeedMode,
    session_check: SessionCheck,
    stall_timeout: Duration,
    run: impl FnOnce(FeedClient) -> F,
) -> HttpResponse
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let content_type = if feed == FeedMode::EventSource { "text/event-stream" } else { "application/json" };
    let (sender, from) = mpsc::channel(4);
    let running = run(FeedClient { sender: sender.clone(), stall_timeout });
    tokio::spawn(async move {
        if let Err(failure) = session_check.during(running).await.flatten() {
            sender.try_send(Err(std::io::Error::other(failure.to_string()))).ok();
        }
    });
    HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }).with(CONTENT_TYPE, content_type)
}
