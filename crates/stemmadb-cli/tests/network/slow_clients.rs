//! Thousands of slow clients: each uses little memory, other requests are not delayed, and stalled connections are
//! closed.
//!
//! `STEMMA_SLOW_CLIENTS` sets the number of clients (default 5,000, or fewer if the limit of open files is lower).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::client::PASSWORD;
use crate::random::env_u64;
use crate::server::{ResourceUsage, Server, wait_until};

/// Number of open files besides the connections.
const OTHER_FILES: u64 = 300;
/// Timeout of the server for request heads and bodies: longer than it takes to connect all clients.
const STALL_TIMEOUT: &str = "45s";
/// By how much the number of the server's descriptors may differ for other reasons than clients.
const OTHER_DESCRIPTORS: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(600);
/// Number of other requests sent in the meantime, and the limit for the 98th percentile of their latency.
const OTHER_REQUESTS: usize = 200;
const LATENCY_MAX: Duration = Duration::from_secs(20);
/// Maximum memory of the server per slow client.
const CLIENT_BYTES_MAX: u64 = 64 << 10;

/// Raises the limit of open files for this process and its servers; returns the number of clients it permits.
fn client_count() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (requested, permitted) =
        (env_u64("STEMMA_SLOW_CLIENTS", 5_000), maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES));
    if permitted < requested {
        println!("slow clients: only {permitted}, limited by the number of open files (ulimit -Hn)");
    }
    usize::try_from(requested.min(permitted)).unwrap()
}

/// The bytes a slow client sends, and how many of them are sent immediately.
struct SlowRequest {
    bytes: Vec<u8>,
    initial_len: usize,
}

/// A head sent byte by byte, a body sent byte by byte, and a feed that is not read.
fn slow_requests() -> [SlowRequest; 3] {
    let credentials = BASE64_STANDARD.encode(format!("admin:{PASSWORD}"));
    let head = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n");
    let slow_head = head("GET /db/a") + "X: ";
    let slow_body = head("PUT /db/slow") + "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
    let feed = head("GET /db/_changes?feed=continuous&heartbeat=1000") + "\r\n";
    let slow_request = |initial: &str, byte: &str| SlowRequest {
        bytes: [initial, &byte.repeat(10_000)].concat().into(),
        initial_len: initial.len(),
    };
    [slow_request(&slow_head, "x"), slow_request(&slow_body, " "), slow_request(&feed, "")]
}

/// A connection that sends a request slowly.
struct SlowClient {
    stream: TcpStream,
    sent_len: usize,
    /// The index of its request in [`slow_requests`].
    kind: usize,
}

impl SlowClient {
    fn connect(server: &Server, kind: usize, request: &SlowRequest) -> Self {
        let mut stream = TcpStream::connect_timeout(&server.address(), TIMEOUT).unwrap();
        stream.write_all(&request.bytes[..request.initial_len]).unwrap();
        stream.set_nonblocking(true).unwrap();
        SlowClient { stream, sent_len: request.initial_len, kind }
    }

    /// Sends one more byte.
    fn send_byte(&mut self, request: &SlowRequest) {
        if let Some(byte) = request.bytes.get(self.sent_len)
            && self.stream.write_all(&[*byte]).is_ok()
        {
            self.sent_len += 1;
        }
    }

    /// Whether the server closed the connection. Received data is discarded.
    fn is_closed(&mut self) -> bool {
        loop {
            match self.stream.read(&mut [0; 1024]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

/// Latencies of other requests, in ascending order. Calls `between` periodically.
fn latencies_of_others(server: &Server, mut between: impl FnMut()) -> Vec<Duration> {
    let mut client = server.client();
    let mut times: Vec<Duration> = (0..OTHER_REQUESTS)
        .map(|number| {
            let begun = Instant::now();
            match number % 4 {
                0 => client.expect_success("PUT", &format!("/db/quick-{number}"), Some(&json!({"n": number}))),
                _ => client.expect_success("GET", "/db/a", None),
            };
            let time = begun.elapsed();
            if number % 20 == 0 {
                between();
            }
            time
        })
        .collect();
    times.sort();
    times
}

#[test]
fn thousands_of_slow_clients_use_little_memory_and_are_closed() {
    let count = client_count();
    let directory = tempfile::tempdir().unwrap();
    let limits = ["--limits-connection-count=9000", "--limits-connection-count-per-address=9000"];
    let times = ["--limits-head-timeout", STALL_TIMEOUT, "--limits-stall-timeout", STALL_TIMEOUT];
    let mut server = Server::start(directory.path(), &[&limits[..], &times, &["--log-level", "warn"]].concat());
    let mut client = server.client();
    client.expect_success("PUT", "/db", None);
    client.expect_success("PUT", "/db/a", Some(&json!({"n": 1})));
    let before = ResourceUsage::of(server.pid());
    let requests = slow_requests();
    let mut clients: Vec<SlowClient> =
        (0..count).map(|number| SlowClient::connect(&server, number % 3, &requests[number % 3])).collect();
    wait_until("all clients to connect", TIMEOUT, || {
        // A database that becomes idle closes its files.
        ResourceUsage::of(server.pid()).descriptor_count + OTHER_DESCRIPTORS >= before.descriptor_count + count as u64
    });
    let latencies =
        latencies_of_others(&server, || clients.iter_mut().for_each(|slow| slow.send_byte(&requests[slow.kind])));
    let each = ResourceUsage::of(server.pid()).peak_resident_bytes.saturating_sub(before.resident_bytes) / count as u64;
    let (median, p98) = (latencies[OTHER_REQUESTS / 2], latencies[OTHER_REQUESTS * 98 / 100]);
    println!(
        "slow clients: {count}, {each} bytes each; latency of other requests: median {median:?}, \
         98th percentile {p98:?}"
    );
    assert!(p98 < LATENCY_MAX, "other requests took {p98:?}");
    assert!(each < CLIENT_BYTES_MAX, "a slow client uses {each} bytes");
    // Clients that send a byte now and then do not get more time than those that send nothing.
    wait_until("slow connections to be closed", TIMEOUT, || {
        clients.retain_mut(|slow| {
            slow.send_byte(&requests[slow.kind]);
            slow.kind == 2 || !slow.is_closed()
        });
        std::thread::sleep(Duration::from_millis(500));
        clients.iter().all(|slow| slow.kind == 2)
    });
    // A feed may be idle for long.
    assert!(clients.iter_mut().all(|slow| !slow.is_closed()), "a feed was closed");
    drop(clients);
    wait_until("descriptors to be closed", TIMEOUT, || {
        ResourceUsage::of(server.pid()).descriptor_count <= before.descriptor_count + OTHER_DESCRIPTORS
    });
    server.assert_no_panic();
    server.stop();
    server.check();
}
