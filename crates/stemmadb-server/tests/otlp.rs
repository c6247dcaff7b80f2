//! Requests are reported to a collector of OpenTelemetry, as parts of their clients' traces.
#![cfg(feature = "otlp")]

#[path = "http/client.rs"]
#[expect(dead_code, reason = "the other tests' client, of which this needs a part")]
mod client;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::json;
use stemmadb_server::Config;

use client::TestServer;

/// Answers the requests of one connection, and passes on their first lines and bodies.
fn collect(stream: TcpStream, received: &Sender<(String, Vec<u8>)>) {
    let (mut lines, mut stream) = (BufReader::new(stream.try_clone().unwrap()), stream);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if lines.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            match line.trim().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body).unwrap();
        received.send((first, body)).ok();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    }
}

/// A collector: its URL, and what it receives.
fn collector() -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, received) = channel();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| collect(stream, &sender)));
    (url, received)
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

/// The bytes of an id.
fn bytes(hexadecimal: &str) -> Vec<u8> {
    (0..hexadecimal.len()).step_by(2).map(|at| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn requests_are_reported_to_the_collector() {
    let (url, received) = collector();
    let server = TestServer::with(|config| Config { otlp_endpoint: Some(url), ..config });
    server.database("db", &[json!({"_id": "hush"})]);
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let unrecorded = "5bf92f3577b34da6a3ce929d0e0e4737";
    for (trace, flags) in [(trace, "01"), (unrecorded, "00")] {
        let admin = client::basic("admin", "secret");
        let traceparent = format!("00-{trace}-{span}-{flags}");
        let headers = [("Authorization", admin.as_str()), ("traceparent", &traceparent)];
        assert_eq!(server.send("GET", "/db/hush", &headers, b"").status, 200);
    }
    assert_eq!(server.get("/db/absent").status, 404);
    // The queue is sent when the server stops.
    drop(server);
    let requests: Vec<(String, Vec<u8>)> = received.try_iter().collect();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|(first, _)| first.starts_with("POST /v1/traces HTTP/1.1")), "{requests:?}");
    let all = requests.into_iter().flat_map(|(_, body)| body).collect::<Vec<u8>>();
    let expected = ["service.name", "stemma", "GET /{db}/{doc}", "PUT /{db}", "http.response.status_code", "not_found"];
    for text in expected {
        assert!(contains(&all, text.as_bytes()), "{text} is not in {}", String::from_utf8_lossy(&all));
    }
    assert!(contains(&all, &bytes(trace)) && contains(&all, &bytes(span)), "the span is part of the client's trace");
    assert!(!contains(&all, &bytes(unrecorded)), "the client does not record this trace");
    assert!(!contains(&all, b"hush"), "spans have neither ids nor values");
}

#[test]
fn unreachable_collector_does_not_harm_requests() {
    let server = TestServer::with(|config| Config { otlp_endpoint: Some("http://127.0.0.1:1".to_owned()), ..config });
    server.database("db", &[]);
    for number in 0..3_000 {
        assert_eq!(server.get("/db").status, 200, "{number}");
    }
}
