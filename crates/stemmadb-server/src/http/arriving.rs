//! The bridge between a body that arrives and a library that reads.

use std::io::Read;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Reads what arrives on a channel: the bridge between a body that arrives and a library that reads.
pub(crate) struct Arriving {
    from: mpsc::Receiver<Result<Bytes, std::io::Error>>,
    piece: Bytes,
}

impl Arriving {
    /// A reader, and what to send it: pieces, and at last their end by dropping it.
    pub(crate) fn new() -> (mpsc::Sender<Result<Bytes, std::io::Error>>, Self) {
        let (sender, from) = mpsc::channel(4);
        (sender, Arriving { from, piece: Bytes::new() })
    }
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
