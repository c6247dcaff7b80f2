//! Slow clients do not block others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use stemmadb_server::{Config, Limits};

use crate::client::{TestServer, basic};

/// More than the number of threads in tokio's blocking pool.
const READER_COUNT: usize = 600;

/// A database whose listing is longer than what the socket buffers hold.
fn filled() -> TestServer {
    // Slow readers are not disconnected, however slow the machine.
    filled_with_stall_timeout(Duration::from_secs(600))
}

fn filled_with_stall_timeout(stall_timeout: Duration) -> TestServer {
    let limits = Limits { stall_timeout, ..Limits::default() };
    let server = TestServer::with(|config| Config { limits, ..config });
    let docs: Vec<Value> =
        (0..100).map(|n| json!({"_id": format!("{n:03}"), "n": n, "text": "x".repeat(80_000)})).collect();
    server.database("slow", &docs);
    server
}

/// A client that reads the beginning of a response and then stops.
fn slow_reader(server: &TestServer, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let credentials = basic("admin", "secret");
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    stream
}

/// Raises the limit of open files: each connection needs two here.
fn allow_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

#[test]
fn slow_senders_delay_only_each_other() {
    allow_files();
    let patient = Limits { stall_timeout: Duration::from_secs(300), ..Limits::default() };
    let server = TestServer::with(|config| Config { limits: patient, ..config });
    server.database("slow", &[json!({"_id": "a"})]);
    let credentials = basic("admin", "secret");
    let begin = |n: usize| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "PUT /slow/doc-{n}/file HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\nExpect: \
            100-continue\r\nContent-Length: 10\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut first = begin(0);
    let mut begun = [0; 25];
    first.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");
    let others: Vec<_> = (1..READER_COUNT).map(begin).collect();
    let found = server.post("/slow/_find", &json!({"selector": {}}));
    assert_eq!(found.json()["docs"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/slow/_all_docs").json()["total_rows"], 1);
    first.write_all(b"0123456789").unwrap();
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("HTTP/1.1 201"), "{rest}");
    // When they disconnect, their memory is available again.
    drop(others);
    assert_eq!(server.send_as_admin("PUT", "/slow/late/file", &[], b"late").status, 201);
}

#[test]
fn slow_readers_block_nobody() {
    allow_files();
    let server = filled();
    let paths = ["/slow/_all_docs?include_docs=true", "/slow/_changes?include_docs=true&descending=true"];
    let mut readers: Vec<_> = (0..READER_COUNT).map(|n| slow_reader(&server, paths[n % 2])).collect();
    assert_eq!(server.put("/slow/new", &json!({"n": 1})).status, 201);
    assert_eq!(server.get("/slow/new").json()["n"], 1);
    let written = server.post("/slow/_bulk_docs", &json!({"docs": [{"_id": "a"}, {"_id": "b"}]}));
    assert_eq!(written.status, 201);
    let listed = server.get("/slow/_all_docs?startkey=%22a%22&include_docs=true").json();
    assert_eq!(listed["rows"].as_array().unwrap().len(), 3);
    // A client that continues reading gets the complete state as of its request.
    let mut rest = String::new();
    let mut reader = readers.swap_remove(0);
    reader.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"id\":\"000\"") && rest.contains("\"id\":\"099\"") && rest.contains("\n]}"));
    assert!(!rest.contains("\"id\":\"new\""));
}

/// A client that does not read is disconnected, also on the server's side, and can detect the truncation when it reads
/// later.
#[test]
fn stalled_reader_is_disconnected_detectably() {
    needs_one_server!("a server that passes an answer on has buffers of its own");
    let server = filled_with_stall_timeout(Duration::from_secs(1));
    let text = "y".repeat(7_000_000);
    server.database("long", &[json!({"_id": "one", "text": text})]);
    // Except the connection of the monitoring request.
    let no_connection_is_left = || server.get("/_node/_local/_system").json()["connections"] == 1;
    // A streamed response, and one that is built completely.
    for path in ["/slow/_all_docs?include_docs=true", "/long/one"] {
        let mut reader = slow_reader(&server, path);
        let begun = Instant::now();
        while !no_connection_is_left() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{path} is still sent");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut rest = Vec::new();
        // The content of the socket buffers, followed by an end that is not a valid end of the response.
        let ended = reader.read_to_end(&mut rest);
        let is_whole = rest.ends_with(b"0\r\n\r\n") || rest.len() > 7_000_000;
        assert!(!is_whole, "{path}: {} bytes, {ended:?}", rest.len());
    }
}

#[test]
fn descending_changes_are_the_reverse_of_ascending() {
    let server = filled();
    let rows = |path: &str| server.get(path).json()["results"].as_array().unwrap().clone();
    let upwards = rows("/slow/_changes?include_docs=true");
    let mut downwards = rows("/slow/_changes?include_docs=true&descending=true");
    assert_eq!(upwards.len(), 100);
    assert_eq!(rows("/slow/_changes?descending=true&limit=3").len(), 3);
    assert_eq!(downwards[0]["id"], "099");
    downwards.reverse();
    assert_eq!(upwards, downwards);
}
