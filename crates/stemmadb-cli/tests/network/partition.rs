//! Three servers that replicate with each other come to agree, whatever happened to the wires between them and to themselves.
//!
//! A round breaks wires, lets clients of all three write (conflicts, deletions, files), kills and starts servers again, heals, and
//! waits until all three have the same leaves, winners and files. Nothing acknowledged may be missing from a document's tree, and
//! nothing that was replaced or deleted may be a leaf again. `STEMMA_ROUNDS` says how many (short: 6).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Broken, Client, PASSWORD, rev};
use crate::proxy::{Proxy, Wire};
use crate::random::{Random, seed, setting};
use crate::server::{Server, text};

const SERVERS: usize = 3;
/// Documents of a round, written by the clients of all servers.
const DOCUMENTS: u64 = 10;
/// How long it may take until all agree.
const PATIENCE: Duration = Duration::from_secs(600);
/// Which server brings what, from where to where: each pair in both directions; pulled and pushed.
const LINKS: [(usize, usize, Direction); 7] = [
    (0, 1, Direction::Pull),
    (0, 1, Direction::Push),
    (1, 2, Direction::Pull),
    (2, 1, Direction::Pull),
    (0, 2, Direction::Push),
    (2, 0, Direction::Push),
    (2, 0, Direction::Pull),
];
/// Failures are tried again soon, so that a round is short.
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
    /// What it replaced.
    parent: Option<String>,
}

struct Cluster {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
}

impl Cluster {
    fn start(place: &Path) -> Self {
        let servers: Vec<Server> =
            (0..SERVERS).map(|number| Server::start(&place.join(number.to_string()), &ARGUMENTS)).collect();
        let proxies: Vec<Proxy> = LINKS.iter().map(|(_, to, _)| Proxy::to(servers[*to].address())).collect();
        for server in &servers {
            let mut client = server.client();
            client.good("PUT", "/db", None);
            client.good("PUT", "/_replicator", None);
        }
        for (at, (of, _, direction)) in LINKS.iter().enumerate() {
            let there = format!("http://admin:{PASSWORD}@{}/db", proxies[at].address());
            let (source, target) = match direction {
                Direction::Pull => (there.as_str(), "db"),
                Direction::Push => ("db", there.as_str()),
            };
            let wanted = json!({"source": source, "target": target, "continuous": true});
            servers[*of].client().good("PUT", &format!("/_replicator/link-{at}"), Some(&wanted));
        }
        Cluster { servers, proxies }
    }
}

/// A client of one server for a while.
struct Writer {
    client: Client,
    random: Random,
    next: u64,
    acknowledged: Vec<Acknowledged>,
    unknown: u64,
}

impl Writer {
    fn new(server: &Server, random: Random) -> Self {
        let client = server.client().patience(Duration::from_secs(5));
        Writer { client, random, next: 0, acknowledged: Vec::new(), unknown: 0 }
    }

    fn run(&mut self, round: u64, server: usize, patience: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            // Mostly this round's; now and then an old one.
            let of_round = if self.random.percent(85) { round } else { self.random.below(round + 1) };
            let id = format!("r{of_round}-{}", self.random.below(DOCUMENTS));
            self.write(&id, server);
            std::thread::sleep(self.random.milliseconds(1, 12));
        }
    }

    fn write(&mut self, id: &str, server: usize) {
        let Ok(read) = self.client.ask("GET", &format!("/db/{id}"), None) else { return };
        let parent = (read.status == 200).then(|| text(&read.json(), "/_rev").to_owned());
        let query = parent.as_deref().map(rev).unwrap_or_default();
        self.next += 1;
        let path = format!("/db/{id}");
        let answered = match (&parent, self.random.below(10)) {
            (Some(_), 0..2) => self.client.ask("DELETE", &format!("{path}{query}"), None),
            (Some(_), 2..4) => {
                let (length, mut random) = (self.random.below(30_000), self.random.fork());
                let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
                let file = format!("{path}/f{}{query}", self.random.below(2));
                self.client.send("PUT", &file, Some("application/octet-stream"), &bytes)
            }
            _ => {
                let mut body =
                    json!({"server": server, "number": self.next, "fill": "x".repeat(self.random.below(900) as usize)});
                // Files are kept now and then.
                if let Some(files) = read.json().get("_attachments").filter(|_| self.random.percent(50)) {
                    body["_attachments"] = files.clone();
                }
                self.client.ask("PUT", &format!("{path}{query}"), Some(&body))
            }
        };
        match answered {
            Ok(answer) if answer.is_good() => {
                let revision = text(&answer.json(), "/rev").to_owned();
                self.acknowledged.push(Acknowledged { id: id.to_owned(), revision, parent });
            }
            // What was replicated meanwhile is newer.
            Ok(answer) => assert!(matches!(answer.status, 404 | 409), "{path}: {}", answer.shown()),
            Err(Broken::Unknown(_)) => self.unknown += 1,
            Err(Broken::Unsent(_)) => {}
        }
    }
}

/// The leaves of documents, the winner first, and whether that is a deletion.
type Leaves = BTreeMap<String, (String, BTreeSet<String>, bool)>;

/// What changed since a sequence.
fn leaves(client: &mut Client, since: &str) -> Leaves {
    let told = client.good("GET", &format!("/db/_changes?style=all_docs&since={since}"), None);
    let rows = told["results"].as_array().expect("rows").iter().map(|row| {
        let changes = row["changes"].as_array().expect("changes");
        let all = changes.iter().map(|change| text(change, "/rev").to_owned()).collect();
        (text(row, "/id").to_owned(), (text(row, "/changes/0/rev").to_owned(), all, row["deleted"] == true))
    });
    rows.collect()
}

/// What was seen.
#[derive(Default)]
struct Seen {
    acknowledged: usize,
    unknown: u64,
    kills: u64,
    conflicts: usize,
    deleted: usize,
    slowest: Duration,
}

/// One round: breaks, writes, heals, and waits until all agree.
fn round(cluster: &mut Cluster, number: u64, random: &mut Random, seen: &mut Seen) {
    let since: Vec<String> = cluster
        .servers
        .iter()
        .map(|server| text(&server.client().good("GET", "/db", None), "/update_seq").to_owned())
        .collect();
    for proxy in &cluster.proxies {
        proxy.set(if random.percent(70) { Wire::at_random(random) } else { Wire::Whole }, random.percent(50));
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
        if let Some((server, patience)) = killed {
            std::thread::sleep(patience);
            cluster.servers[server].kill_now();
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let heals_first = random.percent(50);
    for heals in [heals_first, !heals_first] {
        if heals {
            cluster.proxies.iter().for_each(|proxy| proxy.set(Wire::Whole, random.percent(50)));
        } else if let Some((server, _)) = killed {
            cluster.servers[server].kill();
            cluster.servers[server].restart();
            seen.kills += 1;
        }
    }
    let healed = Instant::now();
    let agreed = agree(cluster, &since, number);
    seen.slowest = seen.slowest.max(healed.elapsed());
    seen.conflicts += agreed.values().filter(|(_, leaves, _)| leaves.len() > 1).count();
    seen.deleted += agreed.values().filter(|(_, _, deleted)| *deleted).count();
    for writer in &written {
        seen.acknowledged += writer.acknowledged.len();
        seen.unknown += writer.unknown;
    }
    let acknowledged: Vec<Acknowledged> = written.into_iter().flat_map(|writer| writer.acknowledged).collect();
    let mut clients: Vec<Client> = cluster.servers.iter().map(Server::client).collect();
    for id in agreed.keys() {
        let all: Vec<Value> = clients.iter_mut().map(|client| open(client, id)).collect();
        assert!(all.iter().all(|leaves| *leaves == all[0]), "round {number}: {id} differs: {all:#?}");
        let of_it = acknowledged.iter().filter(|acknowledged| acknowledged.id == *id);
        verify_tree(&all[0], of_it);
    }
    let lost = acknowledged.iter().find(|acknowledged| !agreed.contains_key(&acknowledged.id));
    assert!(lost.is_none(), "round {number}: {} was acknowledged and never replicated", lost.unwrap().id);
}

/// Waits until all servers have the same leaves of what changed in this round.
fn agree(cluster: &Cluster, since: &[String], number: u64) -> Leaves {
    let mut clients: Vec<Client> = cluster.servers.iter().map(Server::client).collect();
    let begun = Instant::now();
    loop {
        let all: Vec<Leaves> = clients.iter_mut().zip(since).map(|(client, since)| leaves(client, since)).collect();
        if all.iter().all(|leaves| *leaves == all[0]) {
            return all.into_iter().next().expect("three servers");
        }
        if begun.elapsed() > PATIENCE {
            let jobs: Vec<Value> =
                clients.iter_mut().map(|client| client.good("GET", "/_scheduler/docs", None)).collect();
            panic!("round {number}: no agreement after {PATIENCE:?}: {all:#?}, {jobs:#?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Every leaf of a document, with its history, its body and its files, in the order of revisions.
fn open(client: &mut Client, id: &str) -> Value {
    let told = client.good("GET", &format!("/db/{id}?open_revs=all&revs=true&attachments=true"), None);
    let mut leaves: Vec<Value> = told.as_array().expect("leaves").iter().map(|leaf| leaf["ok"].clone()).collect();
    leaves.sort_by_key(|leaf| text(leaf, "/_rev").to_owned());
    Value::Array(leaves)
}

/// What was acknowledged is in the tree, and what it replaced is no leaf.
fn verify_tree<'a>(leaves: &Value, acknowledged: impl Iterator<Item = &'a Acknowledged>) {
    let leaves = leaves.as_array().expect("leaves");
    let tips: BTreeSet<&str> = leaves.iter().map(|leaf| text(leaf, "/_rev")).collect();
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

/// All three hold the same, from their beginnings; their files are as they must be.
fn verify_whole(cluster: &mut Cluster) {
    agree(cluster, &["0".to_owned(), "0".to_owned(), "0".to_owned()], 0);
    for server in &mut cluster.servers {
        server.assert_calm();
        server.stop();
        server.check();
        server.restart();
    }
}

#[test]
fn three_servers_agree_after_every_partition() {
    let mut random = Random::new(seed("partition"));
    let rounds = setting("STEMMA_ROUNDS", 6);
    let place = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(place.path());
    let (mut seen, begun) = (Seen::default(), Instant::now());
    for number in 0..rounds {
        round(&mut cluster, number, &mut random, &mut seen);
        if number % 100 == 99 || number + 1 == rounds {
            verify_whole(&mut cluster);
            println!("partition: {} rounds, {:.0} s", number + 1, begun.elapsed().as_secs_f64());
        }
    }
    println!(
        "partition: {rounds} rounds, {} kills, {} acknowledged writes, {} with an unknown end, {} conflicts, {} deletions, slowest agreement {:?}: \
         0 diverged, 0 missing, 0 resurrected",
        seen.kills, seen.acknowledged, seen.unknown, seen.conflicts, seen.deleted, seen.slowest
    );
    assert!(seen.acknowledged as u64 > rounds * 5 && seen.conflicts > 0, "the clients never got to write");
}

/// What finds nothing wrong where something is, is no test.
mod teeth {
    use super::*;

    /// A document with one leaf, and a write that was acknowledged.
    fn verify(ids: &[&str], acknowledged: &str, parent: &str) {
        let leaf = json!({"_rev": format!("{}-{}", ids.len(), ids[0]), "_revisions": {"start": ids.len(), "ids": ids}});
        let (id, revision, parent) = ("it".to_owned(), acknowledged.to_owned(), Some(parent.to_owned()));
        verify_tree(&json!([leaf]), [Acknowledged { id, revision, parent }].iter());
    }

    #[test]
    fn what_is_a_leaf_or_an_ancestor_is_accepted() {
        verify(&["c", "b", "a"], "3-c", "2-b");
        verify(&["c", "b", "a"], "2-b", "1-a");
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn a_write_that_never_arrived_is_found() {
        verify(&["c", "b", "a"], "3-d", "2-b");
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn a_deletion_that_is_gone_is_found() {
        verify(&["b", "a"], "3-c", "2-b");
    }

    #[test]
    #[should_panic(expected = "is a leaf again")]
    fn what_comes_back_after_it_was_replaced_is_found() {
        let leaves = json!([
            {"_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}},
            {"_rev": "3-c", "_revisions": {"start": 3, "ids": ["c", "b", "a"]}},
        ]);
        let (id, revision, parent) = ("it".to_owned(), "3-c".to_owned(), Some("2-b".to_owned()));
        verify_tree(&leaves, [Acknowledged { id, revision, parent }].iter());
    }
}
