//! Faults of a real cluster and of its clients: appends that time out, arrive late or twice, owners that are killed or
//! paused, nodes that are killed. Nothing acknowledged is lost, nothing is applied twice, and no deposed owner
//! acknowledges anything.
//!
//! `STEMMA_CASSANDRA` names a node; without it, the tests do nothing. `STEMMA_CLUSTER_CASES` sets the number of faults
//! (default 300; the long run has 10,000), `STEMMA_CLUSTER_KILLS` that of killed and paused owners (default 6; the long
//! run has 300), and `STEMMA_CLUSTER_SECONDS` how long nodes are killed (default 0: they are not, since a node takes
//! long to start).
//!
//! Negative control: seen to fail if a new owner does not fence the segment.

mod nodes;
mod owners;
mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proxy::Faults;
use stemmadb::log_storage::{Deposed, FileId, FileState, LogStorage, NameChange, StoredFile};
use stemmadb::testing::Random;
use stemmadb_cassandra::{CassandraLog, Cluster, ClusterOptions};
use uuid::Uuid;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A node of the cluster, if there is one.
fn node() -> Option<String> {
    std::env::var("STEMMA_CASSANDRA").ok()
}

fn options(node: &str) -> ClusterOptions {
    ClusterOptions::new([node], "stemma_test")
}

/// A log with one file, and what must be in it.
struct Appended {
    cluster: Cluster,
    name: String,
    owner: Arc<CassandraLog>,
    file: FileId,
    bytes: Vec<u8>,
    random: Random,
}

impl Appended {
    fn new(cluster: &Cluster, seed: u64) -> Self {
        let name = Uuid::new_v4().simple().to_string();
        let owner = cluster.log(&name);
        owner.take_over().unwrap();
        let (file, random) = (FileId(Uuid::new_v4()), Random::new(seed));
        Appended { cluster: cluster.clone(), name, owner, file, bytes: Vec::new(), random }
    }

    fn name_file(&self) {
        let file =
            StoredFile { name: "log/0000000001.log".to_owned(), id: self.file, bytes: 0, state: FileState::Open };
        self.owner.change_names(&[NameChange::Set(file)], &[]).unwrap();
    }

    fn group(&mut self) -> Vec<u8> {
        let length = match self.random.below(10) {
            0..=5 => self.random.below(1 << 10),
            6..=8 => self.random.below(30 << 10),
            _ => self.random.below(200 << 10),
        };
        (0..=length).map(|_| self.random.number() as u8).collect()
    }

    fn append(&mut self) {
        let group = self.group();
        self.owner.append(self.file, self.bytes.len() as u64, &group).unwrap();
        self.bytes.extend(group);
    }

    /// Another owner takes over while this one appends.
    fn take_over(&mut self) {
        let group = self.group();
        let (old, offset) = (self.owner.clone(), self.bytes.len() as u64);
        let new = self.cluster.log(&self.name);
        let (appended, log) = std::thread::scope(|scope| {
            let appending = scope.spawn(|| old.append(self.file, offset, &group));
            std::thread::sleep(Duration::from_millis(self.random.below(12)));
            let log = new.take_over().unwrap();
            (appending.join().unwrap(), log)
        });
        assert_eq!(log.files.len(), 1);
        let length = log.files[0].bytes;
        let is_there = length == offset + group.len() as u64;
        assert!(is_there || length == offset, "{length} bytes, of {offset} and {}", group.len());
        match appended {
            Ok(()) => assert!(is_there, "an acknowledged append is lost"),
            Err(error) => assert!(error.get_ref().is_some_and(|cause| cause.is::<Deposed>()), "{error}"),
        }
        if is_there {
            self.bytes.extend(group);
        }
        let error = old.append(self.file, length, b"zombie").unwrap_err();
        assert!(error.get_ref().is_some_and(|cause| cause.is::<Deposed>()), "{error}");
        let error = old.change_names(&[NameChange::Remove("log/0000000001.log".to_owned())], &[]).unwrap_err();
        assert!(error.get_ref().is_some_and(|cause| cause.is::<Deposed>()), "{error}");
        self.owner = new;
        self.check();
    }

    fn check(&mut self) {
        let mut found = vec![0; self.bytes.len() + 1];
        // In pieces, as the library reads.
        let piece = 1 + self.random.below(300_000) as usize;
        let mut length = 0;
        for start in (0..self.bytes.len()).step_by(piece) {
            let end = (start + piece).min(self.bytes.len());
            length += self.owner.read(self.file, start as u64, &mut found[start..end]).unwrap();
        }
        assert_eq!(length, self.bytes.len());
        assert!(found[..length] == self.bytes, "the file has other bytes than were acknowledged");
    }
}

#[test]
fn appends_that_time_out_come_late_or_twice_are_applied_once() {
    let Some(node) = node() else { return };
    let cases = number_from("STEMMA_CLUSTER_CASES", 300);
    let (per_mille, faults) = (Arc::new(AtomicU64::new(0)), Arc::new(Faults::default()));
    let port = node.rsplit_once(':').unwrap().1.to_owned();
    let mut proxied = options(&node).request_timeout(Duration::from_secs(10));
    let mut first = None;
    for number in 1..=3 {
        let known: SocketAddr = format!("127.0.0.{number}:{port}").parse().unwrap();
        let reached = proxy::start(known, number, per_mille.clone(), faults.clone());
        first.get_or_insert(reached);
        proxied = proxied.translate(known, reached);
    }
    // The tables exist before requests are given up early.
    Cluster::connect(options(&node)).unwrap();
    let cluster = Cluster::connect(proxied.request_timeout(Duration::from_millis(250))).unwrap();
    per_mille.store(150, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (cluster, faults) = (cluster.clone(), &faults);
            scope.spawn(move || {
                while faults.sum() < cases {
                    let mut log = Appended::new(&cluster, seed);
                    log.append();
                    log.name_file();
                    while log.bytes.len() < 3 << 20 && faults.sum() < cases {
                        for _ in 0..log.random.below(20) {
                            log.append();
                        }
                        log.take_over();
                    }
                    log.check();
                }
            });
        }
    });
    println!("cluster appends: {} faults: {faults}; none lost or applied twice", faults.sum());
}
