//! Test support: a separate server per test, and a minimal HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb::Durability;
use stemmadb::log_storage::ClusterStore;
use stemmadb::testing::MemoryCluster;
use stemmadb_cassandra::{Cluster, ClusterOptions};
use stemmadb_server::script::WorkerCommand;
use stemmadb_server::{Administrator, Config, Limits, Server, ServerBuilder};
use tokio::runtime::Runtime;

/// A server in this process, stopped on drop.
pub(crate) struct TestServer {
    runtime: Runtime,
    server: Option<Server>,
    /// The other servers of its cluster, if the tests run in one: requests go to all in turn.
    others: Vec<TestServer>,
    turn: AtomicUsize,
    /// The cluster of all of them.
    cluster: Option<MemoryCluster>,
    address: SocketAddr,
    config: Config,
    _directory: tempfile::TempDir,
}

/// An HTTP response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header, or `None`.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// The administrator's credentials.
pub(crate) const ADMIN: Option<(&str, &str)> = Some(("admin", "secret"));

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(|config| config)
    }

    /// Starts a server with a modified configuration.
    pub(crate) fn with(change: impl FnOnce(Config) -> Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = change(Self::config(directory.path()));
        let Some(cluster) = cluster_of_all_tests() else { return Self::start(config, directory, None) };
        let start = |config: Config, directory| {
            let address = free_address();
            let member = cluster.join(&format!("http://{address}"));
            Self::start(Config { address, durability: Durability::Sync, ..config }, directory, Some(member))
        };
        let other = |_| {
            let directory = tempfile::tempdir().unwrap();
            start(Config { directory: directory.path().to_owned(), ..config.clone() }, directory)
        };
        let others: Vec<_> = (0..2).map(other).collect();
        let mut first = start(config.clone(), directory);
        until_known(&others.iter().chain([&first]).collect::<Vec<_>>());
        first.others = others;
        first.cluster = Some(cluster);
        first
    }

    /// Starts a server at an address, as a member of a cluster.
    pub(crate) fn in_cluster(address: SocketAddr, member: Arc<dyn ClusterStore>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let backups = Some(directory.path().join("backups"));
        let config = Config { address, backups, durability: Durability::Sync, ..Self::config(directory.path()) };
        Self::start(config, directory, Some(member))
    }

    fn config(directory: &Path) -> Config {
        let worker = PathBuf::from(env!("CARGO_BIN_EXE_stemma-script-worker"));
        Config {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
            durability: Durability::None,
            scripts: Some(WorkerCommand { program: worker, arguments: Vec::new() }),
            // In a cluster, logs are also read from where they are.
            limits: Limits { log_copies_bytes: Some(100_000), ..Limits::default() },
            ..Config::new(directory)
        }
    }

    fn start(config: Config, directory: tempfile::TempDir, cluster: Option<Arc<dyn ClusterStore>>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let builder = cluster.into_iter().fold(Server::builder(config.clone()), ServerBuilder::cluster);
        let server = runtime.block_on(builder.start()).unwrap();
        TestServer {
            runtime,
            address: server.address(),
            server: Some(server),
            others: Vec::new(),
            turn: AtomicUsize::default(),
            cluster: None,
            config,
            _directory: directory,
        }
    }

    /// A database of the server, as its program sees it.
    pub(crate) fn opened(&self, name: &str) -> stemmadb::Database {
        let server = self.server.as_ref().expect("the server runs");
        self.runtime.block_on(server.database(name)).unwrap()
    }

    /// Stops the server and starts another one with the same directory.
    pub(crate) fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
        let config = Config { address: self.address, ..self.config.clone() };
        let builder = match &self.cluster {
            Some(cluster) => Server::builder(config).cluster(cluster.join(&format!("http://{}", self.address))),
            None => Server::builder(config),
        };
        self.server = Some(self.runtime.block_on(builder.start()).unwrap());
    }

    /// The metrics of all servers.
    pub(crate) fn metrics(&self) -> String {
        (0..=self.others.len()).map(|_| self.get("/_metrics").text).collect()
    }

    /// Repeats a request until all servers answer it with this status: those of a cluster know changed accounts within
    /// a second.
    pub(crate) fn until_status(&self, status: u16, ask: impl Fn() -> Response) -> Response {
        let begun = Instant::now();
        loop {
            let answers: Vec<_> = (0..=self.others.len()).map(|_| ask()).collect();
            let wrong = answers.iter().find(|answer| answer.status != status);
            let is_late = self.others.is_empty() || begun.elapsed() > Duration::from_secs(60);
            match wrong {
                None => return answers.into_iter().next().unwrap(),
                Some(wrong) => assert!(!is_late, "{wrong:?} instead of {status}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The directory of the databases.
    pub(crate) fn directory(&self) -> &Path {
        &self.config.directory
    }

    /// The URL of a database, including credentials.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("http://admin:secret@{}/{database}", self.address)
    }

    /// Deletes the resource at a path, as the administrator.
    pub(crate) fn delete(&self, path: &str) -> Response {
        self.ask_as(ADMIN, "DELETE", path, None)
    }

    /// Sends a body as the administrator.
    pub(crate) fn send_as_admin(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let credentials = basic("admin", "secret");
        let mut all = vec![("Authorization", credentials.as_str())];
        all.extend_from_slice(headers);
        self.send(method, path, &all, body)
    }

    /// The administrator's password, if it was generated.
    pub(crate) fn generated_password(&self) -> Option<String> {
        self.server.as_ref()?.generated_password().map(str::to_owned)
    }

    /// The address at which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the wire protocol.
    pub(crate) fn wire_address(&self) -> SocketAddr {
        self.server.as_ref().and_then(Server::wire_address).expect("the test's configuration has one")
    }

    /// Sends a request with these headers and only the fields that HTTP requires in addition.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % (self.others.len() + 1);
        let address = self.others.get(turn).map_or(self.address, TestServer::address);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: localhost\r\n");
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        // Sent in a single write: a server that refuses the request after the head closes the connection, and a later
        // write would fail.
        stream.write_all(&[format!("{head}\r\n").as_bytes(), body].concat()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end =
            bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: no head"));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut answer = Response { status: head[9..12].parse().unwrap(), head, text: String::new() };
        let body = &bytes[end + 4..];
        let body = if answer.header("transfer-encoding") == Some("chunked") { unchunked(body) } else { body.to_vec() };
        answer.text = String::from_utf8_lossy(&body).into_owned();
        answer
    }

    /// The response to a request whose head has this many bytes.
    pub(crate) fn response_to_head_of(&self, bytes: usize) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(bytes));
        self.raw_response(head.as_bytes())
    }

    /// Everything received for these bytes until the server closes the connection, possibly before it has read all of
    /// them.
    pub(crate) fn raw_response(&self, message: &[u8]) -> String {
        raw_response(self.address, message)
    }

    /// What is received for these bytes until it ends with `end`.
    pub(crate) fn first_bytes(&self, message: &[u8], end: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(message).unwrap();
        let mut received = Vec::new();
        let mut byte = [0];
        while !received.ends_with(end) && stream.read(&mut byte).unwrap() == 1 {
            received.push(byte[0]);
        }
        String::from_utf8_lossy(&received).into_owned()
    }

    /// Sends a JSON request with a user's credentials.
    pub(crate) fn ask_as(
        &self,
        user: Option<(&str, &str)>,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Response {
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

    /// Sends a GET request as the administrator.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.ask_as(ADMIN, "GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.ask_as(ADMIN, "POST", path, Some(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Response {
        self.ask_as(ADMIN, "PUT", path, Some(body))
    }

    /// Creates a database with documents.
    pub(crate) fn database(&self, name: &str, docs: &[Value]) {
        assert_eq!(self.ask_as(ADMIN, "PUT", &format!("/{name}"), None).status, 201);
        if !docs.is_empty() {
            let written = self.post(&format!("/{name}/_bulk_docs"), &json!({ "docs": docs }));
            assert_eq!(written.status, 201, "{written:?}");
            assert!(written.json().as_array().unwrap().iter().all(|row| row["ok"] == true), "{}", written.text);
        }
    }

    /// Writes a design document, replacing an existing one.
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

/// Everything received from an address for these bytes.
pub(crate) fn raw_response(address: SocketAddr, message: &[u8]) -> String {
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

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
    }
}

/// Compresses `bytes` with gzip.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A node of a Cassandra cluster, if there is one: the servers of these tests are members of it then. Otherwise, their
/// cluster is in memory.
pub(crate) fn cassandra() -> Option<String> {
    std::env::var("STEMMA_CASSANDRA").ok()
}

/// The cluster of the servers of all tests, if `STEMMA_TEST_CLUSTER` asks for one: `memory`, or `cassandra` for logs in
/// the cluster of `STEMMA_CASSANDRA`. Each test has three servers then, and its requests go to all of them in turn.
fn cluster_of_all_tests() -> Option<MemoryCluster> {
    let cluster = MemoryCluster::new(Duration::from_secs(10));
    match std::env::var("STEMMA_TEST_CLUSTER").ok()?.as_str() {
        "cassandra" => {
            let node = cassandra().expect("STEMMA_CASSANDRA names a node");
            static NODES: OnceLock<Cluster> = OnceLock::new();
            let nodes = NODES
                .get_or_init(|| Cluster::connect(ClusterOptions::new([node], "stemma_http_tests")).expect("a cluster"));
            let prefix = uuid();
            Some(cluster.logs_from(move |log| nodes.log(&format!("{prefix}/{log}"))))
        }
        _ => Some(cluster),
    }
}

pub(crate) fn uuid() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Waits until every server knows all of them.
pub(crate) fn until_known(servers: &[&TestServer]) {
    let knows = |server: &&TestServer| {
        let nodes = server.get("/_membership").json()["all_nodes"].clone();
        nodes.as_array().is_some_and(|nodes| nodes.len() == servers.len())
    };
    let begun = Instant::now();
    while !servers.iter().all(knows) {
        assert!(begun.elapsed() < Duration::from_secs(120), "the servers don't know each other");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}
