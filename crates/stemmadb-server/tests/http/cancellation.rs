//! Requests that read end with their clients, and within their time limit.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stemmadb_server::{Config, Limits};

use crate::client::{TestServer, basic};

/// Far longer than any step takes, on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How many queries of a kind have ended.
fn ended_count(server: &TestServer, kind: &str) -> u64 {
    server.get("/db/_statistics").json()["queries"][kind]["count"].as_u64().unwrap_or(0)
}

/// Sends a request that has no end of its own, and leaves. Returns once the request has ended.
fn send_and_leave(server: &TestServer, path: &str, body: &Value, kind: &str) {
    let before = ended_count(server, kind);
    let (credentials, text) = (basic("admin", "secret"), body.to_string());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {credentials}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    // However slow the machine is: a request that has not begun yet ends as well.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ended_count(server, kind), before, "it ended by itself");
    drop(stream);
    let begun = Instant::now();
    while ended_count(server, kind) == before {
        assert!(begun.elapsed() < TIMEOUT, "{path} goes on after its client has left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stages without a row as their result, which take years.
fn endless_stages() -> Value {
    json!([
        {"$set": {"b": "$a", "c": "$a", "d": "$a", "e": "$a"}},
        {"$unwind": "$a"}, {"$unwind": "$b"}, {"$unwind": "$c"}, {"$unwind": "$d"}, {"$unwind": "$e"},
        {"$match": {"a": -1}},
    ])
}

#[test]
fn pipelines_end_when_their_client_leaves() {
    let server = TestServer::new();
    server.database("db", &[json!({"_id": "a", "a": (0..1000).collect::<Vec<_>>()})]);
    send_and_leave(&server, "/db/_aggregate", &json!({"pipeline": endless_stages()}), "pipeline");
    let mut collected = endless_stages();
    collected[6] = json!({"$count": "n"});
    send_and_leave(&server, "/db/_aggregate", &json!({"pipeline": collected}), "pipeline");
}

#[test]
fn queries_end_when_their_client_leaves() {
    let server = TestServer::new();
    let text = |n: usize| (0..20_000).map(|at| if (at * n) % 7 < 3 { 'a' } else { 'b' }).collect::<String>();
    let documents: Vec<Value> = (1..=1000).map(|n| json!({"_id": n.to_string(), "s": text(n)})).collect();
    server.database("db", &documents);
    // Each of these patterns takes a text some milliseconds at least: minutes in all.
    let slow = |n: u64| json!({"s": {"$regex": format!("a[ab]{{{}}}c", 300 + n)}});
    let query = json!({"selector": {"$or": (0..50).map(slow).collect::<Vec<_>>()}});
    send_and_leave(&server, "/db/_find", &query, "find");
}

#[test]
fn pipelines_end_at_the_time_limit() {
    let query_time = Some(Duration::from_millis(200));
    let server = TestServer::with(|config| Config { limits: Limits { query_time, ..config.limits }, ..config });
    server.database("db", &[json!({"_id": "a", "a": (0..1000).collect::<Vec<_>>()})]);
    let answer = server.post("/db/_aggregate", &json!({"pipeline": endless_stages()}));
    assert_eq!(answer.status, 408, "{}", answer.text);
    assert!(answer.json()["reason"].as_str().unwrap().contains("took longer than its 200 ms"), "{}", answer.text);
}

#[test]
fn views_are_updated_beyond_the_time_limit_of_queries() {
    let query_time = Some(Duration::from_millis(500));
    let server = TestServer::with(|config| Config { limits: Limits { query_time, ..config.limits }, ..config });
    let documents: Vec<Value> = (0..40).map(|n| json!({"_id": format!("{n:02}"), "n": n})).collect();
    server.database("db", &documents);
    let map = "function (doc) { var n = 0; for (var i = 0; i < 1000000; i++) { n += i % 7; } emit(doc.n, n); }";
    server.design("db", "d", json!({"views": {"v": {"map": map, "reduce": "_count"}}}));
    let begun = Instant::now();
    let mut refused_count = 0;
    let answer = loop {
        let answer = server.get("/db/_design/d/_view/v?reduce=false");
        if answer.status == 200 {
            break answer;
        }
        assert_eq!(answer.status, 408, "{}", answer.text);
        assert!(answer.json()["reason"].as_str().unwrap().contains("took longer than its 500 ms"), "{}", answer.text);
        assert!(begun.elapsed() < TIMEOUT, "the view is never ready");
        refused_count += 1;
    };
    println!("refused {refused_count} times, then ready after {:?}", begun.elapsed());
    assert_eq!(answer.json()["rows"].as_array().unwrap().len(), documents.len());
}
