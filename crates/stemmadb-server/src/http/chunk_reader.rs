//! The bridge between a body that arrives and a library that reads.

use std::io::{self, Read};
use std::iter;

use bytes::Bytes;
use tokio::sync::mpsc;

type Chunk = io::Result<Bytes>;

/// Reads what arrives, chunk by chunk; each is waited for when it is asked for.
pub(crate) struct ChunkReader<I> {
    chunks: I,
    chunk: Bytes,
}

impl<I: Iterator<Item = Chunk>> ChunkReader<I> {
    pub(crate) fn of(chunks: I) -> Self {
        ChunkReader { chunks, chunk: Bytes::new() }
    }
}

/// A reader of what is sent on a channel, and what to send it: chunks, and at last their end by dropping it.
pub(crate) fn chunk_channel() -> (mpsc::Sender<Chunk>, ChunkReader<impl Iterator<Item = Chunk>>) {
    let (sender, mut from) = mpsc::channel(4);
    (sender, ChunkReader::of(iter::from_fn(move || from.blocking_recv())))
}

impl<I: Iterator<Item = Chunk>> Read for ChunkReader<I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.chunks.next() {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.chunk.len());
        buffer[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}
