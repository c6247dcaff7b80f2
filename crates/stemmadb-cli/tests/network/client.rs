//! Minimal HTTP client that reports whether a failed request may have been executed.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// The administrator's password.
pub(crate) const PASSWORD: &str = "secret";

/// A client authenticated as the administrator. Connects on demand, and again after a failure.
pub(crate) struct Client {
    address: SocketAddr,
    timeout: Duration,
    stream: Option<BufReader<TcpStream>>,
}

/// An HTTP response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
}

impl Response {
    /// # Panics
    /// If it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.summary()))
    }

    pub(crate) fn summary(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(2000)]))
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Why a request has no response.
#[derive(Debug)]
#[expect(dead_code, reason = "the cause is printed when a test fails")]
pub(crate) enum RequestError {
    /// The connection failed: the request was not executed.
    NotSent(io::Error),
    /// The connection broke later: the request may have been executed.
    Unknown(io::Error),
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        // Far longer than a working server needs, even on an overloaded machine.
        Client { address, timeout: Duration::from_secs(300), stream: None }
    }

    /// Sets the timeout of each read and write.
    pub(crate) fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends a request, with a JSON body if one is given.
    pub(crate) fn request(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Response, RequestError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, body.map(|_| "application/json"), text.as_bytes())
    }

    /// Sends a request and returns the response.
    ///
    /// # Panics
    /// If the connection breaks.
    pub(crate) fn expect_response(&mut self, method: &str, path: &str, body: Option<&Value>) -> Response {
        self.request(method, path, body).unwrap_or_else(|broken| panic!("{method} {path}: {broken:?}"))
    }

    /// Sends a request and returns the JSON body of the response.
    ///
    /// # Panics
    /// If the request fails or the connection breaks.
    pub(crate) fn expect_success(&mut self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.expect_response(method, path, body);
        assert!(answer.is_success(), "{method} {path}: {}", answer.summary());
        answer.json()
    }

    /// Sends a request whose response may be endless, reads the response head, and disconnects.
    pub(crate) fn open_stream(self, method: &str, path: &str, body: Option<&Value>) -> io::Result<()> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(self.timeout))?;
        let mut stream = BufReader::new(stream);
        write_request(&mut stream, method, path, body.map(|_| "application/json"), text.as_bytes())?;
        let head = read_head(&mut stream)?;
        match head[0].contains(" 200 ") {
            true => Ok(()),
            false => Err(io::Error::other(format!("{method} {path}: {head:?}"))),
        }
    }

    /// Sends a request with a body of any content type.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: &[u8],
    ) -> Result<Response, RequestError> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, self.timeout).map_err(RequestError::NotSent)?;
            stream.set_nodelay(true).map_err(RequestError::NotSent)?;
            stream.set_read_timeout(Some(self.timeout)).map_err(RequestError::NotSent)?;
            stream.set_write_timeout(Some(self.timeout)).map_err(RequestError::NotSent)?;
            self.stream = Some(BufReader::new(stream));
        }
        let stream = self.stream.as_mut().expect("connected above");
        match exchange(stream, method, path, kind, body) {
            Ok((answer, keeps_alive)) => {
                if !keeps_alive {
                    self.stream = None;
                }
                Ok(answer)
            }
            Err(error) => {
                self.stream = None;
                Err(RequestError::Unknown(error))
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
) -> io::Result<(Response, bool)> {
    write_request(stream, method, path, kind, body)?;
    let head = read_head(stream)?;
    let status = head.first().and_then(|line| line.split(' ').nth(1)).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("not an HTTP response: {head:?}")))?;
    let bytes = if method == "HEAD" || status == 304 { Vec::new() } else { read_body(stream, &head)? };
    let keeps_alive = !header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok((Response { status, bytes }, keeps_alive))
}

/// Reads the lines of a request or response head, without the empty line after it.
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
    fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Reads a body with a content length or in chunks.
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
        let offset = body.len();
        body.resize(offset + length + 2, 0);
        stream.read_exact(&mut body[offset..])?;
        body.truncate(offset + length);
        if length == 0 {
            return Ok(body);
        }
    }
}

/// The query string that names a revision.
pub(crate) fn rev(revision: &str) -> String {
    format!("?rev={revision}")
}
