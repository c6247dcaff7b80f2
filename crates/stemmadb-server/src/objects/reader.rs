//! Reading an object while it is received.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::runtime::Runtime;

/// Reads the bytes of an object. Each read may wait for the store.
pub(super) struct ObjectReader {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    received: Bytes,
    runtime: &'static Runtime,
}

impl ObjectReader {
    pub(super) fn new(stream: BoxStream<'static, object_store::Result<Bytes>>, runtime: &'static Runtime) -> Self {
        ObjectReader { stream, received: Bytes::new(), runtime }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.received.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                None => return Ok(0),
                Some(chunk) => self.received = chunk.map_err(io::Error::other)?,
            }
        }
        let count = buffer.len().min(self.received.len());
        self.received.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
