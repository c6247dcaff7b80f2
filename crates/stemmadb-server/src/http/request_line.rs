//! A connection's stream that percent-encodes characters of a URL which the HTTP parser refuses, such as the quotes in
//! `curl '…?key="x"'`.
//!
//! Only the target of a request line is changed, and only if the line begins where a request is expected: at the start
//! of the connection, and after the body of the previous request. A request that arrives together with the end of the
//! previous one is not changed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream.
pub(crate) struct RequestLineStream<S> {
    stream: S,
    position: Position,
    /// Whether the next bytes begin a request.
    begins_request: Arc<AtomicBool>,
    /// Bytes that did not fit the reader's buffer.
    left: Vec<u8>,
}

/// Where in a request the next byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Start,
    Method,
    Target,
    AfterTarget,
}

impl<S> RequestLineStream<S> {
    /// Wraps a stream. A request line is expected whenever `begins_request` is true, which reading it resets.
    pub(crate) fn new(stream: S, begins_request: Arc<AtomicBool>) -> Self {
        RequestLineStream { stream, position: Position::AfterTarget, begins_request, left: Vec::new() }
    }
}

impl Position {
    /// The position after a byte.
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Position::Start, b'\r' | b'\n') => Position::Start,
            (Position::Start | Position::Method, b'A'..=b'Z') => Position::Method,
            (Position::Method, b' ') => Position::Target,
            (Position::Target, b' ' | b'\r' | b'\n') => Position::AfterTarget,
            (Position::Target, _) => Position::Target,
            _ => Position::AfterTarget,
        }
    }
}

/// The replacement of a character in the target, if the parser refuses it.
fn replacement(byte: u8) -> Option<&'static [u8]> {
    match byte {
        b'"' => Some(b"%22"),
        b'<' => Some(b"%3C"),
        b'>' => Some(b"%3E"),
        b'`' => Some(b"%60"),
        _ => None,
    }
}

/// Encodes the received bytes, beginning at `position`. Returns `None` if nothing changes.
fn encode(received: &[u8], position: &mut Position) -> Option<Vec<u8>> {
    let mut encoded: Option<Vec<u8>> = None;
    for (at, byte) in received.iter().enumerate() {
        let replaced = replacement(*byte).filter(|_| *position == Position::Target);
        match (&mut encoded, replaced) {
            (Some(encoded), replaced) => encoded.extend_from_slice(replaced.unwrap_or(&[*byte])),
            (None, Some(replaced)) => encoded = Some([&received[..at], replaced].concat()),
            (None, None) => {}
        }
        *position = position.after(*byte);
    }
    encoded
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestLineStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.left.is_empty() {
            let count = this.left.len().min(buffer.remaining());
            buffer.put_slice(&this.left[..count]);
            this.left.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let start = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if this.begins_request.swap(false, Ordering::SeqCst) {
            this.position = Position::Start;
        }
        if this.position != Position::AfterTarget
            && let Some(encoded) = encode(&buffer.filled()[start..], &mut this.position)
        {
            buffer.set_filled(start);
            let (fitting, left) = encoded.split_at(encoded.len().min(buffer.remaining()));
            buffer.put_slice(fitting);
            this.left = left.to_vec();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestLineStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_is_encoded() {
        for (received, expected) in [
            ("GET /db?key=\"<x>\" HTTP/1.1\r\nA: \"b\"\r\n", "GET /db?key=%22%3Cx%3E%22 HTTP/1.1\r\nA: \"b\"\r\n"),
            ("\r\nGET /`a` HTTP/1.1\r\n", "\r\nGET /%60a%60 HTTP/1.1\r\n"),
            ("GET /\"\r\n\"", "GET /%22\r\n\""),
            ("{\"a\": \"GET /\\\"\"}", "{\"a\": \"GET /\\\"\"}"),
            ("GET\"", "GET\""),
            ("GET / HTTP/1.1\r\nA: \"b\"\r\n", "GET / HTTP/1.1\r\nA: \"b\"\r\n"),
        ] {
            for cut in 0..received.len() {
                let mut position = Position::Start;
                let mut whole = Vec::new();
                for piece in [&received[..cut], &received[cut..]] {
                    whole.extend(encode(piece.as_bytes(), &mut position).unwrap_or_else(|| piece.as_bytes().to_vec()));
                }
                assert_eq!(String::from_utf8(whole).unwrap(), expected, "cut at {cut}");
            }
        }
    }
}
