//! A server under mixed load for long takes up no more than it did after it had warmed up.
//!
//! Writers, readers, queries, views, feeds and live queries that are opened and closed, files, a replication, compaction in between; what the process takes
//! up is read from `/proc`. `STEMMA_SOAK_SECONDS` says how long (short: 8, without a verdict on trends), `STEMMA_SOAK_TABLE` where to
//! write the samples.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, rev};
use crate::random::{Random, seed, setting};
use crate::server::{Server, Taken, text, until};

/// Documents that are there at once, about.
const DOCUMENTS: u64 = 3000;
const WORKERS: usize = 4;
/// Ancestors that are known of each document: as many are soon there, and from then on forgotten.
const REVS_LIMIT: u64 = 100;
/// From here on a trend is told from warming up.
const LONG: Duration = Duration::from_secs(300);

/// What a server takes up at a moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    taken: Taken,
    file_bytes: u64,
    requests: u64,
}

/// The bytes of all files below a directory, as they are on the disk.
fn bytes_below(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = directory.read_dir() else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // It was removed meanwhile.
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
    fn run(&mut self, over: &AtomicBool, pause: Duration) {
        while !over.load(Ordering::Relaxed) {
            self.step();
            self.requests.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(pause);
        }
    }

    /// A document of a skewed choice: some are written often.
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
            92..95 => self.begin("/db/_changes?feed=continuous&since=now&heartbeat=1000"),
            95..97 => self.begin("/db/_changes?feed=eventsource&since=now"),
            97..99 => self.watch(),
            _ => self.read("/copy/_all_docs?limit=20"),
        }
    }

    fn write(&mut self, id: &str) {
        let read = self.client.must("GET", &format!("/db/{id}"), None);
        let query = if read.status == 200 { rev(text(&read.json(), "/_rev")) } else { String::new() };
        let length = self.random.below(if self.random.clone().percent(2) { 60_000 } else { 1200 }) as usize;
        let body =
            json!({"kind": self.random.below(20), "price": self.random.below(10_000), "text": "x".repeat(length)});
        let answer = self.client.must("PUT", &format!("/db/{id}{query}"), Some(&body));
        assert!(matches!(answer.status, 201 | 409), "{}", answer.shown());
    }

    fn delete(&mut self, id: &str) {
        let read = self.client.must("GET", &format!("/db/{id}"), None);
        if read.status == 200 {
            let query = rev(text(&read.json(), "/_rev"));
            let answer = self.client.must("DELETE", &format!("/db/{id}{query}"), None);
            assert!(matches!(answer.status, 200 | 404 | 409), "{}", answer.shown());
        }
    }

    fn attach(&mut self, id: &str) {
        let read = self.client.must("GET", &format!("/db/{id}"), None);
        let query = if read.status == 200 { rev(text(&read.json(), "/_rev")) } else { String::new() };
        let (length, mut random) = (self.random.below(100_000), self.random.fork());
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let answer = self.client.send("PUT", &format!("/db/{id}/file{query}"), Some("image/png"), &bytes);
        assert!(matches!(answer.expect("the server runs").status, 201 | 409));
    }

    fn read(&mut self, path: &str) {
        let answer = self.client.must("GET", path, None);
        assert!(matches!(answer.status, 200 | 404), "{path}: {}", answer.shown());
    }

    fn find(&mut self) {
        let least = self.random.below(9000);
        let selector = json!({"kind": self.random.below(20), "price": {"$gte": least, "$lt": least + 500}});
        self.client.good(
            "POST",
            "/db/_find",
            Some(&json!({"selector": selector, "sort": [{"price": "asc"}], "limit": 25})),
        );
    }

    /// Begins something that would go on for ever, hears its beginning, and hangs up.
    fn begin(&mut self, path: &str) {
        self.server.client().hear("GET", path, None).expect("the server runs");
    }

    fn watch(&mut self) {
        let query = json!({"selector": {"kind": self.random.below(20)}, "limit": 10});
        self.server.client().hear("POST", "/db/_watch", Some(&query)).expect("the server runs");
    }
}

/// What stays as it is meanwhile: databases, a view, an index, a replication.
fn prepare(server: &Server) {
    let mut client = server.client();
    for name in ["db", "copy", "_replicator"] {
        client.good("PUT", &format!("/{name}"), None);
    }
    // With 1,000, which is what there is without this, histories grow for longer than an hour.
    for name in ["db", "copy"] {
        client.good("PUT", &format!("/{name}/_revs_limit"), Some(&json!(REVS_LIMIT)));
    }
    let views =
        json!({"views": {"by_kind": {"map": "function (doc) { emit(doc.kind, doc.price) }", "reduce": "_stats"}}});
    client.good("PUT", "/db/_design/views", Some(&views));
    client.good("POST", "/db/_index", Some(&json!({"index": {"fields": ["kind", "price"]}})));
    client.good("PUT", "/_replicator/copy", Some(&json!({"source": "db", "target": "copy", "continuous": true})));
}

fn sample(server: &Server, begun: Instant, requests: &AtomicU64) -> Sample {
    Sample {
        at: begun.elapsed(),
        taken: Taken::of(server.pid()),
        file_bytes: bytes_below(&server.databases()),
        requests: requests.load(Ordering::Relaxed),
    }
}

/// Samples while the load goes on; both databases are compacted in between.
fn load(server: &Server, seconds: u64, random: &mut Random) -> Vec<Sample> {
    let (requests, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let pause = Duration::from_millis(setting("STEMMA_SOAK_PAUSE_MS", 4));
    let workers: Vec<Random> = (0..WORKERS).map(|_| random.fork()).collect();
    std::thread::scope(|scope| {
        for random in workers {
            let (requests, over) = (&requests, &over);
            scope.spawn(move || Worker { server, client: server.client(), random, requests }.run(over, pause));
        }
        let (begun, mut samples) = (Instant::now(), Vec::new());
        let every = Duration::from_secs((seconds / 120).max(1));
        while begun.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(every);
            samples.push(sample(server, begun, &requests));
            print!("{}", rows(&samples[samples.len() - 1..]));
            if samples.len() % 6 == 0 {
                for name in ["db", "copy"] {
                    // By a connection of its own: the last one was idle for too long.
                    server.client().good("POST", &format!("/{name}/_compact"), Some(&json!({})));
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        samples
    })
}

fn table(samples: &[Sample]) -> String {
    let head = "| s | requests | resident MiB | descriptors | threads | files MiB |\n|---|---|---|---|---|---|\n";
    head.to_owned() + &rows(samples)
}

fn rows(samples: &[Sample]) -> String {
    let mut text = String::new();
    for Sample { at, taken, file_bytes, requests } in samples {
        let Taken { resident_bytes, descriptor_count, thread_count, .. } = taken;
        let (resident, files) = (resident_bytes >> 20, file_bytes >> 20);
        let row =
            format!("| {} | {requests} | {resident} | {descriptor_count} | {thread_count} | {files} |", at.as_secs());
        writeln!(text, "{row}").expect("text takes all");
    }
    text
}

/// The most of something in the second half is near the most of the first.
fn assert_no_trend(what: &str, samples: &[Sample], constant: u64, of: impl Fn(&Sample) -> u64) {
    // What comes first is warming up.
    let settled = &samples[samples.len() / 6..];
    let (first, second) = settled.split_at(settled.len() / 2);
    let most = |some: &[Sample]| some.iter().map(&of).max().expect("samples");
    let (before, after) = (most(first), most(second));
    println!("soak: {what}: at most {before}, then {after}");
    assert!(after <= before + before / 5 + constant, "{what} grew from {before} to {after}:\n{}", table(samples));
}

/// Both databases have the same documents, as soon as the replication came to its end.
fn assert_replicated(server: &Server) {
    let (mut client, begun) = (server.client(), Instant::now());
    loop {
        let [source, copy] = ["db", "copy"].map(|name| client.good("GET", &format!("/{name}/_all_docs"), None));
        let rows = |listed: &Value| listed["rows"].as_array().cloned().unwrap_or_default();
        let (source, copy) = (rows(&source), rows(&copy));
        if source == copy {
            return;
        }
        if begun.elapsed() > Duration::from_secs(600) {
            let only = |these: &[Value], those: &[Value]| -> Vec<Value> {
                these.iter().filter(|row| !those.contains(row)).take(5).cloned().collect()
            };
            let job = client.good("GET", "/_scheduler/docs", None);
            panic!("source {:?}\ncopy {:?}\n{job:#}\n{}", only(&source, &copy), only(&copy, &source), server.said());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_under_load_takes_up_no_more_than_before() {
    let mut random = Random::new(seed("soak"));
    let seconds = setting("STEMMA_SOAK_SECONDS", 8);
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--log-level", "warn"]);
    prepare(&server);
    let before = Taken::of(server.pid());
    let samples = load(&server, seconds, &mut random);
    if let Ok(path) = std::env::var("STEMMA_SOAK_TABLE") {
        std::fs::write(path, table(&samples)).unwrap();
    }
    // Descriptors return: some for what was opened since, segments and script workers.
    until("connections are closed", Duration::from_secs(300), || {
        Taken::of(server.pid()).descriptor_count <= before.descriptor_count + 60
    });
    assert_replicated(&server);
    if Duration::from_secs(seconds) >= LONG {
        assert_no_trend("resident bytes", &samples, 32 << 20, |sample| sample.taken.resident_bytes);
        assert_no_trend("descriptors", &samples, 20, |sample| sample.taken.descriptor_count);
        assert_no_trend("threads", &samples, 8, |sample| sample.taken.thread_count);
        assert_no_trend("bytes of files", &samples, 64 << 20, |sample| sample.file_bytes);
    }
    let last = samples.last().expect("samples");
    println!(
        "soak: {seconds} s, {} requests, {} MiB resident at most, {} descriptors before and {} after",
        last.requests,
        last.taken.resident_bytes_most >> 20,
        before.descriptor_count,
        Taken::of(server.pid()).descriptor_count
    );
    assert!(last.requests > seconds * 20, "the load was none: {} requests", last.requests);
    server.assert_calm();
    server.stop();
    server.check();
}

/// What finds nothing wrong where something is, is no test.
mod teeth {
    use super::*;

    fn samples(resident: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |at| {
            let resident_bytes = resident(at);
            let taken = Taken {
                resident_bytes,
                resident_bytes_most: resident_bytes,
                anonymous_bytes: resident_bytes,
                thread_count: 9,
                descriptor_count: 9,
            };
            Sample { at: Duration::from_secs(at), taken, file_bytes: 0, requests: at }
        };
        (0..100).map(sample).collect()
    }

    fn verify(samples: &[Sample]) {
        assert_no_trend("resident bytes", samples, 1 << 20, |sample| sample.taken.resident_bytes);
    }

    #[test]
    fn what_rises_and_falls_or_warms_up_is_accepted() {
        verify(&samples(|at| (100 + at % 7) << 20));
        verify(&samples(|at| at.min(10) << 20));
    }

    #[test]
    #[should_panic(expected = "resident bytes grew")]
    fn what_grows_for_ever_is_found() {
        verify(&samples(|at| (50 + at) << 20));
    }
}
