//! Thousands of feeds and live queries on a server: each receives what concerns it, and threads stay few.
//!
//! Half of the connections are continuous feeds of `_changes`, each with a filter by one id, except a few that receive
//! everything; the other half are live queries of one value each. Documents are written one by one. `STEMMA_FEEDS` sets
//! the number of each (default 200), `STEMMA_FEED_WRITES` the number of writes (default 1,000), `STEMMA_FEED_RATE` the
//! writes per second (default: as fast as possible). The server's processor time is printed.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use crate::client::{PASSWORD, rev};
use crate::random::env_u64;
use crate::server::{ResourceUsage, Server, str_at, wait_until};

const WRITERS: u64 = 4;
/// The feeds without a filter.
const UNFILTERED: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(600);
/// The most threads besides the runtime's workers: background pool, first reads of feeds, writers, and some to spare.
/// If each feed and each live query held a thread, there would be more than twice as many.
const THREADS_MAX: u64 = 160;

/// A connection that receives rows.
struct Stream {
    stream: TcpStream,
    received: String,
}

impl Stream {
    fn open(server: &Server, request: &str) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let credentials = BASE64_STANDARD.encode(format!("admin:{PASSWORD}"));
        let head = format!("GET {request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Stream { stream, received: String::new() }
    }

    /// Reads what has arrived.
    fn read(&mut self) {
        let mut buffer = [0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the response ended: {}", self.received),
                Ok(count) => self.received.push_str(&String::from_utf8_lossy(&buffer[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}: {}", self.received),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.read();
        assert!(self.received.is_empty() || self.received.starts_with("HTTP/1.1 200"), "{}", self.received);
        !self.received.is_empty()
    }

    /// Whether it has received a row of each revision.
    fn has_all(&mut self, revisions: &HashMap<u64, String>) -> bool {
        self.read();
        let received: HashSet<&str> =
            self.received.split("{\"rev\":\"").filter_map(|row| row.split('"').next()).collect();
        revisions.values().all(|revision| received.contains(revision.as_str()))
    }

    fn has(&mut self, text: &str) -> bool {
        self.received.contains(text) || {
            self.read();
            self.received.contains(text)
        }
    }
}

/// The processor time of a process, from `/proc`.
pub(crate) fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Writes documents in turn, and returns the last revision of each.
fn write(server: &Server, feed_count: u64, write_count: u64, rate: u64) -> HashMap<u64, String> {
    let write_part = |writer: u64| {
        let (begun, mut client, mut revisions) = (Instant::now(), server.client(), HashMap::<u64, String>::new());
        let documents: Vec<u64> = (writer..feed_count).step_by(WRITERS as usize).collect();
        for (number, document) in (0..write_count / WRITERS).zip(documents.iter().cycle()) {
            if let Some(due) = (number * WRITERS * 1_000_000).checked_div(rate) {
                std::thread::sleep(Duration::from_micros(due).saturating_sub(begun.elapsed()));
            }
            let query = revisions.get(document).map(|revision| rev(revision)).unwrap_or_default();
            let body = json!({"k": document, "text": "x".repeat(200)});
            let answer = client.expect_success("PUT", &format!("/db/d{document}{query}"), Some(&body));
            revisions.insert(*document, str_at(&answer, "/rev").to_owned());
        }
        revisions
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write_part(writer))).collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

/// Opens the feeds and the live queries.
fn open_streams(server: &Server, feed_count: u64) -> (Vec<Stream>, Vec<Stream>) {
    let feed = |number: u64| {
        let filter = format!("&filter=_doc_ids&doc_ids=[%22d{number}%22]");
        let filter = if number < UNFILTERED { "" } else { &filter };
        Stream::open(server, &format!("/db/_changes?feed=continuous&since=now&heartbeat=60000{filter}"))
    };
    let watch = |number: u64| Stream::open(server, &format!("/db/_watch?selector={{%22k%22:{number}}}"));
    let mut feeds: Vec<_> = (0..feed_count).map(feed).collect();
    let mut watches: Vec<_> = (0..feed_count).map(watch).collect();
    for stream in feeds.iter_mut().chain(&mut watches) {
        wait_until("the stream is open", TIMEOUT, || stream.is_open());
    }
    for watch in &mut watches {
        wait_until("the initial result", TIMEOUT, || watch.has("\"state\""));
    }
    (feeds, watches)
}

#[test]
fn thousands_of_feeds_take_few_threads() {
    let feed_count = env_u64("STEMMA_FEEDS", 200);
    let (write_count, rate) = (env_u64("STEMMA_FEED_WRITES", 1_000), env_u64("STEMMA_FEED_RATE", 0));
    let directory = tempfile::tempdir().unwrap();
    let most = (2 * feed_count + 50).to_string();
    let limits = [
        "--limits-connection-count",
        &most,
        "--limits-connection-count-per-address",
        &most,
        "--limits-watch-count",
        &most,
    ];
    let server = Server::start(directory.path(), &limits);
    server.client().expect_success("PUT", "/db", None);
    let (mut feeds, mut watches) = open_streams(&server, feed_count);
    let thread_max = std::thread::available_parallelism().map_or(1, usize::from) as u64 + THREADS_MAX;
    wait_until("the threads that opened them end", TIMEOUT, || {
        ResourceUsage::of(server.pid()).thread_count <= thread_max
    });
    let (before, begun) = (processor_time(server.pid()), Instant::now());
    let is_done = AtomicBool::new(false);
    let (unfiltered, filtered) = feeds.split_at_mut(UNFILTERED as usize);
    let (revisions, thread_count) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(ResourceUsage::of(server.pid()).thread_count);
                unfiltered.iter_mut().for_each(Stream::read);
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let revisions = write(&server, feed_count, write_count, rate);
        for (document, revision) in &revisions {
            if let Some(feed) = document.checked_sub(UNFILTERED) {
                let feed = &mut filtered[usize::try_from(feed).unwrap()];
                wait_until("the feed has the row", TIMEOUT, || feed.has(revision));
            }
            let watch = &mut watches[usize::try_from(*document).unwrap()];
            wait_until("the live query has the row", TIMEOUT, || watch.has(revision));
        }
        is_done.store(true, Ordering::Relaxed);
        (revisions, sampler.join().unwrap())
    });
    for feed in unfiltered {
        wait_until("the feed has all rows", TIMEOUT, || feed.has_all(&revisions));
    }
    let (elapsed, usage) = (begun.elapsed(), ResourceUsage::of(server.pid()));
    let used = processor_time(server.pid()) - before;
    println!(
        "feeds: {feed_count} feeds and {feed_count} live queries, {write_count} writes of {} documents in {elapsed:?}: \
         {used:?} of processor time ({:.0} % of a core), at most {thread_count} threads, {} MB resident, \
         {} descriptors",
        revisions.len(),
        100.0 * used.as_secs_f64() / elapsed.as_secs_f64(),
        usage.resident_bytes >> 20,
        usage.descriptor_count
    );
    assert!(thread_count <= thread_max, "{thread_count} threads");
    // A feed receives only what it asked for.
    let other = feeds.last().unwrap().received.matches("\"id\":\"d").count();
    let own = feeds.last().unwrap().received.matches(&format!("\"id\":\"d{}\"", feed_count - 1)).count();
    assert_eq!(other, own);
    server.assert_no_panic();
}
