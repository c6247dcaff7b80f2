//! Thousands of clients that say next to nothing: each takes little, nobody waits for them, and at last they are hung up on.
//!
//! `STEMMA_SLOW_CLIENTS` says how many: 5,000, or as many as files may be open, which it says then.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::client::PASSWORD;
use crate::random::setting;
use crate::server::{Server, Taken, until};

/// Files that are open beside the connections.
const OTHER_FILES: u64 = 300;
/// Heads and bodies that do not come are waited for as long: longer than it takes to connect all.
const TIME: &str = "45s";
const PATIENCE: Duration = Duration::from_secs(600);
/// What others ask meanwhile, and how long the slowest but two of a hundred may take.
const QUESTIONS: usize = 200;
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// The most that the server takes for one of them.
const BYTES_EACH_MAX: u64 = 64 << 10;

/// As many files as the system lets this process and its servers have; how many clients that is.
fn count_of_clients() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let (wanted, most) =
        (setting("STEMMA_SLOW_CLIENTS", 5_000), maximum.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES));
    if most < wanted {
        println!("crowd: only {most} clients: no more files may be open (ulimit -Hn)");
    }
    usize::try_from(wanted.min(most)).unwrap()
}

/// What a slow client has to say, and how much of it at once.
struct Speech {
    text: Vec<u8>,
    begun: usize,
}

/// A head that comes by the byte, a body that does, and a feed that nobody reads.
fn speeches() -> [Speech; 3] {
    let credentials = BASE64_STANDARD.encode(format!("admin:{PASSWORD}"));
    let head = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n");
    let slow_head = head("GET /db/a") + "X: ";
    let slow_body = head("PUT /db/slow") + "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n";
    let feed = head("GET /db/_changes?feed=continuous&heartbeat=1000") + "\r\n";
    let then =
        |begun: &str, more: &str| Speech { text: [begun, &more.repeat(10_000)].concat().into(), begun: begun.len() };
    [then(&slow_head, "x"), then(&slow_body, " "), then(&feed, "")]
}

struct Slow {
    stream: TcpStream,
    said: usize,
    /// Which of the speeches.
    kind: usize,
}

impl Slow {
    fn connect(server: &Server, kind: usize, speech: &Speech) -> Self {
        let mut stream = TcpStream::connect_timeout(&server.address(), PATIENCE).unwrap();
        stream.write_all(&speech.text[..speech.begun]).unwrap();
        stream.set_nonblocking(true).unwrap();
        Slow { stream, said: speech.begun, kind }
    }

    /// Says one byte more.
    fn go_on(&mut self, speech: &Speech) {
        if let Some(byte) = speech.text.get(self.said)
            && self.stream.write_all(&[*byte]).is_ok()
        {
            self.said += 1;
        }
    }

    /// Whether the server hung up. What it said before is passed over.
    fn is_over(&mut self) -> bool {
        loop {
            match self.stream.read(&mut [0; 1024]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

/// How long each question of somebody else takes, in ascending order.
fn times_of_others(server: &Server, mut meanwhile: impl FnMut()) -> Vec<Duration> {
    let mut client = server.client();
    let mut times: Vec<Duration> = (0..QUESTIONS)
        .map(|number| {
            let begun = Instant::now();
            match number % 4 {
                0 => client.good("PUT", &format!("/db/quick-{number}"), Some(&json!({"n": number}))),
                _ => client.good("GET", "/db/a", None),
            };
            let time = begun.elapsed();
            if number % 20 == 0 {
                meanwhile();
            }
            time
        })
        .collect();
    times.sort();
    times
}

#[test]
fn thousands_of_slow_clients_take_little_and_are_hung_up_on() {
    let count = count_of_clients();
    let place = tempfile::tempdir().unwrap();
    let limits = ["--limits-connection-count=9000", "--limits-connection-count-per-address=9000"];
    let times = ["--limits-head-timeout", TIME, "--limits-stall-timeout", TIME];
    let mut server = Server::start(place.path(), &[&limits[..], &times, &["--log-level", "warn"]].concat());
    let mut client = server.client();
    client.good("PUT", "/db", None);
    client.good("PUT", "/db/a", Some(&json!({"n": 1})));
    let before = Taken::of(server.pid());
    let speeches = speeches();
    let mut slow: Vec<Slow> =
        (0..count).map(|number| Slow::connect(&server, number % 3, &speeches[number % 3])).collect();
    until("all are connected", PATIENCE, || {
        Taken::of(server.pid()).descriptor_count >= before.descriptor_count + count as u64
    });
    let times = times_of_others(&server, || slow.iter_mut().for_each(|slow| slow.go_on(&speeches[slow.kind])));
    let each = Taken::of(server.pid()).resident_bytes_most.saturating_sub(before.resident_bytes) / count as u64;
    let (middle, slow_time) = (times[QUESTIONS / 2], times[QUESTIONS * 98 / 100]);
    println!(
        "crowd: {count} slow clients, {each} bytes each; others are answered in {middle:?}, 2 of 100 in more than {slow_time:?}"
    );
    assert!(slow_time < ANSWER_TIME, "others waited for {slow_time:?}");
    assert!(each < BYTES_EACH_MAX, "a slow client takes {each} bytes");
    // Who sends a byte now and then is not waited for any longer than who sends nothing.
    until("who sends by the byte is hung up on", PATIENCE, || {
        slow.retain_mut(|slow| {
            slow.go_on(&speeches[slow.kind]);
            slow.kind == 2 || !slow.is_over()
        });
        std::thread::sleep(Duration::from_millis(500));
        slow.iter().all(|slow| slow.kind == 2)
    });
    // A feed has nothing to say for long, and may.
    assert!(slow.iter_mut().all(|slow| !slow.is_over()), "a feed was cut");
    drop(slow);
    until("descriptors return", PATIENCE, || Taken::of(server.pid()).descriptor_count <= before.descriptor_count + 20);
    server.assert_calm();
    server.stop();
    server.check();
}
