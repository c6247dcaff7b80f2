//! Three servers that replicate with each other converge after network faults and kills.
//!
//! A round breaks links, lets clients write to all servers (conflicts, deletions, attachments), kills and restarts
//! servers, heals the links, and waits until all servers have the same leaves, winners and attachments. Every
//! acknowledged revision must be in the document's tree, and no replaced or deleted revision may be a leaf again.
//! `STEMMA_ROUNDS` sets the number of rounds (default 6).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD, RequestError, rev};
use crate::proxy::{LinkState, Proxy};
use crate::random::{Random, env_u64, seed};
use crate::server::{Server, str_at};

const SERVERS: usize = 3;
/// Number of documents per round, written by the clients of all servers.
const DOCUMENTS: u64 = 10;
/// Time limit for the servers to converge.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Replications: the server that runs it, the other server, and the direction. Covers each pair in both directions, by
/// pull and push.
const LINKS: [(usize, usize, Direction); 7] = [
    (0, 1, Direction::Pull),
    (0, 1, Direction::Push),
    (1, 2, Direction::Pull),
    (2, 1, Direction::Pull),
    (0, 2, Direction::Push),
    (2, 0, Direction::Push),
    (2, 0, Direction::Pull),
];
/// Short retry intervals, so that a round is short.
const ARGUMENTS: [&str; 6] =
    ["--replicator-retry-wait", "50ms", "--replicator-retry-wait-max", "400ms", "--durability", "sync"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Pull,
    Push,
}

/// A revision that a server acknowledged.
struct Acknowledged {
    id: String,
    revision: String,
    /// The revision it replaced.
    parent: Option<String>,
}

struct Cluster {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

impl Cluster {
    fn start(directory: &Path) -> Self {
        let servers: Vec<Server> =
            (0..SERVERS).map(|number| Server::start(&directory.join(number.to_string()), &ARGUMENTS)).collect();
        let proxies: Vec<Proxy> = LINKS.iter().map(|(_, to, _)| Proxy::to(servers[*to].address())).collect();
        for server in &servers {
            let mut client = server.client();
            client.expect_success("PUT", "/db", None);
            client.expect_success("PUT", "/_replicator", None);
        }
        for (at, (of, _, direction)) in LINKS.iter().enumerate() {
            let there = format!("http://admin:{PASSWORD}@{}/db", proxies[at].address());
            let (source, target) = match direction {
                Direction::Pull => (there.as_str(), "db"),
                Direction::Push => ("db", there.as_str()),
            };
            let wanted = json!({"source": source, "target": target, "continuous": true});
            servers[*of].client().expect_success("PUT", &format!("/_replicator/link-{at}"), Some(&wanted));
        }
        Cluster { servers, proxies }
    }
}

/// A client of one server.
struct Writer {
    client: Client,
    random: Random,
    next: u64,
    acknowledged: Vec<Acknowledged>,
    unknown: u64,
}

impl Writer {
    fn new(server: &Server, random: Random) -> Self {
        let client = server.client().timeout(Duration::from_secs(5));
        Writer { client, random, next: 0, acknowledged: Vec::new(), unknown: 0 }
    }

    fn run(&mut self, round: u64, server: usize, duration: Duration) {
        let started = Instant::now();
        while started.elapsed() < duration {
            // Mostly documents of this round, sometimes older ones.
            let document_round = if self.random.percent(85) { round } else { self.random.below(round + 1) };
            let id = format!("r{document_round}-{}", self.random.below(DOCUMENTS));
            self.write(&id, server);
            std::thread::sleep(self.random.milliseconds(1, 12));
        }
    }

    fn write(&mut self, id: &str, server: usize) {
        let Ok(read) = self.client.request("GET", &format!("/db/{id}"), None) else { return };
        let parent = (read.status == 200).then(|| str_at(&read.json(), "/_rev").to_owned());
        let query = parent.as_deref().map(rev).unwrap_or_default();
        self.next += 1;
        let path = format!("/db/{id}");
        let answered = match (&parent, self.random.below(10)) {
            (Some(_), 0..2) => self.client.request("DELETE", &format!("{path}{query}"), None),
            (Some(_), 2..4) => {
                let (length, mut random) = (self.random.below(30_000), self.random.fork());
                let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                let file = format!("{path}/f{}{query}", self.random.below(2));
                self.client.send("PUT", &file, Some("application/octet-stream"), &bytes)
            }
            _ => {
                let mut body =
                    json!({"server": server, "number": self.next, "fill": "x".repeat(self.random.below(900) as usize)});
                // Keep the attachments in half of the writes.
                if let Some(files) = read.json().get("_attachments").filter(|_| self.random.percent(50)) {
                    body["_attachments"] = files.clone();
                }
                self.client.request("PUT", &format!("{path}{query}"), Some(&body))
            }
        };
        match answered {
            Ok(answer) if answer.is_success() => {
                let revision = str_at(&answer.json(), "/rev").to_owned();
                self.acknowledged.push(Acknowledged { id: id.to_owned(), revision, parent });
            }
            // A newer revision was replicated in the meantime.
            Ok(answer) => assert!(matches!(answer.status, 404 | 409), "{path}: {}", answer.summary()),
            Err(RequestError::Unknown(_)) => self.unknown += 1,
            Err(RequestError::NotSent(_)) => {}
        }
    }
}

/// By document: the winner, all leaves, and whether the winner is a deletion.
type Leaves = BTreeMap<String, (String, BTreeSet<String>, bool)>;

/// Reads the changes since a sequence.
fn leaves(client: &mut Client, since: &str) -> Leaves {
    let feed = client.expect_success("GET", &format!("/db/_changes?style=all_docs&since={since}"), None);
    let rows = feed["results"].as_array().expect("rows").iter().map(|row| {
        let changes = row["changes"].as_array().expect("changes");
        let all = changes.iter().map(|change| str_at(change, "/rev").to_owned()).collect();
        (str_at(row, "/id").to_owned(), (str_at(row, "/changes/0/rev").to_owned(), all, row["deleted"] == true))
    });
    rows.collect()
}

/// Counts over all rounds.
#[derive(Default)]
struct Totals {
    acknowledged: usize,
    unknown: u64,
    kills: u64,
    conflicts: usize,
    deleted: usize,
    slowest: Duration,
}

/// Runs one round: breaks links, writes, heals, and waits until the servers converge.
fn round(cluster: &mut Cluster, number: u64, random: &mut Random, totals: &mut Totals) {
    let since: Vec<String> = cluster
        .servers
        .iter()
        .map(|server| str_at(&server.client().expect_success("GET", "/db", None), "/update_seq").to_owned())
        .collect();
    for proxy in &cluster.proxies {
        proxy.set(
            if random.percent(70) { LinkState::at_random(random) } else { LinkState::Healthy },
            random.percent(50),
        );
    }
    let writing = random.milliseconds(200, 700);
    let killed = random.percent(50).then(|| (random.below(SERVERS as u64) as usize, random.milliseconds(10, 400)));
    let randoms: Vec<Random> = (0..SERVERS).map(|_| random.fork()).collect();
    let written: Vec<Writer> = std::thread::scope(|scope| {
        let writers: Vec<_> = cluster
            .servers
            .iter()
            .zip(randoms)
            .enumerate()
            .map(|(at, (server, random))| {
                let mut writer = Writer::new(server, random);
                scope.spawn(move || {
                    writer.run(number, at, writing);
                    writer
                })
            })
            .collect();
        if let Some((server, delay)) = killed {
            std::thread::sleep(delay);
            cluster.servers[server].send_sigkill();
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let heals_first = random.percent(50);
    for heals in [heals_first, !heals_first] {
        if heals {
            cluster.proxies.iter().for_each(|proxy| proxy.set(LinkState::Healthy, random.percent(50)));
        } else if let Some((server, _)) = killed {
            cluster.servers[server].kill();
            cluster.servers[server].restart();
            totals.kills += 1;
        }
    }
    let healed = Instant::now();
    let agreed = wait_for_agreement(cluster, &since, number);
    totals.slowest = totals.slowest.max(healed.elapsed());
    totals.conflicts += agreed.values().filter(|(_, leaves, _)| leaves.len() > 1).count();
    totals.deleted += agreed.values().filter(|(_, _, deleted)| *deleted).count();
    for writer in &written {
        totals.acknowledged += writer.acknowledged.len();
        totals.unknown += writer.unknown;
    }
    let acknowledged: Vec<Acknowledged> = written.into_iter().flat_map(|writer| writer.acknowledged).collect();
    let mut clients: Vec<Client> = cluster.servers.iter().map(Server::client).collect();
    for id in agreed.keys() {
        let all: Vec<Value> = clients.iter_mut().map(|client| read_leaves(client, id)).collect();
        assert!(all.iter().all(|leaves| *leaves == all[0]), "round {number}: {id} differs: {all:#?}");
        let of_document = acknowledged.iter().filter(|acknowledged| acknowledged.id == *id);
        verify_tree(&all[0], of_document);
    }
    let lost = acknowledged.iter().find(|acknowledged| !agreed.contains_key(&acknowledged.id));
    assert!(lost.is_none(), "round {number}: {} was acknowledged and never replicated", lost.unwrap().id);
}

/// Waits until all servers have the same leaves of the documents changed in this round.
fn wait_for_agreement(cluster: &Cluster, since: &[String], number: u64) -> Leaves {
    let mut clients: Vec<Client> = cluster.servers.iter().map(Server::client).collect();
    let started = Instant::now();
    loop {
        let all: Vec<Leaves> = clients.iter_mut().zip(since).map(|(client, since)| leaves(client, since)).collect();
        if all.iter().all(|leaves| *leaves == all[0]) {
            return all.into_iter().next().expect("three servers");
        }
        if started.elapsed() > TIMEOUT {
            let jobs: Vec<Value> =
                clients.iter_mut().map(|client| client.expect_success("GET", "/_scheduler/docs", None)).collect();
            panic!("round {number}: no agreement after {TIMEOUT:?}: {all:#?}, {jobs:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads every leaf of a document with its history, body and attachments, sorted by revision.
fn read_leaves(client: &mut Client, id: &str) -> Value {
    let opened = client.expect_success("GET", &format!("/db/{id}?open_revs=all&revs=true&attachments=true"), None);
    let mut leaves: Vec<Value> = opened.as_array().expect("leaves").iter().map(|leaf| leaf["ok"].clone()).collect();
    leaves.sort_by_key(|leaf| str_at(leaf, "/_rev").to_owned());
    Value::Array(leaves)
}

/// Verifies that every acknowledged revision is in the tree, and that no revision it replaced is a leaf.
fn verify_tree<'a>(leaves: &Value, acknowledged: impl Iterator<Item = &'a Acknowledged>) {
    let leaves = leaves.as_array().expect("leaves");
    let tips: BTreeSet<&str> = leaves.iter().map(|leaf| str_at(leaf, "/_rev")).collect();
    let mut tree = BTreeSet::new();
    for leaf in leaves {
        let start = leaf["_revisions"]["start"].as_u64().expect("a generation");
        let ids = leaf["_revisions"]["ids"].as_array().expect("revisions");
        let path = ids.iter().zip(0..).map(|(id, back)| format!("{}-{}", start - back, id.as_str().expect("text")));
        tree.extend(path);
    }
    for Acknowledged { id, revision, parent } in acknowledged {
        assert!(tree.contains(revision), "{id}: {revision} was acknowledged, and is missing: {leaves:#?}");
        let parent = parent.as_deref().filter(|parent| tips.contains(parent));
        assert!(parent.is_none(), "{id}: {parent:?} was replaced by {revision}, and is a leaf again: {leaves:#?}");
    }
}

/// Verifies that all servers have the same documents, and checks their files.
fn verify_cluster(cluster: &mut Cluster) {
    wait_for_agreement(cluster, &["0".to_owned(), "0".to_owned(), "0".to_owned()], 0);
    for server in &mut cluster.servers {
        server.assert_no_panic();
        server.stop();
        server.check();
        server.restart();
    }
}

#[test]
fn three_servers_converge_after_every_partition() {
    let mut random = Random::new(seed("partition"));
    let rounds = env_u64("STEMMA_ROUNDS", 6);
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path());
    let (mut totals, started) = (Totals::default(), Instant::now());
    for number in 0..rounds {
        round(&mut cluster, number, &mut random, &mut totals);
        if number % 100 == 99 || number + 1 == rounds {
            verify_cluster(&mut cluster);
            println!("partition: {} rounds, {:.0} s", number + 1, started.elapsed().as_secs_f64());
        }
    }
    println!(
        "partition: {rounds} rounds, {} kills, {} acknowledged writes, {} with an unknown end, {} conflicts, {} \
         deletions, slowest agreement {:?}: 0 diverged, 0 missing, 0 resurrected",
        totals.kills, totals.acknowledged, totals.unknown, totals.conflicts, totals.deleted, totals.slowest
    );
    assert!(totals.acknowledged as u64 > rounds * 5 && totals.conflicts > 0, "the clients wrote too little");
}

/// Tests of the verification: it must detect each injected fault.
mod self_tests {
    use super::*;

    /// Verifies a document with one leaf against one acknowledged write.
    fn verify(ids: &[&str], acknowledged: &str, parent: &str) {
        let leaf = json!({"_rev": format!("{}-{}", ids.len(), ids[0]), "_revisions": {"start": ids.len(), "ids": ids}});
        let (id, revision, parent) = ("it".to_owned(), acknowledged.to_owned(), Some(parent.to_owned()));
        verify_tree(&json!([leaf]), [Acknowledged { id, revision, parent }].iter());
    }

    #[test]
    fn leaves_and_ancestors_are_accepted() {
        verify(&["c", "b", "a"], "3-c", "2-b");
        verify(&["c", "b", "a"], "2-b", "1-a");
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn missing_write_is_detected() {
        verify(&["c", "b", "a"], "3-d", "2-b");
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn missing_deletion_is_detected() {
        verify(&["b", "a"], "3-c", "2-b");
    }

    #[test]
    #[should_panic(expected = "is a leaf again")]
    fn resurrected_revision_is_detected() {
        let leaves = json!([
            {"_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}},
            {"_rev": "3-c", "_revisions": {"start": 3, "ids": ["c", "b", "a"]}},
        ]);
        let (id, revision, parent) = ("it".to_owned(), "3-c".to_owned(), Some("2-b".to_owned()));
        verify_tree(&leaves, [Acknowledged { id, revision, parent }].iter());
    }
}
