//! The bridge between a body that arrives and a library that reads.

use std::io::{self, Read};
use std::iter;

use bytes::Bytes;
use tokio::sync::mpsc;

type Piece = io::Result<Bytes>;

/// Reads what arrives, piece by piece; each is waited for when it is asked for.
pub(crate) struct Arriving<I> {
    pieces: I,
    piece: Bytes,
}

impl<I: Iterator<Item = Piece>> Arriving<I> {
    pub(crate) fn of(pieces: I) -> Self {
        Arriving { pieces, piece: Bytes::new() }
    }
}

/// A reader of what is sent on a channel, and what to send it: pieces, and at last their end by dropping it.
pub(crate) fn arriving_on_channel() -> (mpsc::Sender<Piece>, Arriving<impl Iterator<Item = Piece>>) {
    let (sender, mut from) = mpsc::channel(4);
    (sender, Arriving::of(iter::from_fn(move || from.blocking_recv())))
}

impl<I: Iterator<Item = Piece>> Read for Arriving<I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.next() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
