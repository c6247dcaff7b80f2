//! Feeds of `_changes` that stay open: what each mode and filter receives while documents are written, and limits of
//! live queries.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{TestServer, basic};

/// An open feed, read line by line.
pub(crate) struct Feed {
    stream: BufReader<TcpStream>,
    /// What was received of the lines to come: a chunk of the response may end within a line.
    text: Vec<u8>,
}

impl Feed {
    pub(crate) fn open(server: &TestServer, query: &str, body: &Value) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let (credentials, body) = (basic("admin", "secret"), body.to_string());
        let head = format!(
            "POST /db/_changes?{query} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut feed = Feed { stream: BufReader::new(stream), text: Vec::new() };
        let head = feed.received_line();
        assert!(head.starts_with("HTTP/1.1 200"), "{query}: {head}");
        while !feed.received_line().is_empty() {}
        feed
    }

    /// A line of the response's head, or of what separates its chunks.
    fn received_line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap().trim_end().to_owned());
            }
            let length = match self.received_line().as_str() {
                // After the end.
                "" => 0,
                length => usize::from_str_radix(length, 16).unwrap(),
            };
            if length == 0 {
                let rest = String::from_utf8(std::mem::take(&mut self.text)).unwrap();
                return (!rest.is_empty()).then_some(rest);
            }
            let begin = self.text.len();
            self.text.resize(begin + length, 0);
            self.stream.read_exact(&mut self.text[begin..]).unwrap();
            assert_eq!(self.received_line(), "");
        }
    }

    /// The next row or ending; `None` once the response has ended.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            let line = self.line()?;
            let text = line.strip_prefix("data: ").unwrap_or(&line).trim_end_matches(',');
            let text = if text.starts_with("\"last_seq\"") { format!("{{{text}") } else { text.to_owned() };
            if let Some(row) = serde_json::from_str::<Value>(&text).ok().filter(Value::is_object) {
                return Some(row);
            }
        }
    }

    /// The ids of the next `count` rows.
    pub(crate) fn ids(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.next().unwrap()["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn open_feeds_receive_what_their_options_select() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "old", "kind": 1})]);
    let none = json!({});
    let open = |query: &str, body: &Value| Feed::open(&server, &format!("{query}&heartbeat=1000"), body);
    let mut all = [
        open("feed=continuous", &none),
        open("feed=continuous", &none),
        open("feed=eventsource", &none),
        open("feed=continuous&seq_interval=2", &none),
        open("feed=continuous&style=all_docs&include_docs=true", &none),
    ];
    let mut by_id = open("feed=continuous&filter=_doc_ids", &json!({"doc_ids": ["b", "c", "old"]}));
    let mut by_selector = open("feed=continuous&filter=_selector", &json!({"selector": {"kind": 1}}));
    let mut design = open("feed=continuous&filter=_design", &none);
    let mut poll = open("feed=longpoll&since=now", &none);
    let mut limited = open("feed=continuous&limit=3", &none);
    for feed in &mut all {
        assert_eq!(feed.ids(1), ["old"]);
    }
    assert_eq!(
        (by_id.ids(1), by_selector.ids(1), limited.ids(1)),
        (vec!["old".to_owned()], vec!["old".to_owned()], vec!["old".to_owned()])
    );
    for (id, kind) in [("a", 1), ("b", 2), ("_design/x", 1), ("c", 1)] {
        assert_eq!(server.put(&format!("/db/{id}"), &json!({"kind": kind})).status, 201);
    }
    for feed in &mut all {
        assert_eq!(feed.ids(4), ["a", "b", "_design/x", "c"]);
    }
    assert_eq!(by_id.ids(2), ["b", "c"]);
    assert_eq!(by_selector.ids(3), ["a", "_design/x", "c"]);
    assert_eq!(design.ids(1), ["_design/x"]);
    assert_eq!(limited.ids(2), ["a", "b"]);
    let ending = limited.next().unwrap();
    assert!(ending["last_seq"].as_str().unwrap().starts_with("3-"), "{ending}");
    assert_eq!(limited.next(), None);
    // How many rows a long poll returns depends on when it is woken.
    let first = poll.next().unwrap();
    assert_eq!(first["id"], "a");
    let ending = std::iter::from_fn(|| poll.next()).last().unwrap();
    assert!(ending["last_seq"].is_string(), "{ending}");
    let revision = server.get("/db/a").json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/db/a?rev={revision}"));
    for feed in &mut all {
        let row = feed.next().unwrap();
        assert_eq!((row["id"].as_str(), row["deleted"].as_bool()), (Some("a"), Some(true)));
    }
    // A database that is deleted ends its feeds.
    server.delete("/db");
    assert!(by_id.next().is_none_or(|ending| ending["last_seq"].is_string()));
}

/// A feed that nothing concerned ends at the newest sequence, so that its client does not read old changes again.
#[test]
fn a_feed_without_rows_ends_at_the_newest_sequence() {
    let server = TestServer::new();
    server.database("db", &[]);
    let wanted = json!({"doc_ids": ["other"]});
    let mut other = Feed::open(&server, "feed=continuous&filter=_doc_ids&heartbeat=100000", &wanted);
    let mut feed = Feed::open(&server, "feed=continuous&filter=_doc_ids&timeout=1500", &json!({"doc_ids": ["wanted"]}));
    for number in 0..20 {
        assert_eq!(server.put(&format!("/db/d{number}"), &json!({})).status, 201);
    }
    assert_eq!(server.put("/db/other", &json!({})).status, 201);
    assert_eq!(other.ids(1), ["other"]);
    let ending = feed.next().unwrap();
    assert!(ending["last_seq"].as_str().unwrap().starts_with("21-"), "{ending}");
}

/// A bulk insert writes more than a group keeps for slow feeds: they read for themselves, and miss nothing.
#[test]
fn a_feed_that_falls_behind_misses_nothing() {
    let server = TestServer::new();
    server.database("db", &[]);
    let mut feeds: Vec<_> =
        (0..3).map(|_| Feed::open(&server, "feed=continuous&include_docs=true&heartbeat=1000", &json!({}))).collect();
    let (count, text) = (3_000, "x".repeat(10_000));
    for part in 0..10 {
        let docs: Vec<_> = (0..count / 10).map(|n| json!({"_id": format!("{part}-{n:04}"), "text": text})).collect();
        assert_eq!(server.post("/db/_bulk_docs", &json!({"docs": docs})).status, 201);
    }
    for feed in &mut feeds {
        let ids = feed.ids(count);
        assert!(ids.is_sorted() && ids.len() == count);
    }
}

#[test]
fn live_queries_are_limited() {
    let server = TestServer::with(|mut config| {
        config.limits.watch_count = 2;
        config
    });
    server.database("db", &[]);
    let open = || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let credentials = basic("admin", "secret");
        let request = "GET /db/_watch?selector={} HTTP/1.1\r\nHost: localhost\r\n";
        stream.write_all(format!("{request}Authorization: {credentials}\r\n\r\n").as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        reader.read_line(&mut head).unwrap();
        (reader, head)
    };
    let watches = [open(), open()];
    assert!(watches.iter().all(|(_, head)| head.contains("200 OK")), "{watches:?}");
    assert!(open().1.contains("503"));
    let refused = server.get("/db/_watch?selector={}");
    assert_eq!(refused.status, 503);
    assert!(refused.json()["reason"].as_str().unwrap().contains("limits.watch_count"), "{refused:?}");
    // One that ends gives its place to another.
    drop(watches);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !open().1.contains("200 OK") {
        assert!(std::time::Instant::now() < deadline, "live queries that ended still count");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The head of the response to a request of a client that accepts gzip, and the first bytes of its body, while the
/// response goes on.
fn beginning(server: &TestServer, path: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let credentials = basic("admin", "secret");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{path}: {head}");
    }
    let mut body = vec![0; 8];
    reader.read_exact(&mut body).unwrap();
    (head.to_ascii_lowercase(), body)
}

#[test]
fn feeds_are_sent_uncompressed_and_lists_compressed() {
    let server = TestServer::new();
    let docs: Vec<_> = (0..200).map(|n| json!({"_id": format!("d{n:03}"), "text": "some text"})).collect();
    server.database("db", &docs);
    let is_compressed = |path: &str| {
        let (head, _) = beginning(&server, path);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        head.contains("content-encoding: gzip")
    };
    // The first bytes arrive while the feed is open. A compressor would keep them.
    for path in [
        "/db/_changes",
        "/db/_changes?feed=continuous&heartbeat=1000",
        "/db/_changes?feed=continuous&since=now&heartbeat=100",
        "/db/_changes?feed=eventsource&heartbeat=1000",
        "/db/_changes?feed=longpoll",
        "/_db_updates?feed=continuous&heartbeat=1000",
        "/_db_updates?feed=eventsource&heartbeat=1000",
        "/_log?feed=continuous&heartbeat=100",
        "/_log?feed=eventsource&heartbeat=100",
        "/db/_watch?selector=%7B%7D",
        "/db/_subscribe?topic=%23&heartbeat=100",
    ] {
        assert!(!is_compressed(path), "{path}");
    }
    for path in ["/db/_all_docs", "/_openapi", "/_metrics", "/_console/app.js"] {
        assert!(is_compressed(path), "{path}");
    }
}
