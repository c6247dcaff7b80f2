//! Requests to a whole server over an in-memory pipe: arbitrary bytes, and requests of known routes with arbitrary
//! parameters and bodies.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use stemmadb::Durability;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::config::{Administrator, Config, JwtAlgorithm, JwtKey, Replicator};
use crate::routes::{RouteDescription, route_descriptions};
use crate::script::WorkerCommand;
use crate::server::Server;

/// Key that signs the administrator's requests; constant, so that the corpus stays valid.
const KEY: &[u8] = b"a secret of at least thirty-two bytes";
/// After this many requests the server is replaced by a new one, because its state has changed too much.
const REQUESTS_PER_SERVER: usize = 2_000;
/// Timeout for each part of a response: feeds wait for changes, and are not waited for. Fuzzers have little time per
/// input.
const TIMEOUT: Duration = Duration::from_millis(if cfg!(fuzzing) { 20 } else { 150 });
/// Timeout for requests that must succeed, however slow the machine.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

const NAMES: [&str; 12] = ["db", "a", "b", "d", "f", "v", "new", "_users", "_local", "..", "", "\u{e9}"];
const PARAMETERS: [&str; 40] = [
    "rev",
    "revs",
    "open_revs",
    "atts_since",
    "attachments",
    "latest",
    "conflicts",
    "meta",
    "limit",
    "skip",
    "key",
    "keys",
    "startkey",
    "endkey",
    "start_key",
    "startkey_docid",
    "descending",
    "include_docs",
    "inclusive_end",
    "reduce",
    "group",
    "group_level",
    "update",
    "stale",
    "sorted",
    "since",
    "feed",
    "filter",
    "style",
    "doc_ids",
    "timeout",
    "heartbeat",
    "seq_interval",
    "view",
    "count",
    "batch",
    "new_edits",
    "selector",
    "sort",
    "fields",
];
const VALUES: [&str; 16] = [
    "true",
    "false",
    "0",
    "1",
    "-1",
    "18446744073709551616",
    "null",
    "\"a\"",
    "[]",
    "{}",
    "[\"a\",{}]",
    "all",
    "now",
    "1-967a00dff5e02add41819138abb3284d",
    "longpoll",
    "_selector",
];
const BODIES: [&str; 14] = [
    r#"{"selector":{"a":{"$gt":null}},"sort":["a"],"limit":2}"#,
    r#"{"docs":[{"_id":"new","a":1},{"_id":"a","_deleted":true}]}"#,
    r#"{"docs":[{"_id":"a","_rev":"2-b","_revisions":{"start":2,"ids":["b","a"]}}],"new_edits":false}"#,
    r#"{"keys":["a",{"b":[]}],"include_docs":true}"#,
    r#"{"index":{"fields":["a"]},"name":"n"}"#,
    r#"{"a":["1-a","2-b"]}"#,
    r#"{"queries":[{"keys":["a"]},{"limit":1}]}"#,
    r#"{"docs":[{"id":"a"},{"id":"b","rev":"1-a"}]}"#,
    r#"{"_id":"a","_attachments":{"f":{"data":"YQ==","content_type":"text/plain"},"g":{"stub":true}}}"#,
    r#"{"admins":{"names":["x"],"roles":[]},"members":{"names":[],"roles":["_admin"]}}"#,
    r#"{"source":"db","target":"new","create_target":true}"#,
    r#"{"views":{"v":{"map":"function(doc){emit(doc.a)}","reduce":"_sum"}},"language":"javascript"}"#,
    r#"{"group_by":["a"],"aggregate":{"n":{"$count":{}}}}"#,
    "[",
];

/// Every response must be HTTP, its status must not be 500, and a body declared as JSON must be JSON.
pub fn requests(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    let request = match kind % 2 {
        0 => rest.to_vec(),
        _ => match build_request(&mut Unstructured::new(rest)) {
            Ok(request) => request,
            Err(_) => return,
        },
    };
    thread_local! {
        static SERVED: RefCell<KeptServer> = const { RefCell::new(KeptServer(None)) };
    }
    SERVED.with_borrow_mut(|KeptServer(served)| {
        let mut fresh =
            served.take().filter(|served| served.count < REQUESTS_PER_SERVER).unwrap_or_else(FuzzedServer::start);
        fresh.count += 1;
        check(&request, &fresh.ask(&request, TIMEOUT));
        *served = Some(fresh);
    });
}

/// The server of a thread. It is ended on another one, because the other values of a thread that ends are gone.
struct KeptServer(Option<FuzzedServer>);

impl Drop for KeptServer {
    fn drop(&mut self) {
        if let Some(server) = self.0.take() {
            std::thread::spawn(move || drop(server)).join().expect("the server ends");
        }
    }
}

/// A server, and the number of requests it has handled.
struct FuzzedServer {
    runtime: tokio::runtime::Runtime,
    server: Server,
    count: usize,
    _directory: tempfile::TempDir,
}

impl FuzzedServer {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let config = config(directory.path());
        let server = runtime.block_on(Server::start(config)).expect("a server");
        let served = FuzzedServer { runtime, server, count: 0, _directory: directory };
        let file = r#"{"_attachments":{"f":{"data":"YQ==","content_type":"text/plain"}},"a":[1,{"b":2}]}"#;
        let design =
            r#"{"views":{"v":{"map":"function(doc) { emit(doc.a) }"}},"filters":{"f":"function() { return true }"}}"#;
        for (method, path, body) in [
            ("PUT", "/db", ""),
            ("PUT", "/_users", ""),
            ("PUT", "/db/a", file),
            ("PUT", "/db/b", r#"{"a":1}"#),
            ("PUT", "/db/_design/d", design),
            ("PUT", "/db/_local/a", r#"{"a":1}"#),
            ("POST", "/db/_index", r#"{"index":{"fields":["a"]},"ddoc":"i","name":"v"}"#),
        ] {
            let answer = served
                .ask(&request(method, path, &[("Content-Type", "application/json")], body.as_bytes()), SETUP_TIMEOUT);
            assert!(answer.starts_with(b"HTTP/1.1 20"), "{path}: {}", String::from_utf8_lossy(&answer));
        }
        served
    }

    /// Returns the response as far as it arrives before the timeout.
    fn ask(&self, request: &[u8], timeout_after: Duration) -> Vec<u8> {
        self.runtime.block_on(async {
            let (client, stream) = tokio::io::duplex(64 << 10);
            let serving = tokio::spawn(self.server.serve_stream(stream));
            let (mut reading, mut writing) = tokio::io::split(client);
            let mut answer = Vec::new();
            let read = async { while let Ok(Ok(1..)) = timeout(timeout_after, reading.read_buf(&mut answer)).await {} };
            let write = async {
                writing.write_all(request).await.ok();
                // The server would treat a closed sending side as a disconnected client, so the sender stays open until
                // the response is read.
                std::future::pending::<()>().await;
            };
            tokio::select! { () = read => {}, () = write => {} }
            serving.abort();
            answer
        })
    }
}

/// The configuration of a server with an administrator, without scripts and other servers.
pub(super) fn config(directory: &std::path::Path) -> Config {
    Config {
        address: ([127, 0, 0, 1], 0).into(),
        administrator: Some(Administrator { name: "admin".to_owned(), password: "secret".to_owned() }),
        durability: Durability::None,
        jwt_keys: vec![JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: KEY.to_vec() }],
        // No connections to other servers, and no other processes.
        replicator: Replicator { hosts: vec!["nowhere.invalid".to_owned()], ..Replicator::default() },
        scripts: Some(WorkerCommand { program: PathBuf::from("/nonexistent"), arguments: Vec::new() }),
        ..Config::new(directory)
    }
}

pub(super) fn token() -> String {
    let claims = serde_json::json!({"sub": "admin", "exp": 4_000_000_000_u64, "_couchdb.roles": ["_admin"]});
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    jsonwebtoken::encode(&header, &claims, &jsonwebtoken::EncodingKey::from_secret(KEY)).expect("a token")
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    head.push_str(&format!("Authorization: Bearer {}\r\nContent-Length: {}\r\n", token(), body.len()));
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    [format!("{head}\r\n").as_bytes(), body].concat()
}

/// Builds a request of some route.
fn build_request(given: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let routes = route_descriptions();
    let route: &RouteDescription = given.choose(&routes)?;
    let mut path = String::new();
    for segment in route.path.split('/').skip(1) {
        path.push('/');
        match segment.starts_with('{') {
            true => path.push_str(&text(given, &NAMES)?),
            false => path.push_str(segment),
        }
    }
    for at in 0..given.int_in_range(0..=3)? {
        path.push(if at == 0 { '?' } else { '&' });
        path.push_str(given.choose(&PARAMETERS)?);
        path.push('=');
        path.push_str(&text(given, &VALUES)?);
    }
    let kinds = ["application/json", "text/plain", "multipart/related; boundary=b", "multipart/form-data; boundary=b"];
    let mut headers = vec![("Content-Type", *given.choose(&kinds[..])?)];
    if given.ratio(1, 4)? {
        let others = [
            ("If-Match", "\"1-a\""),
            ("If-None-Match", "*"),
            ("Range", "bytes=0-0"),
            ("Accept", "multipart/mixed"),
            ("Destination", "new?rev=1-a"),
            ("Content-Encoding", "gzip"),
            ("Origin", "http://elsewhere.example"),
            ("Expect", "100-continue"),
        ];
        headers.push(*given.choose(&others)?);
    }
    let body = match given.ratio(2, 3)? {
        true => given.choose(&BODIES)?.as_bytes(),
        false => given.bytes(given.len())?,
    };
    Ok(request(route.method, &path, &headers, body))
}

/// Usually one of the known texts, otherwise any text; percent-encoded for a path.
fn text(given: &mut Unstructured<'_>, known: &[&'static str]) -> Result<String> {
    let text = if given.ratio(5, 6)? { *given.choose(known)? } else { given.arbitrary()? };
    Ok(percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string())
}

fn check(request: &[u8], answer: &[u8]) {
    let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n") else { return };
    let shown = || format!("{}\n{}", String::from_utf8_lossy(request), String::from_utf8_lossy(answer));
    let head = std::str::from_utf8(&answer[..end]).unwrap_or_else(|_| panic!("a head that is not UTF-8: {}", shown()));
    assert!(head.starts_with("HTTP/1."), "no HTTP: {}", shown());
    let status = head.get(9..12);
    // Responses about the missing script program and other servers have status 500, as in CouchDB.
    let is_elsewhere = memchr::memmem::find(answer, b"os_process_error").is_some()
        || memchr::memmem::find(request, b"/_replicate").is_some();
    assert!(status != Some("500") || is_elsewhere, "a fault of ours: {}", shown());
    let lines: Vec<String> = head.lines().map(str::to_ascii_lowercase).collect();
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let is_json = lines.iter().any(|line| line == "content-type: application/json");
    let body = &answer[end + 4..];
    if is_json && length == Some(body.len()) && !request.starts_with(b"HEAD") {
        let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(body);
        assert!(parsed.is_ok(), "no JSON: {}", shown());
    }
}
