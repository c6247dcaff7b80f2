//! A client that costs little, so that the server has the processor: one connection that is kept, requests made beforehand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Site;
use crate::Result;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Where an answer's body ends.
enum Extent {
    Length(usize),
    Chunks,
}

/// A request, ready to be sent.
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
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, bytes: Vec::new() })
    }

    /// Sends a request and takes its answer.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Result<Answer> {
        self.stream.write_all(request)?;
        self.answer()
    }

    /// Sends two requests at once and takes their answers.
    pub(crate) fn ask_both(&mut self, first: &[u8], second: &[u8]) -> Result<[Answer; 2]> {
        self.stream.write_all(&[first, second].concat())?;
        Ok([self.answer()?, self.answer()?])
    }

    /// The next answer; what came after it is kept.
    fn answer(&mut self) -> Result<Answer> {
        let head_end = self.head_end()?;
        let head = std::str::from_utf8(&self.bytes[..head_end])?;
        let status = head.get(9..12).ok_or("an answer without a status")?.parse()?;
        let (body, end) = match extent(head)? {
            Extent::Length(length) => {
                let end = head_end + length;
                while self.bytes.len() < end {
                    self.read_more()?;
                }
                (self.bytes[head_end..end].to_vec(), end)
            }
            Extent::Chunks => loop {
                if let Some((body, length)) = joined(&self.bytes[head_end..])? {
                    break (body, head_end + length);
                }
                self.read_more()?;
            },
        };
        self.bytes.drain(..end);
        Ok(Answer { status, body })
    }

    /// Where the head of the next answer ends, once all of it is there.
    fn head_end(&mut self) -> Result<usize> {
        loop {
            if let Some(at) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(at + 4);
            }
            self.read_more()?;
        }
    }

    /// Asks for a WebSocket; from then on there are messages, and no requests.
    pub(crate) fn upgrade(&mut self, site: &Site, path: &str) -> Result<()> {
        let authorization = &site.authorization;
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

    /// The next message of a WebSocket, once it is there; pings are passed over.
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

    /// When a WebSocket that watches told of this document; what it tells of others before is passed over.
    pub(crate) fn hear_of(&mut self, id: &str) -> Result<Instant> {
        loop {
            let told: serde_json::Value = serde_json::from_slice(&self.next_message()?)?;
            if told["type"] == "failure" {
                return Err(format!("the watch is over: {told}").into());
            }
            if told["id"] == id {
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

/// What a frame's first byte says that it is: whole, and a text or the end.
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;

/// The first frame of a server: what it is, and where its content begins and ends; none if it is not all there yet.
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

fn extent(head: &str) -> Result<Extent> {
    for line in head.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            return Ok(Extent::Length(value.trim().parse()?));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(Extent::Chunks);
        }
    }
    Ok(Extent::Length(0))
}

/// The bytes of all chunks, and of how many bytes they are made; none if the last is not there yet.
fn joined(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
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
    fn chunks_are_joined_once_all_are_there() {
        let all = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        let joined_of = |bytes: &[u8]| joined(bytes).unwrap();
        assert_eq!(joined_of(all), Some((b"abc0123456789".to_vec(), all.len())));
        assert_eq!(joined_of(&[&all[..], b"HTTP/1.1 200"].concat()), joined_of(all));
        for end in 0..all.len() {
            assert_eq!(joined_of(&all[..end]), None, "of the first {end} bytes");
        }
    }

    #[test]
    fn frames_are_taken_once_all_of_one_is_there() {
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
    fn an_answers_extent_is_told_by_its_head() {
        let head = |line: &str| format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        assert!(matches!(extent(&head("content-length: 12")).unwrap(), Extent::Length(12)));
        assert!(matches!(extent(&head("Transfer-Encoding: chunked")).unwrap(), Extent::Chunks));
        assert!(matches!(extent(&head("ETag: x")).unwrap(), Extent::Length(0)));
    }
}
