//! Answers that are made piece by piece on the blocking pool, in bounded memory.
//!
//! What stays small is sent whole, with its length; and what fails before its first piece went out is a proper refusal. After that only
//! cutting the connection tells a client that not all came.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::answer::{Answer, Body};
use crate::error::{Failure, Result};

/// Pieces are about so large: answers below it are sent whole.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces made before the client has taken the first.
const PIECES_AHEAD: usize = 4;

/// Where an answer is written to. Writers push to [`Pieces::buffer`], and call [`Pieces::flush_if_full`] now and then.
pub(crate) struct Pieces {
    pub(crate) buffer: Vec<u8>,
    sender: Option<mpsc::Sender<std::io::Result<Bytes>>>,
    begun: Option<oneshot::Sender<Begun>>,
    patience: Duration,
}

enum Begun {
    Streaming(mpsc::Receiver<std::io::Result<Bytes>>),
    Done(Result<Vec<u8>>),
}

impl Pieces {
    /// Sends what was written, if it is enough for a piece. Waits for a client that is slow, but not for one that stands still.
    pub(crate) fn flush_if_full(&mut self) -> Result<()> {
        if self.buffer.len() < PIECE_BYTES { Ok(()) } else { self.flush() }
    }

    /// Sends what was written.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if let Some(begun) = self.begun.take() {
            let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
            self.sender = Some(sender);
            begun.send(Begun::Streaming(receiver)).map_err(|_| gone())?;
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        let sender = self.sender.as_ref().ok_or_else(gone)?;
        let sent = Handle::current().block_on(async { timeout(self.patience, sender.send(Ok(piece))).await });
        self.buffer.reserve(PIECE_BYTES + PIECE_BYTES / 4);
        sent.map_err(|_| gone())?.map_err(|_| gone())
    }

    /// Writes a JSON string.
    pub(crate) fn string(&mut self, text: &str) {
        write_string(&mut self.buffer, text);
    }

    fn finish(mut self, result: Result<()>) {
        match (self.begun.take(), result) {
            (Some(begun), result) => {
                // Whoever asked may be gone.
                begun.send(Begun::Done(result.map(|()| std::mem::take(&mut self.buffer)))).ok();
            }
            (None, Ok(())) => {
                self.flush().ok();
            }
            (None, Err(failure)) => {
                let error = std::io::Error::other(failure.to_string());
                if let Some(sender) = &self.sender {
                    // It must arrive: an answer that just ends would look whole.
                    let sent = async { timeout(self.patience, sender.send(Err(error))).await };
                    Handle::current().block_on(sent).ok();
                }
            }
        }
    }
}

fn gone() -> Failure {
    Failure::internal("the client is gone")
}

/// Appends `text` as a JSON string.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    // Writing to memory can't fail.
    serde_json::to_writer(out, text).ok();
}

/// An answer that `work` writes, on the blocking pool.
///
/// # Errors
/// Those of `work`, if it fails before the first piece is sent.
pub(crate) async fn streamed(
    status: StatusCode,
    content_type: &str,
    patience: Duration,
    work: impl FnOnce(&mut Pieces) -> Result<()> + Send + 'static,
) -> Result<Answer> {
    let (begun, beginning) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { buffer: Vec::with_capacity(1024), sender: None, begun: Some(begun), patience };
        let result = work(&mut pieces);
        pieces.finish(result);
    });
    let body = match beginning.await {
        Ok(Begun::Streaming(from)) => Body::Pieces { from, length: None },
        Ok(Begun::Done(result)) => Body::Whole(Some(result?.into())),
        Err(_) => return Err(Failure::internal("a handler failed")),
    };
    Ok(Answer::new(status, body).with(hyper::header::CONTENT_TYPE, content_type))
}
