//! Connections at once are bounded, of all and of one address.

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

/// Whether a connection is answered; it stays open.
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
async fn one_address_does_not_take_the_place_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let limits = Limits { connection_count_per_address: 2, ..Limits::default() };
    let config = Config { limits, address: ([127, 0, 0, 1], 0).into(), ..Config::new(directory.path()) };
    let server = Server::start(config).await.unwrap();
    let address = server.address();
    let (mut first, mut second) = (connect(address, 1).await, connect(address, 1).await);
    assert!(is_served(&mut first) && is_served(&mut second));
    assert!(!is_served(&mut connect(address, 1).await), "there are two from here already");
    let mut others = Vec::new();
    for last in [2, 3] {
        for _ in 0..2 {
            let mut other = connect(address, last).await;
            assert!(is_served(&mut other), "127.0.0.{last}");
            others.push(other);
        }
        assert!(!is_served(&mut connect(address, last).await), "127.0.0.{last}");
    }
    assert!(is_served(&mut first), "those that are open go on");
    drop(second);
    let started = Instant::now();
    while !is_served(&mut connect(address, 1).await) {
        assert!(started.elapsed() < Duration::from_secs(60), "the place of one that is gone is never given again");
    }
    drop((first, others));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_all_may_have_wait() {
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
    assert!(!waiting.is_finished(), "there was no room");
    drop(second);
    assert!(waiting.join().unwrap(), "it is served once there is room");
    drop(first);
    server.stop().await;
}
