//! Soak test: resource usage of a server does not grow under sustained mixed load.
//!
//! The load has writes, reads, queries, views, feeds and live queries that are opened and closed, attachments, a
//! replication, and compactions. Resource usage is read from `/proc`. `STEMMA_SOAK_SECONDS` sets the duration (default
//! 8, too short to check trends), `STEMMA_SOAK_TABLE` the file for the samples.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, rev};
use crate::random::{Random, env_u64, seed};
use crate::server::{ResourceUsage, Server, str_at, wait_until};

/// Approximate number of documents.
const DOCUMENTS: u64 = 3000;
const WORKERS: usize = 4;
/// Revision limit of each document: reached early, so that histories stop growing.
const REVS_LIMIT: u64 = 100;
/// Minimum duration for checking trends; a shorter run is mostly warm-up.
const TREND_DURATION_MIN: Duration = Duration::from_secs(300);

/// Resource usage of the server at one time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    usage: ResourceUsage,
    file_bytes: u64,
    requests: u64,
}

/// Disk usage of all files below a directory, in bytes.
fn bytes_below(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = directory.read_dir() else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        // Removed in the meantime.
        Err(_) => 0,
    });
    sizes.sum()
}

struct Worker<'a> {
    server: &'a Server,
    client: Client,
    random: Random,
    requests: &'a AtomicU64,
}

impl Worker<'_> {
    fn run(&mut self, stop: &AtomicBool, pause: Duration) {
        while !stop.load(Ordering::Relaxed) {
            self.step();
            self.requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(pause);
        }
    }

    /// A random id; a tenth of the documents is chosen more often.
    fn id(&mut self) -> String {
        let bound = if self.random.percent(50) { DOCUMENTS / 10 } else { DOCUMENTS };
        format!("d{:05}", self.random.below(bound))
    }

    fn step(&mut self) {
        let id = self.id();
        match self.random.below(100) {
            0..35 => self.write(&id),
            35..45 => self.delete(&id),
            45..50 => self.attach(&id),
            50..70 => self.read(&format!("/db/{id}")),
            70..78 => self.find(),
            78..83 => self.read("/db/_design/views/_view/by_kind?group=true"),
            83..86 => self.read("/db/_all_docs?limit=50&include_docs=true&startkey=%22d01%22"),
            86..89 => self.read("/db/_changes?limit=100&descending=true"),
            89..92 => self.read("/db/_changes?feed=longpoll&timeout=50&since=now"),
            92..95 => self.open_stream("/db/_changes?feed=continuous&since=now&heartbeat=1000"),
            95..97 => self.open_stream("/db/_changes?feed=eventsource&since=now"),
            97..99 => self.watch(),
            _ => self.read("/copy/_all_docs?limit=20"),
        }
    }

    fn write(&mut self, id: &str) {
        let read = self.client.expect_response("GET", &format!("/db/{id}"), None);
        let query = if read.status == 200 { rev(str_at(&read.json(), "/_rev")) } else { String::new() };
        let length = self.random.below(if self.random.clone().percent(2) { 60_000 } else { 1200 }) as usize;
        let body =
            json!({"kind": self.random.below(20), "price": self.random.below(10_000), "text": "x".repeat(length)});
        let answer = self.client.expect_response("PUT", &format!("/db/{id}{query}"), Some(&body));
        assert!(matches!(answer.status, 201 | 409), "{}", answer.summary());
    }

    fn delete(&mut self, id: &str) {
        let read = self.client.expect_response("GET", &format!("/db/{id}"), None);
        if read.status == 200 {
            let query = rev(str_at(&read.json(), "/_rev"));
            let answer = self.client.expect_response("DELETE", &format!("/db/{id}{query}"), None);
            assert!(matches!(answer.status, 200 | 404 | 409), "{}", answer.summary());
        }
    }

    fn attach(&mut self, id: &str) {
        let read = self.client.expect_response("GET", &format!("/db/{id}"), None);
        let query = if read.status == 200 { rev(str_at(&read.json(), "/_rev")) } else { String::new() };
        let (length, mut random) = (self.random.below(100_000), self.random.fork());
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let answer = self.client.send("PUT", &format!("/db/{id}/file{query}"), Some("image/png"), &bytes);
        assert!(matches!(answer.expect("the server runs").status, 201 | 409));
    }

    fn read(&mut self, path: &str) {
        let answer = self.client.expect_response("GET", path, None);
        assert!(matches!(answer.status, 200 | 404), "{path}: {}", answer.summary());
    }

    fn find(&mut self) {
        let least = self.random.below(9000);
        let selector = json!({"kind": self.random.below(20), "price": {"$gte": least, "$lt": least + 500}});
        self.client.expect_success(
            "POST",
            "/db/_find",
            Some(&json!({"selector": selector, "sort": [{"price": "asc"}], "limit": 25})),
        );
    }

    /// Opens an endless response and disconnects after its head.
    fn open_stream(&mut self, path: &str) {
        self.server.client().open_stream("GET", path, None).expect("the server runs");
    }

    fn watch(&mut self) {
        let query = json!({"selector": {"kind": self.random.below(20)}, "limit": 10});
        self.server.client().open_stream("POST", "/db/_watch", Some(&query)).expect("the server runs");
    }
}

/// Creates databases, a view, an index and a replication.
fn prepare(server: &Server) {
    let mut client = server.client();
    for name in ["db", "copy", "_replicator"] {
        client.expect_success("PUT", &format!("/{name}"), None);
    }
    // With the default of 1,000, histories would grow for more than an hour.
    for name in ["db", "copy"] {
        client.expect_success("PUT", &format!("/{name}/_revs_limit"), Some(&json!(REVS_LIMIT)));
    }
    let views =
        json!({"views": {"by_kind": {"map": "function (doc) { emit(doc.kind, doc.price) }", "reduce": "_stats"}}});
    client.expect_success("PUT", "/db/_design/views", Some(&views));
    client.expect_success("POST", "/db/_index", Some(&json!({"index": {"fields": ["kind", "price"]}})));
    client.expect_success(
        "PUT",
        "/_replicator/copy",
        Some(&json!({"source": "db", "target": "copy", "continuous": true})),
    );
}

fn sample(server: &Server, started: Instant, requests: &AtomicU64) -> Sample {
    Sample {
        at: started.elapsed(),
        usage: ResourceUsage::of(server.pid()),
        file_bytes: bytes_below(&server.databases()),
        requests: requests.load(Ordering::Relaxed),
    }
}

/// Runs the load, takes samples, and compacts both databases periodically.
fn load(server: &Server, seconds: u64, random: &mut Random) -> Vec<Sample> {
    let (requests, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let pause = Duration::from_millis(env_u64("STEMMA_SOAK_PAUSE_MS", 4));
    let workers: Vec<Random> = (0..WORKERS).map(|_| random.fork()).collect();
    std::thread::scope(|scope| {
        for random in workers {
            let (requests, stop) = (&requests, &stop);
            scope.spawn(move || Worker { server, client: server.client(), random, requests }.run(stop, pause));
        }
        let (started, mut samples) = (Instant::now(), Vec::new());
        let interval = Duration::from_secs((seconds / 120).max(1));
        while started.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(interval);
            samples.push(sample(server, started, &requests));
            print!("{}", rows(&samples[samples.len() - 1..]));
            if samples.len() % 6 == 0 {
                for name in ["db", "copy"] {
                    // Use a new connection: an idle one would have been closed.
                    server.client().expect_success("POST", &format!("/{name}/_compact"), Some(&json!({})));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        samples
    })
}

fn table(samples: &[Sample]) -> String {
    let head = "| s | requests | resident MiB | descriptors | threads | files MiB |\n|---|---|---|---|---|---|\n";
    head.to_owned() + &rows(samples)
}

fn rows(samples: &[Sample]) -> String {
    let mut text = String::new();
    for Sample { at, usage, file_bytes, requests } in samples {
        let ResourceUsage { resident_bytes, descriptor_count, thread_count, .. } = usage;
        let (resident, files) = (resident_bytes >> 20, file_bytes >> 20);
        let row =
            format!("| {} | {requests} | {resident} | {descriptor_count} | {thread_count} | {files} |", at.as_secs());
        writeln!(text, "{row}").expect("text takes all");
    }
    text
}

/// Asserts that the maximum in the second half exceeds that in the first by at most a fifth and `constant`.
fn assert_no_trend(what: &str, samples: &[Sample], constant: u64, of: impl Fn(&Sample) -> u64) {
    // Ignore the warm-up.
    let settled = &samples[samples.len() / 6..];
    let (first, second) = settled.split_at(settled.len() / 2);
    let max = |half: &[Sample]| half.iter().map(&of).max().expect("samples");
    let (before, after) = (max(first), max(second));
    println!("soak: {what}: at most {before}, then {after}");
    assert!(after <= before + before / 5 + constant, "{what} grew from {before} to {after}:\n{}", table(samples));
}

/// Asserts that both databases have the same documents once the replication has caught up.
fn assert_replicated(server: &Server) {
    let (mut client, started) = (server.client(), Instant::now());
    loop {
        let [source, copy] =
            ["db", "copy"].map(|name| client.expect_success("GET", &format!("/{name}/_all_docs"), None));
        let rows = |listed: &Value| listed["rows"].as_array().cloned().unwrap_or_default();
        let (source, copy) = (rows(&source), rows(&copy));
        if source == copy {
            return;
        }
        if started.elapsed() > Duration::from_secs(600) {
            let missing = |rows: &[Value], other: &[Value]| -> Vec<Value> {
                rows.iter().filter(|row| !other.contains(row)).take(5).cloned().collect()
            };
            let job = client.expect_success("GET", "/_scheduler/docs", None);
            panic!(
                "source {:?}\ncopy {:?}\n{job:#}\n{}",
                missing(&source, &copy),
                missing(&copy, &source),
                server.stderr()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn resource_usage_does_not_grow_under_load() {
    let mut random = Random::new(seed("soak"));
    let seconds = env_u64("STEMMA_SOAK_SECONDS", 8);
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--log-level", "warn"]);
    prepare(&server);
    let before = ResourceUsage::of(server.pid());
    let samples = load(&server, seconds, &mut random);
    if let Ok(path) = std::env::var("STEMMA_SOAK_TABLE") {
        std::fs::write(path, table(&samples)).unwrap();
    }
    // Connections are closed. Some descriptors remain: for new segments and script workers.
    wait_until("connections are closed", Duration::from_secs(300), || {
        ResourceUsage::of(server.pid()).descriptor_count <= before.descriptor_count + 60
    });
    assert_replicated(&server);
    if Duration::from_secs(seconds) >= TREND_DURATION_MIN {
        assert_no_trend("resident bytes", &samples, 32 << 20, |sample| sample.usage.resident_bytes);
        assert_no_trend("descriptors", &samples, 20, |sample| sample.usage.descriptor_count);
        assert_no_trend("threads", &samples, 8, |sample| sample.usage.thread_count);
        assert_no_trend("bytes of files", &samples, 64 << 20, |sample| sample.file_bytes);
    }
    let last = samples.last().expect("samples");
    println!(
        "soak: {seconds} s, {} requests, {} MiB resident at most, {} descriptors before and {} after",
        last.requests,
        last.usage.peak_resident_bytes >> 20,
        before.descriptor_count,
        ResourceUsage::of(server.pid()).descriptor_count
    );
    assert!(last.requests > seconds * 20, "too little load: {} requests", last.requests);
    server.assert_no_panic();
    server.stop();
    server.check();
}

/// Tests of the trend check.
mod self_tests {
    use super::*;

    fn samples(resident: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |at| {
            let resident_bytes = resident(at);
            let usage = ResourceUsage {
                resident_bytes,
                peak_resident_bytes: resident_bytes,
                anonymous_bytes: resident_bytes,
                thread_count: 9,
                descriptor_count: 9,
            };
            Sample { at: Duration::from_secs(at), usage, file_bytes: 0, requests: at }
        };
        (0..100).map(sample).collect()
    }

    fn verify(samples: &[Sample]) {
        assert_no_trend("resident bytes", samples, 1 << 20, |sample| sample.usage.resident_bytes);
    }

    #[test]
    fn fluctuation_and_warm_up_are_accepted() {
        verify(&samples(|at| (100 + at % 7) << 20));
        verify(&samples(|at| at.min(10) << 20));
    }

    #[test]
    #[should_panic(expected = "resident bytes grew")]
    fn steady_growth_is_detected() {
        verify(&samples(|at| (50 + at) << 20));
    }
}
