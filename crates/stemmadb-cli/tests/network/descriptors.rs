//! A server that may open 64 descriptors, asked by 500 connections for 50 databases, refuses clearly, loses nothing, and recovers.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::client::Client;
use crate::random::{Random, seed};
use crate::server::{Server, Taken, until};

const DATABASES: usize = 50;
const CONNECTIONS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(300);

/// Connections that say the beginning of a request, and wait. The kernel keeps some until they are accepted, and no more of them.
fn hold(server: &Server, count: usize) -> Vec<TcpStream> {
    let patience = Duration::from_millis(10);
    let streams = (0..count).filter_map(|_| TcpStream::connect_timeout(&server.address(), patience).ok());
    streams
        .map(|mut stream| {
            // One that was closed already is one that was refused.
            stream.write_all(b"GET /_up HTTP/1.1\r\n").ok();
            stream
        })
        .collect()
}

#[test]
fn without_descriptors_it_refuses_clearly_and_recovers() {
    let mut random = Random::new(seed("descriptors"));
    let place = tempfile::tempdir().unwrap();
    let server = Server::start_within(place.path(), &["--limits-head-timeout", "2s"], "ulimit -n 64;");
    let mut acknowledged = BTreeSet::new();
    let mut refusals = Vec::new();
    // Each database takes some descriptors: soon there are none.
    let mut client = server.client();
    for number in 0..DATABASES {
        for (path, body) in [(format!("/d{number}"), None), (format!("/d{number}/doc"), Some(json!({"n": number})))] {
            match client.ask("PUT", &path, body.as_ref()) {
                Ok(answer) if answer.is_good() => {
                    acknowledged.insert(path);
                }
                Ok(answer) => refusals.push(answer),
                Err(_) => {}
            }
        }
    }
    let held = hold(&server, CONNECTIONS);
    for _ in 0..20 {
        let path = format!("/d0/r{}", random.next());
        let mut another = Client::new(server.address()).patience(Duration::from_millis(200));
        if another.ask("PUT", &path, Some(&json!({}))).is_ok_and(|answer| answer.is_good()) {
            acknowledged.insert(path);
        }
    }
    let taken = Taken::of(server.pid());
    assert!(taken.descriptor_count > 50 && !refusals.is_empty(), "there were enough: {taken:?}");
    for refused in &refusals {
        assert!(matches!(refused.status, 404 | 500 | 503), "{}", refused.shown());
        assert!(refused.json()["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{}", refused.shown());
    }
    println!(
        "descriptors: {} acknowledged, {} refused: {:?}",
        acknowledged.len(),
        refusals.len(),
        refusals.first().map(crate::client::Answer::shown)
    );
    drop(held);
    until("it answers again", PATIENCE, || {
        let asked = Client::new(server.address()).patience(Duration::from_secs(2)).ask("GET", "/_up", None);
        asked.is_ok_and(|answer| answer.is_good())
    });
    assert!(acknowledged.len() > 10, "nothing was acknowledged");
    server.assert_recovers(&acknowledged, DATABASES);
}
