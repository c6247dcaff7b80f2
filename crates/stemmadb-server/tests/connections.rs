//! Connection limits, in total and per address.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use stemmadb_server::{Config, Limits, Server};
use tokio::net::TcpSocket;

/// A connection from one of this machine's addresses.
async fn connect(server: SocketAddr, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))).unwrap();
    let stream = socket.connect(server).await.unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Whether a connection is served; it stays open.
fn is_served(stream: &mut TcpStream) -> bool {
    let asked = stream.write_all(b"GET /_up HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (mut answer, mut some) = (Vec::new(), [0; 1024]);
    while asked.is_ok() && !answer.ends_with(b"}\n") {
        match stream.read(&mut some) {
            Ok(count) if count > 0 => answer.extend_from_slice(&some[..count]),
            _ => break,
        }
    }
    answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_per_address_are_limited() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { connection_count_per_address: 2, ..Limits::default() };
    let config = Config { limits, address: ([127, 0, 0, 1], 0).into(), ..Config::new(directory.path()) };
    let server = Server::start(config).await.unwrap();
    let address = server.address();
    let (mut first, mut second) = (connect(address, 1).await, connect(address, 1).await);
    assert!(is_served(&mut first) && is_served(&mut second));
    assert!(!is_served(&mut connect(address, 1).await), "this address has two connections already");
    let mut others = Vec::new();
    for last in [2, 3] {
        for _ in 0..2 {
            let mut other = connect(address, last).await;
            assert!(is_served(&mut other), "127.0.0.{last}");
            others.push(other);
        }
        assert!(!is_served(&mut connect(address, last).await), "127.0.0.{last}");
    }
    assert!(is_served(&mut first), "open connections continue");
    drop(second);
    let started = Instant::now();
    while !is_served(&mut connect(address, 1).await) {
        assert!(started.elapsed() < Duration::from_secs(60), "a closed connection still counts");
    }
    drop((first, others));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_wait() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { connection_count: 2, ..Limits::default() };
    let config = Config { limits, address: ([127, 0, 0, 1], 0).into(), ..Config::new(directory.path()) };
    let server = Server::start(config).await.unwrap();
    let address = server.address();
    let (mut first, mut second) = (connect(address, 1).await, connect(address, 2).await);
    assert!(is_served(&mut first) && is_served(&mut second));
    let mut third = connect(address, 3).await;
    let waiting = std::thread::spawn(move || is_served(&mut third));
    assert!(is_served(&mut first));
    assert!(!waiting.is_finished(), "the limit was not reached");
    drop(second);
    assert!(waiting.join().unwrap(), "it is served when another connection closes");
    drop(first);
    server.stop().await;
}

/// The kernel drops attempts to connect beyond the backlog, and the clients try again only after a second or more.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_clients_connect_at_once() {
    let directory = tempfile::tempdir().unwrap();
    // The server accepts one connection; all others wait in the backlog.
    let limits = Limits { connection_count: 1, ..Limits::default() };
    let config = Config { limits, address: ([127, 0, 0, 1], 0).into(), ..Config::new(directory.path()) };
    let server = Server::start(config).await.unwrap();
    let address = server.address();
    let mut first = connect(address, 1).await;
    assert!(is_served(&mut first));
    let connecting = async {
        let mut waiting = Vec::new();
        for _ in 0..400 {
            waiting.push(connect(address, 1).await);
        }
        waiting
    };
    // Beyond the backlog, connecting fails only after minutes of attempts.
    let waiting = tokio::time::timeout(Duration::from_secs(30), connecting).await;
    assert_eq!(waiting.map(|waiting| waiting.len()), Ok(400));
    drop(first);
    server.stop().await;
}
