//! A server limited to 64 file descriptors, with 500 connections and 50 databases, returns clear errors, loses nothing,
//! and recovers.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::Client;
use crate::random::{Random, seed};
use crate::server::{ResourceUsage, Server, wait_until};

const DATABASES: usize = 50;
const CONNECTIONS: usize = 500;
const TIMEOUT: Duration = Duration::from_secs(300);

/// Opens connections that send the beginning of a request and wait. The kernel queues only some of them until they are
/// accepted.
fn open_idle_connections(server: &Server, count: usize) -> Vec<TcpStream> {
    let timeout = Duration::from_millis(10);
    let streams = (0..count).filter_map(|_| TcpStream::connect_timeout(&server.address(), timeout).ok());
    streams
        .map(|mut stream| {
            // A failed write means that the server refused the connection.
            stream.write_all(b"GET /_up HTTP/1.1\r\n").ok();
            stream
        })
        .collect()
}

#[test]
fn descriptor_exhaustion_returns_errors_and_recovers() {
    let mut random = Random::new(seed("descriptors"));
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with_prefix(directory.path(), &["--limits-head-timeout", "5s"], "ulimit -n 64;");
    let mut acknowledged = BTreeSet::new();
    let mut refusals = Vec::new();
    // Each database uses some descriptors. They don't run out: databases that are not in use are closed.
    let mut client = server.client();
    for number in 0..DATABASES {
        for (path, body) in [(format!("/d{number}"), None), (format!("/d{number}/doc"), Some(json!({"n": number})))] {
            client.expect_success("PUT", &path, body.as_ref());
            acknowledged.insert(path);
        }
    }
    // Connections do exhaust them.
    let connections = open_idle_connections(&server, CONNECTIONS);
    let mut peak = ResourceUsage::of(server.pid());
    for attempt in 0..20 {
        let path = format!("/d{}/r{}", attempt % DATABASES, random.next());
        let mut other = Client::new(server.address()).timeout(Duration::from_millis(200));
        for client in [&mut client, &mut other] {
            match client.request("PUT", &path, Some(&json!({}))) {
                Ok(answer) if answer.is_success() => drop(acknowledged.insert(path.clone())),
                Ok(answer) => refusals.push(answer),
                Err(_) => {}
            }
        }
        // The server closes idle connections after a while, so the last count can be a small one.
        let usage = ResourceUsage::of(server.pid());
        if usage.descriptor_count > peak.descriptor_count {
            peak = usage;
        }
    }
    assert!(peak.descriptor_count > 50, "descriptors did not run out: {peak:?}");
    for refused in &refusals {
        assert!(matches!(refused.status, 404 | 409 | 500 | 503), "{}", refused.summary());
        assert!(refused.json()["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{}", refused.summary());
    }
    println!(
        "descriptors: {} acknowledged, {} refused: {:?}",
        acknowledged.len(),
        refusals.len(),
        refusals.first().map(crate::client::Response::summary)
    );
    drop(connections);
    wait_until("the server answers again", TIMEOUT, || {
        let response = Client::new(server.address()).timeout(Duration::from_secs(2)).request("GET", "/_up", None);
        response.is_ok_and(|answer| answer.is_success())
    });
    assert!(acknowledged.len() > 10, "nothing was acknowledged");
    server.assert_recovers(&acknowledged, DATABASES);
}
