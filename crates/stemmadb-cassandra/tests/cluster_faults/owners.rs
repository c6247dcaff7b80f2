//! Owners that are killed, or paused while another one takes over.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::testing::Random;
use stemmadb::{Database, Options};
use stemmadb_cassandra::{Claim, Cluster};
use tempfile::TempDir;
use uuid::Uuid;

use super::{node, number_from, options};

/// The log that a child owns.
const CHILD: &str = "STEMMA_CLUSTER_CHILD";

const THREADS: u64 = 3;

fn open(cluster: &Cluster, log: &str, directory: &TempDir) -> stemmadb::Result<Database> {
    let options = Options::new().log_storage(cluster.log(log)).segment_bytes(256 << 10).memory_bytes(1 << 20);
    Database::open_with(directory.path(), options)
}

/// The child: each thread inserts its next document, and reports what was acknowledged, until it is killed or deposed.
#[test]
fn child() {
    let (Ok(log), Some(node)) = (std::env::var(CHILD), node()) else { return };
    let directory = TempDir::new().unwrap();
    let db = open(&Cluster::connect(options(&node)).unwrap(), &log, &directory).unwrap();
    let next = |thread: u64| {
        let counter = db.get(&format!("counter-{thread}")).unwrap();
        counter.map_or(1, |counter| counter.get("n").unwrap().unwrap().as_u64().unwrap() + 1)
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, first) = (db.clone(), next(thread));
            scope.spawn(move || {
                for number in first.. {
                    let written = db.write(|transaction| {
                        let body = json!({"thread": thread, "n": number, "fill": "x".repeat(number as usize % 700)});
                        transaction.insert(&format!("{thread}-{number}"), &body)?;
                        transaction.upsert(&format!("counter-{thread}"), &json!({"n": number}))
                    });
                    let line = match written {
                        Ok(_) => format!("ack {thread} {number}\n"),
                        Err(_) => "end\n".to_owned(),
                    };
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                    if line == "end\n" {
                        return;
                    }
                }
            });
        }
    });
}

/// A running child, and what it has acknowledged.
struct Owner {
    child: Child,
    acknowledged: Arc<Mutex<BTreeMap<u64, u64>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Owner {
    fn start(log: &str) -> Self {
        Self::start_as("owners::child", CHILD, log)
    }

    fn start_as(test: &str, variable: &str, log: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(variable, log)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let acknowledged = Arc::new(Mutex::new(BTreeMap::new()));
        let reported = acknowledged.clone();
        let reader = std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let Some(at) = line.find("ack ") else { continue };
                let numbers: Vec<u64> = line[at + 4..].split(' ').filter_map(|word| word.parse().ok()).collect();
                if let [thread, number] = numbers[..] {
                    reported.lock().unwrap().insert(thread, number);
                }
            }
        });
        Owner { child, acknowledged, reader }
    }

    fn acknowledged(&self) -> BTreeMap<u64, u64> {
        self.acknowledged.lock().unwrap().clone()
    }

    /// Waits until something was acknowledged, and a little longer.
    fn run(&self, random: &mut Random) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.acknowledged().is_empty() {
            assert!(Instant::now() < deadline, "the owner wrote nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(random.below(700)));
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Kills it, or waits for its end; returns all that it acknowledged.
    fn end(mut self, is_killed: bool) -> BTreeMap<u64, u64> {
        if is_killed {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
        self.reader.join().unwrap();
        self.acknowledged.lock().unwrap().clone()
    }
}

/// Checks that everything acknowledged is there once; returns what is there.
fn check(db: &Database, acknowledged: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for thread in 0..THREADS {
        let counter = db.get(&format!("counter-{thread}")).unwrap();
        let reached = counter.map_or(0, |counter| counter.get("n").unwrap().unwrap().as_u64().unwrap());
        let promised = acknowledged.get(&thread).copied().unwrap_or(0);
        assert!(reached >= promised, "thread {thread}: {promised} was acknowledged, {reached} is there");
        assert!(reached <= promised + 1, "thread {thread}: {reached} is there, but only {promised} was acknowledged");
        assert_eq!(db.find(stemmadb::field("thread").eq(thread)).count().unwrap(), reached);
        found.insert(thread, reached);
    }
    assert!(db.maintenance().check().unwrap().is_sound());
    found
}

#[test]
fn owners_that_are_killed_or_paused_lose_nothing() {
    let Some(node) = node() else { return };
    let cluster = Cluster::connect(options(&node)).unwrap();
    let (mut random, log) = (Random::new(number_from("STEMMA_CLUSTER_SEED", 1)), Uuid::new_v4().simple().to_string());
    let (mut floor, mut paused_count) = (BTreeMap::<u64, u64>::new(), 0);
    let kills = number_from("STEMMA_CLUSTER_KILLS", 6);
    for round in 0..kills {
        let owner = Owner::start(&log);
        owner.run(&mut random);
        let directory = TempDir::new().unwrap();
        let is_paused = random.chance(500);
        let (mut acknowledged, db) = if is_paused {
            paused_count += 1;
            owner.signal("-STOP");
            // What was written before is on the pipe.
            let db = open(&cluster, &log, &directory).unwrap();
            db.insert(&format!("round-{round}"), &json!({})).unwrap();
            owner.signal("-CONT");
            // It finds out that it was deposed, and ends.
            (owner.end(false), db)
        } else {
            let acknowledged = owner.end(true);
            (acknowledged, open(&cluster, &log, &directory).unwrap())
        };
        for (thread, number) in &floor {
            let last = acknowledged.entry(*thread).or_insert(*number);
            *last = (*last).max(*number);
        }
        floor = check(&db, &acknowledged);
        assert_eq!(db.get(&format!("round-{round}")).unwrap().is_some(), is_paused);
    }
    let transactions: u64 = floor.values().sum();
    println!("cluster owners: {kills} owners, {paused_count} of them paused; {transactions} transactions, none lost");
}

/// The database that a reading child owns.
const READER: &str = "STEMMA_CLUSTER_READER";

const LEASE: Duration = Duration::from_secs(3);

/// The child: reads a document of its database again and again, and prints what it found if the database was still its
/// own afterwards.
#[test]
fn reader() {
    let (Ok(name), Some(node)) = (std::env::var(READER), node()) else { return };
    let member = Cluster::connect(options(&node)).unwrap().join("reader:1", LEASE).unwrap();
    let ownership = loop {
        match member.claim(&name).unwrap() {
            Claim::Owned(ownership) => break ownership,
            Claim::Elsewhere(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let directory = TempDir::new().unwrap();
    let db = Database::open_with(directory.path(), Options::new().log_storage(ownership.log())).unwrap();
    loop {
        let found = db.get("value").unwrap().unwrap().get("n").unwrap().unwrap().as_u64().unwrap();
        if ownership.is_current() {
            std::io::stdout().write_all(format!("ack 0 {found}\n").as_bytes()).unwrap();
        } else {
            std::io::stdout().write_all(b"ack 1 1\n").unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn paused_owner_answers_no_read_with_what_was_replaced() {
    let Some(node) = node() else { return };
    let cluster = Cluster::connect(options(&node)).unwrap();
    for round in 0..number_from("STEMMA_CLUSTER_KILLS", 6).div_ceil(6) {
        let name = Uuid::new_v4().simple().to_string();
        let directory = TempDir::new().unwrap();
        let db = open(&cluster, &name, &directory).unwrap();
        db.insert("value", &json!({"n": 1})).unwrap();
        db.close().unwrap();
        let owner = Owner::start_as("owners::reader", READER, &name);
        let wait_for = |thread: u64| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !owner.acknowledged().contains_key(&thread) {
                assert!(Instant::now() < deadline, "round {round}: the reader does not go on");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for(0);
        owner.signal("-STOP");
        let member = cluster.join("writer:1", LEASE).unwrap();
        let begun = Instant::now();
        let ownership = loop {
            match member.claim(&name) {
                Ok(Claim::Owned(ownership)) => break ownership,
                Ok(Claim::Elsewhere(address)) => assert_eq!(address, "reader:1"),
                // On a busy machine, its own lease may have ended.
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the database of a paused owner can't be claimed");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(begun.elapsed() >= LEASE / 2, "it was claimed within the lease");
        let directory = TempDir::new().unwrap();
        let db = Database::open_with(directory.path(), Options::new().log_storage(ownership.log())).unwrap();
        db.upsert("value", &json!({"n": 2})).unwrap();
        // What the reader printed before has been read by now; from here on, an old value is wrong.
        std::thread::sleep(Duration::from_millis(100));
        owner.acknowledged.lock().unwrap().clear();
        owner.signal("-CONT");
        wait_for(1);
        std::thread::sleep(LEASE);
        assert!(ownership.is_current());
        let found = owner.end(true);
        assert_eq!(found.get(&0), None, "round {round}: a paused owner answered a read");
    }
}
