//! `_watch`: the initial result, changes, and resuming; as server-sent events and over a WebSocket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb_server::{Config, Cors};

use crate::client::{TestServer, basic};
use crate::spread::Servers;
use crate::virtual_database::{create, start_move, until_moved};

/// Server-sent events, read as they arrive.
pub(crate) struct Events(BufReader<TcpStream>, String);

/// A connection that has sent a request, and the head of its response.
pub(crate) fn opened(server: &TestServer, head: &str, body: &str) -> (BufReader<TcpStream>, String) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("{head}\r\nHost: localhost\r\n\r\n{body}").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut reported = String::new();
    while !reported.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut reported).unwrap() > 0, "{reported}");
    }
    (reader, reported)
}

impl Events {
    pub(crate) fn of(server: &TestServer, body: &Value, last: Option<&str>) -> Self {
        let text = body.to_string();
        let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
        let credentials = basic("admin", "secret");
        let head = format!(
            "POST /live/_watch HTTP/1.1\r\nAuthorization: {credentials}\r\n{last}Content-Type: \
            application/json\r\nContent-Length: {}",
            text.len()
        );
        let (reader, reported) = opened(server, &head, &text);
        assert!(
            reported.starts_with("HTTP/1.1 200") && reported.contains("content-type: text/event-stream"),
            "{reported}"
        );
        Events(reader, String::new())
    }

    /// The events of a GET request as a user.
    pub(crate) fn get(server: &TestServer, credentials: &str, path: &str) -> Self {
        let (reader, reported) = opened(server, &format!("GET {path} HTTP/1.1\r\nAuthorization: {credentials}"), "");
        assert!(
            reported.starts_with("HTTP/1.1 200") && reported.contains("content-type: text/event-stream"),
            "{reported}"
        );
        Events(reader, String::new())
    }

    /// The next event's name, id and data; `None` at the end. Heartbeats are skipped.
    pub(crate) fn next(&mut self) -> Option<(String, Option<String>, Value)> {
        loop {
            if let Some((event, rest)) = self.1.split_once("\n\n") {
                let field = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
                };
                let reported = field("event").map(|kind| {
                    let data: Value = serde_json::from_str(&field("data").unwrap()).unwrap();
                    assert_eq!(data["type"], kind.as_str());
                    (kind, field("id"), data)
                });
                self.1 = rest.to_owned();
                match reported {
                    Some(reported) => return Some(reported),
                    None => continue,
                }
            }
            if !self.read_chunk() {
                return None;
            }
        }
    }

    /// The data of the next event of a feed, whose events have no names.
    pub(crate) fn next_data(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.1.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).filter(|data| !data.is_empty());
                let data = data.map(|data| serde_json::from_str(data).unwrap());
                self.1 = rest.to_owned();
                match data {
                    Some(data) => return data,
                    None => continue,
                }
            }
            assert!(self.read_chunk(), "the feed ended");
        }
    }

    /// Reads the next chunk of the response; false at its end.
    fn read_chunk(&mut self) -> bool {
        let mut length = String::new();
        self.0.read_line(&mut length).unwrap();
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        let mut chunk = vec![0; length + 2];
        self.0.read_exact(&mut chunk).ok();
        self.1.push_str(std::str::from_utf8(&chunk[..length]).unwrap());
        length > 0
    }

    /// The events up to the next state, abbreviated; and that state's id.
    fn step(&mut self) -> (Vec<String>, String) {
        let mut reported = Vec::new();
        loop {
            let (kind, id, data) = self.next().expect("the watch continues");
            match id {
                Some(id) => {
                    assert_eq!((kind.as_str(), data["seq"].as_str()), ("state", Some(id.as_str())));
                    return (reported, id);
                }
                None => reported.push(brief(&data)),
            }
        }
    }
}

fn brief(data: &Value) -> String {
    let kind = data["type"].as_str().unwrap();
    let place = data["at"].as_u64().map(|at| format!("@{at}")).unwrap_or_default();
    let rest = match kind {
        "leave" => if data["deleted"] == true { " deleted" } else { "" }.to_owned(),
        "reset" => return kind.to_owned(),
        _ => format!(" n={}", data["doc"]["n"]),
    };
    format!("{kind} {}{place}{rest}", data["id"].as_str().unwrap())
}

fn put(server: &TestServer, id: &str, body: Value) {
    let mut body = body;
    let known = server.get(&format!("/live/{id}"));
    if known.status == 200 {
        body["_rev"] = known.json()["_rev"].clone();
    }
    assert_eq!(server.put(&format!("/live/{id}"), &body).status, 201);
}

fn filled() -> TestServer {
    let server = TestServer::new();
    server.database("live", &[json!({"_id": "a", "n": 1}), json!({"_id": "b", "n": 2}), json!({"_id": "c"})]);
    server
}

#[test]
fn watch_sends_the_result_and_each_change() {
    let server = filled();
    let mut events = Events::of(&server, &json!({"selector": {"n": {"$gt": 0}}, "heartbeat": 20}), None);
    let (mut first, _) = events.step();
    first.sort();
    assert_eq!(first, ["enter a n=1", "enter b n=2", "reset"]);
    put(&server, "c", json!({"n": 3}));
    assert_eq!(events.step().0, ["enter c n=3"]);
    put(&server, "d", json!({"n": 0}));
    put(&server, "a", json!({"n": 10}));
    assert_eq!(events.step().0, ["change a n=10"], "changes of documents that do not match are not sent");
    put(&server, "b", json!({"n": -1}));
    assert_eq!(events.step().0, ["leave b"]);
    let revision = server.get("/live/a").json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/live/a?rev={revision}"));
    assert_eq!(events.step().0, ["leave a deleted"]);
    // One transaction is one step.
    let revision = server.get("/live/c").json()["_rev"].clone();
    let docs = json!([{"_id": "c", "_rev": revision, "n": 4}, {"_id": "e", "n": 5}]);
    assert_eq!(server.post("/live/_transact", &json!({ "docs": docs })).status, 201);
    assert_eq!(events.step().0.len(), 2);
    server.design("live", "x", json!({"n": 1}));
    put(&server, "f", json!({"n": 6}));
    assert_eq!(events.step().0, ["enter f n=6"], "design documents are not rows");
}

/// Watches the virtual database `live`, whose shards move as `requests` say.
fn watch_virtual_database(server: &TestServer, requests: &[Value]) {
    for (id, n) in [("a", 1), ("b", 2), ("c", -3)] {
        put(server, id, json!({"n": n}));
    }
    let body = json!({"selector": {"n": {"$gt": 0}}, "heartbeat": 20});
    let mut events = Events::of(server, &body, None);
    let (mut first, begun) = events.step();
    first.sort();
    assert_eq!(first, ["enter a n=1", "enter b n=2", "reset"]);
    put(server, "c", json!({"n": 3}));
    assert_eq!(events.step().0, ["enter c n=3"]);
    put(server, "d", json!({"n": 0}));
    put(server, "a", json!({"n": 10}));
    assert_eq!(events.step().0, ["change a n=10"], "changes of documents that do not match are not sent");
    for (at, request) in requests.iter().enumerate() {
        start_move(server, "live", request);
        until_moved(server, "live");
        put(server, "a", json!({"n": 11 + at}));
        let reported = events.step().0;
        assert_eq!(reported, [format!("change a n={}", 11 + at)], "documents that move are not sent again");
    }
    put(server, "b", json!({"n": -1}));
    assert_eq!(events.step().0, ["leave b"]);
    let revision = server.get("/live/a").json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/live/a?rev={revision}"));
    let (reported, last) = events.step();
    assert_eq!(reported, ["leave a deleted"]);
    drop(events);
    // A client that connects again gets what it missed.
    let mut resumed = Events::of(server, &body, Some(&last));
    assert_eq!(resumed.step().0, [""; 0]);
    put(server, "e", json!({"n": 5}));
    assert_eq!(resumed.step().0, ["enter e n=5"]);
    let mut missed = Events::of(server, &body, Some(&begun)).step().0;
    missed.sort();
    missed.dedup();
    assert_eq!(missed, ["enter c n=3", "enter e n=5", "leave a deleted", "leave b", "leave d"]);
    assert_eq!(Events::of(server, &body, Some("5-ffffffff")).step().0[0], "reset");
    let fields = json!({"selector": {"n": {"$gt": 0}}, "fields": ["n"], "since": "now"});
    let mut events = Events::of(server, &fields, None);
    events.step();
    put(server, "e", json!({"n": 6, "other": 1}));
    let (_, _, data) = events.next().unwrap();
    assert_eq!(data["doc"], json!({"n": 6}));
    for body in [json!({"selector": {}, "limit": 3}), json!({"paths": ["a/+"]})] {
        assert_eq!(server.post("/live/_watch", &body).status, 501, "{body}");
    }
}

#[test]
fn watch_of_a_virtual_database_sees_all_shards() {
    let server = TestServer::new();
    create(&server, "/live?shards=3");
    watch_virtual_database(&server, &[json!({"split": "shard-1"}), json!({"merge": "shard-2", "into": "shard-3"})]);
}

#[test]
fn watch_of_a_virtual_database_sees_all_servers() {
    let servers = Servers::start();
    create(&servers.home, "/live?shards=3&servers=here,b,c");
    let requests = [json!({"merge": "shard-2", "server": "c"}), json!({"split": "shard-1", "server": "b"})];
    watch_virtual_database(&servers.home, &requests);
}

#[test]
fn resumed_watch_sends_missed_changes() {
    let mut server = filled();
    let body = json!({"selector": {"n": {"$gt": 0}}, "fields": ["n"]});
    let mut events = Events::of(&server, &body, None);
    let (_, last) = events.step();
    drop(events);
    put(&server, "b", json!({"n": -1}));
    put(&server, "d", json!({"n": 4}));
    let (reported, _) = Events::of(&server, &body, Some(&last)).step();
    assert_eq!(reported, ["leave b", "enter d n=4"]);
    // The server may have been restarted.
    server.restart();
    let mut events = Events::of(&server, &body, Some(&last));
    assert_eq!(events.step().0, ["leave b", "enter d n=4"]);
    put(&server, "d", json!({"n": 5, "other": 1}));
    let (kind, _, data) = events.next().unwrap();
    assert_eq!((kind.as_str(), &data["doc"]), ("change", &json!({"n": 5})));
    // A client can ask for future changes only.
    let mut live = json!({"since": "now"});
    live["selector"] = body["selector"].clone();
    let mut events = Events::of(&server, &live, None);
    assert_eq!(events.step().0, [""; 0]);
    put(&server, "d", json!({"n": 6}));
    assert_eq!(events.step().0, ["change d n=6"]);
    // A position of another database, or from the future, is invalid.
    for last in ["5-ffffffff", "999999"] {
        assert_eq!(Events::of(&server, &body, Some(last)).step().0[0], "reset");
    }
}

#[test]
fn limited_watch_keeps_its_order() {
    let server = filled();
    let mut events = Events::of(&server, &json!({"selector": {}, "sort": [{"n": "desc"}], "limit": 2}), None);
    assert_eq!(events.step().0, ["reset", "enter b@0 n=2", "enter a@1 n=1"]);
    put(&server, "c", json!({"n": 9}));
    assert_eq!(events.step().0, ["leave a", "enter c@0 n=9"]);
    put(&server, "b", json!({"n": 10}));
    assert_eq!(events.step().0, ["change b@0 n=10"]);
    let revision = server.get("/live/b").json()["_rev"].as_str().unwrap().to_owned();
    server.delete(&format!("/live/b?rev={revision}"));
    assert_eq!(events.step().0, ["leave b deleted", "enter a@1 n=1"]);
}

#[test]
fn slow_watcher_misses_no_row() {
    let server = filled();
    let mut events = Events::of(&server, &json!({"selector": {"n": {"$gt": 0}}}), None);
    events.step();
    // More than socket buffers and the inbox hold: intermediate states are skipped, the last one is not.
    for round in 0..30 {
        let docs: Vec<_> = (0..200)
            .map(|n| {
                let mut doc = json!({"_id": format!("x{n}"), "n": round + 1, "text": "x".repeat(2_000)});
                let known = server.get(&format!("/live/x{n}"));
                if known.status == 200 {
                    doc["_rev"] = known.json()["_rev"].clone();
                }
                doc
            })
            .collect();
        server.post("/live/_bulk_docs", &json!({ "docs": docs }));
    }
    put(&server, "last", json!({"n": 1}));
    let mut rows = std::collections::BTreeMap::new();
    while !rows.contains_key("last") {
        for reported in events.step().0 {
            let (id, n) = reported.split_once(' ').unwrap().1.split_once(" n=").unwrap();
            rows.insert(id.to_owned(), n.to_owned());
        }
    }
    assert_eq!(rows.len(), 201);
    assert!(rows.iter().all(|(id, n)| id == "last" || n == "30"), "{rows:?}");
}

#[test]
fn watches_do_not_hold_threads() {
    let server = filled();
    let body = json!({"selector": {"n": {"$gt": 5}}});
    // More than the number of threads in the blocking pool.
    let mut watches: Vec<_> = (0..600).map(|_| Events::of(&server, &body, None)).collect();
    watches.iter_mut().for_each(|watch| drop(watch.step()));
    put(&server, "a", json!({"n": 6}));
    for watch in &mut watches {
        assert_eq!(watch.step().0, ["enter a n=6"]);
    }
    let found = server.post("/live/_find", &json!({ "selector": body["selector"] })).json();
    assert_eq!(found["docs"].as_array().unwrap().len(), 1);
}

#[test]
fn watch_ends_with_database_server_and_rights() {
    needs_one_server!("a database moves when its server stops");
    let mut server = filled();
    let body = json!({"selector": {}});
    let mut events = Events::of(&server, &body, None);
    events.step();
    server.restart();
    assert!(events.next().is_none());
    let mut events = Events::of(&server, &body, None);
    events.step();
    assert_eq!(server.delete("/live").status, 200);
    while events.next().is_some() {}
    server.database("live", &[]);
    server.put("/live/_security", &json!({"members": {"names": [], "roles": []}}));
    let head = "GET /live/_watch?selector=%7B%7D HTTP/1.1";
    let (reader, _) = opened(&server, head, "");
    let mut events = Events(reader, String::new());
    events.step();
    server.put("/live/_security", &json!({"members": {"names": ["ann"], "roles": []}}));
    put(&server, "secret", json!({"n": 1}));
    let (kind, _, data) = events.next().unwrap();
    assert_eq!((kind.as_str(), &data["error"]), ("failure", &json!("forbidden")));
    assert!(events.next().is_none());
}

#[test]
fn changes_feed_ends_with_its_database() {
    let server = filled();
    let credentials = basic("admin", "secret");
    let head = format!("GET /live/_changes?feed=continuous&heartbeat=20 HTTP/1.1\r\nAuthorization: {credentials}");
    let (mut feed, _) = opened(&server, &head, "");
    let mut line = String::new();
    while !line.contains("\"id\":\"c\"") {
        feed.read_line(&mut line).unwrap();
    }
    assert_eq!(server.delete("/live").status, 200);
    while !line.contains("last_seq") {
        assert!(feed.read_line(&mut line).unwrap() > 0, "{line}");
    }
}

#[test]
fn unwatchable_queries_are_rejected_with_a_reason() {
    let server = filled();
    for wrong in [
        json!({}),
        json!({"selector": {"a": {"$huh": 1}}}),
        json!({"selector": {}, "limit": 1001}),
        json!({"selector": {}, "sort": [{"n": "up"}]}),
        json!({"selector": {}, "since": "x"}),
        json!({"selector": {}, "heartbeat": 0}),
        json!({"selector": {}, "bookmark": "x"}),
    ] {
        assert_eq!(server.post("/live/_watch", &wrong).status, 400, "{wrong}");
    }
    assert_eq!(server.get("/live/_watch?selector=%7B").status, 400);
    assert_eq!(server.get("/nowhere/_watch?selector=%7B%7D").status, 404);
}

const HANDSHAKE: &str = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

fn socket(server: &TestServer, more: &str) -> (BufReader<TcpStream>, String) {
    let credentials = basic("admin", "secret");
    let head =
        format!("GET /live/_watch?selector=%7B%7D&heartbeat=20 HTTP/1.1\r\nAuthorization: {credentials}\r\n{more}");
    opened(server, &head, "")
}

/// The next frame: its type and payload.
fn frame(reader: &mut BufReader<TcpStream>) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    reader.read_exact(&mut head).unwrap();
    let length = match head[1] {
        126 => {
            let mut length = [0; 2];
            reader.read_exact(&mut length).unwrap();
            usize::from(u16::from_be_bytes(length))
        }
        length => usize::from(length),
    };
    let mut text = vec![0; length];
    reader.read_exact(&mut text).unwrap();
    (head[0] & 15, text)
}

/// The next message; pings are skipped.
fn message(reader: &mut BufReader<TcpStream>) -> Value {
    loop {
        match frame(reader) {
            (1, text) => return serde_json::from_slice(&text).unwrap(),
            (9, _) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn watch_over_a_websocket() {
    needs_one_server!("a database moves when its server stops");
    let mut server = filled();
    let (mut reader, reported) = socket(&server, HANDSHAKE);
    assert!(reported.starts_with("HTTP/1.1 101"), "{reported}");
    assert!(reported.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{reported}");
    let mut kinds = Vec::new();
    while kinds.last() != Some(&json!("state")) {
        kinds.push(message(&mut reader)["type"].clone());
    }
    assert_eq!(kinds, ["reset", "enter", "enter", "enter", "state"]);
    put(&server, "d", json!({"n": 4}));
    let entered = message(&mut reader);
    assert_eq!((&entered["type"], &entered["doc"]["n"]), (&json!("enter"), &json!(4)));
    assert_eq!(message(&mut reader)["type"], "state");
    let ping = frame(&mut reader);
    assert_eq!(ping.0, 9);
    // A client that closes is disconnected; other clients get a close frame when the server stops.
    let (mut leaving, _) = socket(&server, HANDSHAKE);
    leaving.get_mut().write_all(&[0x88, 0x82, 0, 0, 0, 0, 3, 232]).unwrap();
    leaving.read_to_end(&mut Vec::new()).unwrap();
    server.restart();
    loop {
        match frame(&mut reader) {
            (8, reason) => break assert_eq!(&reason[..2], 1001_u16.to_be_bytes()),
            (9, _) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn websocket_rejects_foreign_origins() {
    let server = TestServer::with(|config| Config {
        cors: Cors { origins: vec!["https://friend.example".to_owned(), "*".to_owned()], ..Cors::default() },
        ..config
    });
    server.database("live", &[]);
    let status = |more: &str| socket(&server, &format!("{HANDSHAKE}\r\n{more}")).1[9..12].to_owned();
    assert_eq!(status("X: y"), "101");
    assert_eq!(status("Origin: http://localhost"), "101");
    assert_eq!(status("Origin: https://friend.example"), "101");
    assert_eq!(status("Origin: https://evil.example"), "403", "`*` does not apply to authenticated clients");
    assert_eq!(status("Origin: null"), "403");
    // Without a key, or with another version, it is not a handshake.
    for wrong in [
        HANDSHAKE.replace("13", "8"),
        HANDSHAKE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"),
        HANDSHAKE.replace("keep-alive, Upgrade", "keep-alive"),
    ] {
        assert_eq!(&socket(&server, &wrong).1[9..12], "400", "{wrong}");
    }
    let (_, reported) = opened(&server, &format!("GET /live/_watch?selector=%7B%7D HTTP/1.1\r\n{HANDSHAKE}"), "");
    assert_eq!(&reported[9..12], "401");
}
