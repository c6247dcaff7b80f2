//! A client as small as can be, which tells what it does not know: whether a request whose connection broke was done.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// The administrator's password.
pub(crate) const PASSWORD: &str = "secret";

/// An administrator's connection, made when it is needed and again after it broke.
pub(crate) struct Client {
    address: SocketAddr,
    patience: Duration,
    stream: Option<BufReader<TcpStream>>,
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    /// # Panics
    /// If it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.shown()))
    }

    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(2000)]))
    }

    pub(crate) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why there is no answer.
#[derive(Debug)]
#[expect(dead_code, reason = "why it broke is read where a test fails")]
pub(crate) enum Broken {
    /// Nobody was reached: nothing was done.
    Unsent(io::Error),
    /// It may have been done.
    Unknown(io::Error),
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        // By far longer than a server that works needs, on a machine that has little time for it.
        Client { address, patience: Duration::from_secs(300), stream: None }
    }

    /// Waits at most so long for each piece of an answer.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Asks, with JSON if there is a body.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Broken> {
        let text = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, body.map(|_| "application/json"), text.as_bytes())
    }

    /// Asks; the answer is there.
    ///
    /// # Panics
    /// If the connection breaks.
    pub(crate) fn must(&mut self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.ask(method, path, body).unwrap_or_else(|broken| panic!("{method} {path}: {broken:?}"))
    }

    /// The JSON that a request is answered with, which must be done.
    ///
    /// # Panics
    /// If it is refused, or the connection breaks.
    pub(crate) fn good(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.must(method, path, body);
        assert!(answer.is_good(), "{method} {path}: {}", answer.shown());
        answer.json()
    }

    /// Asks for what may have no end, hears its beginning, and hangs up.
    pub(crate) fn hear(self, method: &str, path: &str, body: Option<&Value>) -> io::Result<()> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(self.patience))?;
        let mut stream = BufReader::new(stream);
        write_request(&mut stream, method, path, body.map(|_| "application/json"), text.as_bytes())?;
        let head = read_head(&mut stream)?;
        match head[0].contains(" 200 ") {
            true => Ok(()),
            false => Err(io::Error::other(format!("{method} {path}: {head:?}"))),
        }
    }

    /// Sends bytes.
    pub(crate) fn send(&mut self, method: &str, path: &str, kind: Option<&str>, body: &[u8]) -> Result<Answer, Broken> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, self.patience).map_err(Broken::Unsent)?;
            stream.set_nodelay(true).map_err(Broken::Unsent)?;
            stream.set_read_timeout(Some(self.patience)).map_err(Broken::Unsent)?;
            stream.set_write_timeout(Some(self.patience)).map_err(Broken::Unsent)?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().expect("it was made above");
        let answered = exchange(stream, method, path, kind, body);
        match answered {
            Ok((answer, goes_on)) => {
                if !goes_on {
                    self.stream = None;
                }
                Ok(answer)
            }
            Err(error) => {
                self.stream = None;
                Err(Broken::Unknown(error))
            }
        }
    }
}

fn write_request(
    stream: &mut BufReader<TcpStream>,
    method: &str,
    path: &str,
    kind: Option<&str>,
    body: &[u8],
) -> io::Result<()> {
    let credentials = BASE64_STANDARD.encode(format!("admin:{PASSWORD}"));
    let mut message = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n");
    if let Some(kind) = kind {
        message.push_str(&format!("Content-Type: {kind}\r\n"));
    }
    message.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.get_mut().write_all(&[message.as_bytes(), body].concat())
}

fn exchange(
    stream: &mut BufReader<TcpStream>,
    method: &str,
    path: &str,
    kind: Option<&str>,
    body: &[u8],
) -> io::Result<(Answer, bool)> {
    write_request(stream, method, path, kind, body)?;
    let head = read_head(stream)?;
    let status = head.first().and_then(|line| line.split(' ').nth(1)).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no answer of HTTP: {head:?}")))?;
    let bytes = if method == "HEAD" || status == 304 { Vec::new() } else { read_body(stream, &head)? };
    let goes_on = !header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok((Answer { status, bytes }, goes_on))
}

/// The lines of a head, without the empty one after it.
pub(crate) fn read_head(stream: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            return Ok(lines);
        }
        lines.push(line);
    }
}

/// The value of a header.
pub(crate) fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    let fields = head.iter().skip(1).filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// A body, by its length or in chunks.
pub(crate) fn read_body(stream: &mut impl BufRead, head: &[String]) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if !header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        let length = header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        body.resize(length, 0);
        stream.read_exact(&mut body)?;
        return Ok(body);
    }
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        let begun = body.len();
        body.resize(begun + length + 2, 0);
        stream.read_exact(&mut body[begun..])?;
        body.truncate(begun + length);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// A revision's place in a path's query.
pub(crate) fn rev(revision: &str) -> String {
    format!("?rev={revision}")
}
