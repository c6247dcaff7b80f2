//! A lightweight HTTP client with one persistent connection and prebuilt requests, which leaves the processor to the
//! server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Endpoint;
use crate::Result;

/// Maximum wait for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A persistent connection.
pub(crate) struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// How the end of a response body is determined.
enum BodyFraming {
    Length(usize),
    Chunks,
}

/// Builds a request.
pub(crate) fn request(authorization: &str, method: &str, path: &str, body: Option<&str>) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n");
    if let Some(body) = body {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    head.push_str(body.unwrap_or_default());
    head.into_bytes()
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Connection { stream, bytes: Vec::new() })
    }

    /// Sends a request and reads its response.
    pub(crate) fn send(&mut self, request: &[u8]) -> Result<Response> {
        self.stream.write_all(request)?;
        self.read_response()
    }

    /// Pipelines two requests and reads both responses.
    pub(crate) fn send_pipelined(&mut self, first: &[u8], second: &[u8]) -> Result<[Response; 2]> {
        self.stream.write_all(&[first, second].concat())?;
        Ok([self.read_response()?, self.read_response()?])
    }

    /// Reads the next response; keeps bytes that follow it.
    fn read_response(&mut self) -> Result<Response> {
        let head_end = self.head_end()?;
        let head = std::str::from_utf8(&self.bytes[..head_end])?;
        let status = head.get(9..12).ok_or("a response without a status")?.parse()?;
        let (body, end) = match body_framing(head)? {
            BodyFraming::Length(length) => {
                let end = head_end + length;
                while self.bytes.len() < end {
                    self.read_more()?;
                }
                (self.bytes[head_end..end].to_vec(), end)
            }
            BodyFraming::Chunks => loop {
                if let Some((body, length)) = decode_chunks(&self.bytes[head_end..])? {
                    break (body, head_end + length);
                }
                self.read_more()?;
            },
        };
        self.bytes.drain(..end);
        Ok(Response { status, body })
    }

    /// Reads until the next response's head is complete; returns its end.
    fn head_end(&mut self) -> Result<usize> {
        loop {
            if let Some(at) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(at + 4);
            }
            self.read_more()?;
        }
    }

    /// Upgrades the connection to a WebSocket.
    pub(crate) fn upgrade_to_websocket(&mut self, endpoint: &Endpoint, path: &str) -> Result<()> {
        let authorization = &endpoint.authorization;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes())?;
        let head_end = self.head_end()?;
        if !self.bytes.starts_with(b"HTTP/1.1 101") {
            return Err(format!("no WebSocket: {}", String::from_utf8_lossy(&self.bytes)).into());
        }
        self.bytes.drain(..head_end);
        Ok(())
    }

    /// Reads the next text message of a WebSocket, skipping pings.
    pub(crate) fn next_message(&mut self) -> Result<Vec<u8>> {
        loop {
            let Some((opcode, start, end)) = frame(&self.bytes)? else {
                self.read_more()?;
                continue;
            };
            let message = self.bytes[start..end].to_vec();
            self.bytes.drain(..end);
            match opcode {
                TEXT => return Ok(message),
                CLOSE => return Err("the server closed the WebSocket".into()),
                _ => {}
            }
        }
    }

    /// Waits for a live query's message about this document, skipping others; returns its time of arrival.
    pub(crate) fn wait_for_change(&mut self, id: &str) -> Result<Instant> {
        loop {
            let message: serde_json::Value = serde_json::from_slice(&self.next_message()?)?;
            if message["type"] == "failure" {
                return Err(format!("the watch is over: {message}").into());
            }
            if message["id"] == id {
                return Ok(Instant::now());
            }
        }
    }

    fn read_more(&mut self) -> Result<()> {
        let mut more = [0; 64 << 10];
        match self.stream.read(&mut more)? {
            0 => Err("the server closed the connection".into()),
            count => {
                self.bytes.extend_from_slice(&more[..count]);
                Ok(())
            }
        }
    }
}

/// First bytes of final frames: text and close.
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

/// Parses a server's first frame: its first byte and its payload range; `None` if incomplete.
fn frame(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
    let [opcode, short, rest @ ..] = bytes else { return Ok(None) };
    let (start, length) = match short {
        0..=125 => (2, usize::from(*short)),
        126 if rest.len() >= 2 => (4, number(&rest[..2])),
        127 if rest.len() >= 8 => (10, number(&rest[..8])),
        126 | 127 => return Ok(None),
        _ => return Err("a server does not mask".into()),
    };
    Ok((bytes.len() >= start + length).then_some((*opcode, start, start + length)))
}

fn body_framing(head: &str) -> Result<BodyFraming> {
    for line in head.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(BodyFraming::Length(value.trim().parse()?));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(BodyFraming::Chunks);
        }
    }
    Ok(BodyFraming::Length(0))
}

/// Decodes a chunked body; returns it with its encoded length, or `None` if incomplete.
fn decode_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let (mut body, mut rest) = (Vec::new(), bytes);
    loop {
        let Some(line_end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line_end])?, 16)?;
        let chunk = &rest[line_end + 2..];
        if chunk.len() < length + 2 {
            return Ok(None);
        }
        rest = &chunk[length + 2..];
        if length == 0 {
            return Ok(Some((body, bytes.len() - rest.len())));
        }
        body.extend_from_slice(&chunk[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_decoded_once_complete() {
        let all = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        let decoded = |bytes: &[u8]| decode_chunks(bytes).unwrap();
        assert_eq!(decoded(all), Some((b"abc0123456789".to_vec(), all.len())));
        assert_eq!(decoded(&[&all[..], b"HTTP/1.1 200"].concat()), decoded(all));
        for end in 0..all.len() {
            assert_eq!(decoded(&all[..end]), None, "of the first {end} bytes");
        }
    }

    #[test]
    fn frames_are_decoded_once_complete() {
        let mut long = vec![TEXT, 126, 1, 0];
        long.extend([b'x'; 256]);
        for (bytes, found) in
            [(&b"\x81\x02hi\x81"[..], (TEXT, 2, 4)), (b"\x89\x00", (0x89, 2, 2)), (&long, (TEXT, 4, 260))]
        {
            assert_eq!(frame(bytes).unwrap(), Some(found));
            for end in 0..found.2 {
                assert_eq!(frame(&bytes[..end]).unwrap(), None, "of the first {end} bytes");
            }
        }
        assert!(frame(&[TEXT, 0x82, 0]).is_err());
    }

    #[test]
    fn body_framing_is_read_from_the_headers() {
        let head = |line: &str| format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        assert!(matches!(body_framing(&head("content-length: 12")).unwrap(), BodyFraming::Length(12)));
        assert!(matches!(body_framing(&head("Transfer-Encoding: chunked")).unwrap(), BodyFraming::Chunks));
        assert!(matches!(body_framing(&head("ETag: x")).unwrap(), BodyFraming::Length(0)));
    }
}
