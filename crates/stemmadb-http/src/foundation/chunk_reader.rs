//! An adapter from a stream of chunks to [`std::io::Read`].

use std::io::{self, Read};
use std::iter;

use bytes::Bytes;
use tokio::sync::mpsc;

type Chunk = io::Result<Bytes>;

/// A reader over chunks. It waits for the next chunk only when the previous one is used up.
pub struct ChunkReader<I> {
    chunks: I,
    chunk: Bytes,
}

impl<I: Iterator<Item = Chunk>> ChunkReader<I> {
    pub fn new(chunks: I) -> Self {
        ChunkReader { chunks, chunk: Bytes::new() }
    }
}

/// Creates a channel of chunks and a reader of it. Dropping the sender ends the content.
pub fn chunk_channel() -> (mpsc::Sender<Chunk>, ChunkReader<impl Iterator<Item = Chunk>>) {
    let (sender, mut from) = mpsc::channel(4);
    (sender, ChunkReader::new(iter::from_fn(move || from.blocking_recv())))
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
