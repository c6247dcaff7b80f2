//! Starting a server, its banner, and stopping it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use stemmadb_server::{Config, Server};

/// Sends a request over a new connection; returns the whole response.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn config(directory: &tempfile::TempDir) -> Config {
    Config { address: SocketAddr::from(([127, 0, 0, 1], 0)), ..Config::new(directory.path()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_reports_its_identity() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(config(&directory)).await.unwrap();
    let address = server.address();
    let answer = tokio::task::spawn_blocking(move || ask(address, "GET /")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\"couchdb\":\"Welcome\"") && answer.contains("\"uuid\":\""), "{answer}");
    let refused = tokio::task::spawn_blocking(move || ask(address, "PUT /db")).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{refused}");
    server.stop().await;
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn remote_access_requires_an_administrator() {
    let directory = tempfile::tempdir().unwrap();
    let open = Config { address: SocketAddr::from(([0, 0, 0, 0], 0)), ..config(&directory) };
    assert!(Server::start(open).await.is_err());
}
