//! How the bytes of a connection reach the server: as they are, in the messages of a WebSocket, or by QUIC.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::ClientConfig;
use stemmadb::Result;

use crate::answer_wait::Expected;
use crate::byte_stream::{ByteStream, tls_config};
use crate::options::{ClientOptions, TlsTrust};
#[cfg(all(unix, feature = "quic"))]
use crate::quic::QuicConnector;
use crate::url::Address;
use crate::websocket::WebSocket;

/// Opens connections to a server.
pub(crate) struct Connector {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    #[cfg(all(unix, feature = "quic"))]
    quic: Option<QuicConnector>,
}

impl Connector {
    /// # Errors
    /// `Invalid` if certificates can't be read.
    pub(crate) fn new(address: &Address, trust: &TlsTrust) -> Result<Self> {
        let tls = if address.is_encrypted() { Some(tls_config(trust)?) } else { None };
        #[cfg(all(unix, feature = "quic"))]
        let quic = match (address, &tls) {
            (Address::Quic { .. }, Some(tls)) => Some(QuicConnector::new(tls)?),
            _ => None,
        };
        Ok(Connector {
            address: address.clone(),
            tls,
            #[cfg(all(unix, feature = "quic"))]
            quic,
        })
    }

    fn connect_stream(&self, options: &ClientOptions, deadline: Instant) -> io::Result<ByteStream> {
        #[cfg(all(unix, feature = "quic"))]
        if let (Some(quic), Address::Quic { host, port }) = (&self.quic, &self.address) {
            return Ok(ByteStream::local(quic.open(host, *port, deadline)?, options));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        ByteStream::connect(&self.address, options, self.tls.as_ref(), left)
    }

    /// Opens a connection.
    pub(crate) fn connect(&self, options: &ClientOptions, deadline: Instant) -> io::Result<Transport> {
        let mut stream = self.connect_stream(options, deadline)?;
        stream.set_write_timeout(options.timeout)?;
        let websocket = match &self.address {
            Address::WebSocket { host, port, path, .. } => {
                Some(Box::new(WebSocket::open(&mut stream, host, *port, path, deadline)?))
            }
            Address::Tcp { .. } | Address::Unix(_) | Address::Quic { .. } => None,
        };
        Ok(Transport { stream, websocket })
    }
}

/// A connected byte stream to a server.
pub(crate) struct Transport {
    stream: ByteStream,
    websocket: Option<Box<WebSocket>>,
}

impl Transport {
    /// Returns a function that closes the connection from another thread.
    pub(crate) fn closer(&self) -> io::Result<impl Fn() + Send + Sync + 'static> {
        self.stream.closer()
    }

    /// Notes that a request of this kind was sent, whose answer comes next.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.stream.expect(expected);
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
