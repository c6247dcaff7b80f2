//! How the bytes of a connection reach the server: as they are, or in the messages of a WebSocket.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;

use crate::byte_stream::ByteStream;
use crate::options::ClientOptions;
use crate::url::Address;
use crate::websocket::WebSocket;

/// A connected byte stream to a server.
pub(crate) struct Transport {
    stream: ByteStream,
    websocket: Option<Box<WebSocket>>,
}

impl Transport {
    /// Connects to a server.
    pub(crate) fn connect(
        address: &Address,
        options: &ClientOptions,
        tls: Option<&Arc<ClientConfig>>,
        deadline: Instant,
    ) -> io::Result<Self> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut stream = ByteStream::connect(address, options, tls, left)?;
        stream.set_write_timeout(options.timeout)?;
        let websocket = match address {
            Address::WebSocket { host, port, path, .. } => {
                Some(Box::new(WebSocket::open(&mut stream, host, *port, path, deadline)?))
            }
            Address::Tcp { .. } | Address::Unix(_) => None,
        };
        Ok(Transport { stream, websocket })
    }

    /// Returns a function that closes the connection from another thread.
    pub(crate) fn closer(&self) -> io::Result<impl Fn() + Send + Sync + 'static> {
        self.stream.closer()
    }

    /// Sends all bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.websocket {
            None => self.stream.write(bytes),
            Some(websocket) => websocket.write(&mut self.stream, bytes),
        }
    }

    /// Reads bytes; 0 at the end.
    ///
    /// # Errors
    /// `TimedOut` at the deadline.
    pub(crate) fn read(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        match &mut self.websocket {
            None => self.stream.read(buffer, deadline),
            Some(websocket) => websocket.read(&mut self.stream, buffer, deadline),
        }
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Some(websocket) = &mut self.websocket {
            websocket.close(&mut self.stream);
        }
    }
}
