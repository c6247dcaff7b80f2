//! A proxy between a client and an S3 server that counts requests and does some of them wrong.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answers 200 without passing it on.
    Swallow,
    /// Passes it on, and closes the connection instead of answering.
    LoseAnswer,
    /// Passes it on, and answers after this time.
    Late(Duration),
    /// Passes it on, and closes the connection within the body of the answer.
    Truncate,
}

/// Which requests are done wrong: those of a method whose path contains a text, this many of them.
pub(crate) struct Rule {
    pub method: &'static str,
    pub path: &'static str,
    pub fault: Fault,
    pub count: usize,
}

#[derive(Default)]
struct State {
    requests: Vec<String>,
    rules: Vec<Rule>,
    /// How many more requests are passed on before the connection is lost for good.
    passed_count: Option<usize>,
}

/// A running proxy. Its threads end with the process.
pub(crate) struct Proxy {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub(crate) fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(client, server_port, &state));
            }
        });
        Proxy { port, state }
    }

    /// Requests so far, as `METHOD PATH`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// From now on, does `count` such requests wrong.
    pub(crate) fn add(&self, method: &'static str, path: &'static str, fault: Fault, count: usize) {
        self.state.lock().unwrap().rules.push(Rule { method, path, fault, count });
    }

    /// Passes on `count` more requests, and then none: every connection is closed.
    pub(crate) fn fail_after(&self, count: usize) {
        self.state.lock().unwrap().passed_count = Some(count);
    }

    /// Does everything right again.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.rules.clear();
        state.passed_count = None;
    }
}

fn serve(client: TcpStream, server_port: u16, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut client = client;
    loop {
        let Some(request) = Message::read(&mut reader, false)? else { return Ok(()) };
        let fault = {
            let mut state = state.lock().unwrap();
            let line = request.first_line.rsplit_once(' ').map_or("", |(line, _)| line).to_owned();
            let (method, path) = line.split_once(' ').unwrap_or_default();
            let is_meant = |rule: &&mut Rule| rule.count > 0 && rule.method == method && path.contains(rule.path);
            let fault = state.rules.iter_mut().find(is_meant).map(|rule| {
                rule.count -= 1;
                rule.fault
            });
            state.requests.push(line.clone());
            match &mut state.passed_count {
                Some(0) => return client.shutdown(Shutdown::Both),
                Some(count) => *count -= 1,
                None => {}
            }
            fault
        };
        if fault == Some(Fault::Swallow) {
            client.write_all(b"HTTP/1.1 200 OK\r\nETag: \"0\"\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        }
        let mut server = TcpStream::connect(("127.0.0.1", server_port))?;
        server.write_all(&request.bytes)?;
        let is_head = request.first_line.starts_with("HEAD");
        let Some(answer) = Message::read(&mut BufReader::new(server), is_head)? else { return Ok(()) };
        match fault {
            Some(Fault::LoseAnswer) => return client.shutdown(Shutdown::Both),
            Some(Fault::Truncate) => {
                client.write_all(&answer.bytes[..answer.bytes.len() - answer.body_length / 2])?;
                return client.shutdown(Shutdown::Both);
            }
            Some(Fault::Late(delay)) => std::thread::sleep(delay),
            _ => {}
        }
        client.write_all(&answer.bytes)?;
    }
}

/// A request or an answer.
struct Message {
    first_line: String,
    /// Everything, as it was received.
    bytes: Vec<u8>,
    body_length: usize,
}

impl Message {
    /// Reads a message; `None` at the end of the connection. The answer to HEAD has no body.
    fn read(reader: &mut impl BufRead, is_head: bool) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let (mut body_length, mut is_chunked) = (0, false);
        let mut first_line = String::new();
        loop {
            let start = bytes.len();
            if reader.read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            let line = String::from_utf8_lossy(&bytes[start..]).trim_end().to_owned();
            if first_line.is_empty() {
                first_line.clone_from(&line);
            }
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match &*name.to_ascii_lowercase() {
                "content-length" => body_length = value.trim().parse().unwrap_or(0),
                "transfer-encoding" => is_chunked = true,
                _ => {}
            }
        }
        if is_head {
            body_length = 0;
        } else if is_chunked {
            body_length = read_chunks(reader, &mut bytes)?;
        } else {
            reader.take(body_length as u64).read_to_end(&mut bytes)?;
        }
        Ok(Some(Message { first_line, bytes, body_length }))
    }
}

fn read_chunks(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let body_start = bytes.len();
    loop {
        let start = bytes.len();
        reader.read_until(b'\n', bytes)?;
        let line = String::from_utf8_lossy(&bytes[start..]).trim_end().to_owned();
        let length = usize::from_str_radix(&line, 16).map_err(io::Error::other)?;
        reader.take(length as u64 + 2).read_to_end(bytes)?;
        if length == 0 {
            return Ok(bytes.len() - body_start);
        }
    }
}
