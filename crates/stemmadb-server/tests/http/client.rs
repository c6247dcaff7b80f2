//! A server of its own for each test, and a client as small as can be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb::Durability;
use stemmadb_server::script::Launch;
use stemmadb_server::{Administrator, Config, Server};
use tokio::runtime::Runtime;

/// A server in this process, stopped when it is dropped.
pub(crate) struct Started {
    runtime: Runtime,
    server: Option<Server>,
    address: SocketAddr,
    config: Config,
    _directory: tempfile::TempDir,
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header; nothing if it is not there.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Who asks.
pub(crate) const ADMIN: Option<(&str, &str)> = Some(("admin", "secret"));

impl Started {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    /// A server whose configuration is changed first.
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let worker = PathBuf::from(env!("CARGO_BIN_EXE_stemma-script-worker"));
        let config = change(Config {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
            durability: Durability::None,
            scripts: Some(Launch { program: worker, arguments: Vec::new() }),
            ..Config::new(directory.path())
        });
        let server = runtime.block_on(Server::start(config.clone())).unwrap();
        let address = server.address();
        Started { runtime, server: Some(server), address, config, _directory: directory }
    }

    /// Stops the server and starts another one in its place, with the same directory.
    pub(crate) fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
        let config = Config { address: self.address, ..self.config.clone() };
        self.server = Some(self.runtime.block_on(Server::start(config)).unwrap());
    }

    /// The address of a database, with credentials.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("http://admin:secret@{}/{database}", self.address)
    }

    /// Deletes what a path names, as the administrator.
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.ask_as(ADMIN, "DELETE", path, None)
    }

    /// Sends bytes as the administrator.
    pub(crate) fn send_as_admin(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let credentials = basic("admin", "secret");
        let mut all = vec![("Authorization", credentials.as_str())];
        all.extend_from_slice(headers);
        self.send(method, path, &all, body)
    }

    /// The administrator's password, if it was made up.
    pub(crate) fn generated_password(&self) -> Option<String> {
        self.server.as_ref()?.generated_password().map(str::to_owned)
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request with these headers; nothing is added but what HTTP needs.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: localhost\r\n");
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        // At once: a server that refuses by the head alone hangs up, and what comes after that would make it a broken connection.
        stream.write_all(&[format!("{head}\r\n").as_bytes(), body].concat()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end =
            bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: no head"));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, text: String::new() };
        let body = &bytes[end + 4..];
        let body = if answer.header("transfer-encoding") == Some("chunked") { unchunked(body) } else { body.to_vec() };
        answer.text = String::from_utf8_lossy(&body).into_owned();
        answer
    }

    /// What comes back for a request with so long a head.
    pub(crate) fn answer_to_a_head_of(&self, bytes: usize) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(bytes));
        self.answer_to(head.as_bytes())
    }

    /// Everything that comes back for these bytes until the server hangs up, which it may before it has read all of them.
    pub(crate) fn answer_to(&self, message: &[u8]) -> String {
        answer_to(self.address, message)
    }

    /// Asks as somebody, with JSON.
    pub(crate) fn ask_as(&self, user: Option<(&str, &str)>, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let credentials = user.map(|(name, password)| basic(name, password));
        let mut headers = Vec::new();
        if let Some(credentials) = &credentials {
            headers.push(("Authorization", credentials.as_str()));
        }
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        let text = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, &headers, text.as_bytes())
    }

    /// Asks as the administrator.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask_as(ADMIN, "GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask_as(ADMIN, "POST", path, Some(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Answer {
        self.ask_as(ADMIN, "PUT", path, Some(body))
    }

    /// A database with documents.
    pub(crate) fn database(&self, name: &str, docs: &[Value]) {
        assert_eq!(self.ask_as(ADMIN, "PUT", &format!("/{name}"), None).status, 201);
        if !docs.is_empty() {
            let written = self.post(&format!("/{name}/_bulk_docs"), &json!({ "docs": docs }));
            assert_eq!(written.status, 201, "{written:?}");
            assert!(written.json().as_array().unwrap().iter().all(|row| row["ok"] == true), "{}", written.text);
        }
    }

    /// Writes a design document, over the one that is there.
    pub(crate) fn design(&self, database: &str, name: &str, mut design: Value) {
        let path = format!("/{database}/_design/{name}");
        let known = self.get(&path);
        if known.status == 200 {
            design["_rev"] = known.json()["_rev"].clone();
        }
        let written = self.put(&path, &design);
        assert_eq!(written.status, 201, "{written:?}");
    }
}

/// Everything that comes back from an address for these bytes.
pub(crate) fn answer_to(address: SocketAddr, message: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(message).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn basic(name: &str, password: &str) -> String {
    use base64::Engine;
    format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(format!("{name}:{password}")))
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 2 + length + 2..];
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

/// `bytes` as gzip.
pub(crate) fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
