//! A WebSocket (RFC 6455) whose binary messages carry a byte stream. The messages' boundaries have no meaning.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha1::{Digest, Sha1};
use tungstenite::protocol::{Role, WebSocketConfig, WebSocketContext};
use tungstenite::{Bytes, Error, Message};

use crate::byte_stream::ByteStream;

/// The GUID that RFC 6455 appends to the client's key to compute `Sec-WebSocket-Accept`.
const ACCEPT_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The longest message that is sent; a server takes messages of 256 KiB.
const MESSAGE_BYTES: usize = 128 << 10;
/// The longest message that a server may send. It sends messages of 32 KiB.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The longest head of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The buffer for what the server sends.
const READ_BUFFER_BYTES: usize = 32 << 10;
/// How long sending the close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// The state of a WebSocket, above a byte stream.
pub(crate) struct WebSocket {
    context: WebSocketContext,
    /// The unread part of the last message.
    message: Bytes,
}

/// A stream whose reads end at a deadline.
struct WithDeadline<'a> {
    stream: &'a mut ByteStream,
    deadline: Instant,
}

impl Read for WithDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer, self.deadline)
    }
}

impl Write for WithDeadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WebSocket {
    /// Requests a WebSocket of an HTTP server.
    pub(crate) fn open(
        stream: &mut ByteStream,
        host: &str,
        port: u16,
        path: &str,
        deadline: Instant,
    ) -> io::Result<Self> {
        let key = BASE64_STANDARD.encode(uuid::Uuid::new_v4().as_bytes());
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        );
        stream.write(request.as_bytes())?;
        let (head, rest) = read_head(stream, deadline)?;
        check_head(&head, &key)?;
        let mut config = WebSocketConfig::default();
        config.read_buffer_size = READ_BUFFER_BYTES;
        config.write_buffer_size = 0;
        config.max_message_size = Some(MESSAGE_BYTES_MAX);
        config.max_frame_size = Some(MESSAGE_BYTES_MAX);
        let context = WebSocketContext::from_partially_read(rest, Role::Client, Some(config));
        Ok(WebSocket { context, message: Bytes::new() })
    }

    /// Sends all bytes.
    pub(crate) fn write(&mut self, stream: &mut ByteStream, bytes: &[u8]) -> io::Result<()> {
        // Writes have a timeout of their own.
        let mut stream = WithDeadline { stream, deadline: Instant::now() };
        for chunk in bytes.chunks(MESSAGE_BYTES) {
            let message = Message::Binary(Bytes::copy_from_slice(chunk));
            self.context.write(&mut stream, message).map_err(to_io_error)?;
        }
        self.context.flush(&mut stream).map_err(to_io_error)
    }

    /// Reads bytes; 0 at the end.
    ///
    /// # Errors
    /// `TimedOut` at the deadline, after which reading may go on.
    pub(crate) fn read(&mut self, stream: &mut ByteStream, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        let mut stream = WithDeadline { stream, deadline };
        while self.message.is_empty() {
            match self.context.read(&mut stream) {
                Ok(Message::Binary(bytes)) => self.message = bytes,
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => return Ok(0),
                Ok(_) => {}
                Err(error) => return Err(to_io_error(error)),
            }
        }
        let count = buffer.len().min(self.message.len());
        buffer[..count].copy_from_slice(&self.message.split_to(count));
        Ok(count)
    }

    /// Tells the server that the connection ends, unless it takes long.
    pub(crate) fn close(&mut self, stream: &mut ByteStream) {
        if self.context.can_write() && stream.set_write_timeout(CLOSE_TIMEOUT).is_ok() {
            self.context.close(&mut WithDeadline { stream, deadline: Instant::now() }, None).ok();
        }
    }
}

fn to_io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    }
}

/// Reads the head of a response. Returns it with the bytes that follow.
fn read_head(stream: &mut ByteStream, deadline: Instant) -> io::Result<(String, Vec<u8>)> {
    let mut received = Vec::new();
    loop {
        if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = received.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&received).into_owned(), rest));
        }
        if received.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head of the answer is too long"));
        }
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer, deadline)? {
            0 => return Err(io::ErrorKind::ConnectionReset.into()),
            count => received.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Checks that a response accepts a WebSocket that was requested with this key.
fn check_head(head: &str, key: &str) -> io::Result<()> {
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("101") {
        let message = format!(
            "the server does not open a WebSocket: {status}. It is no Stemma server, its setting wire.websocket is \
             false, or a proxy before it passes no WebSockets"
        );
        return Err(io::Error::other(message));
    }
    let expected = BASE64_STANDARD.encode(Sha1::new().chain_update(key).chain_update(ACCEPT_GUID).finalize());
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    match fields.any(|(name, value)| name.eq_ignore_ascii_case("sec-websocket-accept") && value.trim() == expected) {
        true => Ok(()),
        false => Err(io::Error::other("the server accepts another WebSocket than this one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_requested_websocket_is_accepted() {
        let head = |status: &str, accept: &str| format!("HTTP/1.1 {status}\r\nsec-websocket-ACCEPT: {accept}\r\n\r\n");
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        check_head(&head("101 Switching Protocols", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), key).unwrap();
        let refused = check_head(&head("404 Not Found", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), key).unwrap_err();
        assert!(refused.to_string().contains("404 Not Found"), "{refused}");
        assert!(check_head(&head("101 OK", "c3pPLMBiTxaQ9kYGzzhZRbK+xOo="), key).is_err());
        assert!(check_head("", key).is_err());
    }
}
