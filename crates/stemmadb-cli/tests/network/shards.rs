//! A server killed at random times while shards of a virtual database split and merge loses no acknowledged write, has
//! no document twice, and completes the move afterwards. The same with three servers, between which the shards move and
//! of which any is killed.
//!
//! Writers know what they were acknowledged. After each SIGKILL the server is restarted, and listings, queries, counts
//! and changes are compared with that, in the middle of the move that continues, and at its end. `STEMMA_SHARD_KILLS`
//! sets the number of kills (default 10).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Client, PASSWORD, RequestError};
use crate::random::{Random, env_u64, seed};
use crate::server::{Server, str_at, wait_until};

const WRITERS: u64 = 3;
/// The documents that each writer changes.
const CHANGED: u64 = 20;
/// The documents that only move.
const UNCHANGED: u64 = 1_500;
const MOVE_TIMEOUT: Duration = Duration::from_secs(120);

/// The revision and the number of a document that were acknowledged last.
type Acknowledged = BTreeMap<String, (String, u64)>;

/// A client that changes its own documents.
struct Writer {
    number: u64,
    random: Random,
    next: u64,
    acknowledged: Acknowledged,
    /// The write whose outcome is unknown.
    possible: Option<(String, u64)>,
    count: u64,
}

impl Writer {
    fn new(number: u64, random: Random) -> Self {
        Writer { number, random, next: 1, acknowledged: BTreeMap::new(), possible: None, count: 0 }
    }

    /// Writes until a server is killed. No write fails for another reason.
    fn run(&mut self, mut client: Client) {
        loop {
            let id = format!("w{}-{:02}", self.number, self.random.below(CHANGED));
            self.next += 1;
            let mut body = json!({"n": self.next, "writer": self.number});
            if let Some((revision, _)) = self.acknowledged.get(&id) {
                body["_rev"] = json!(revision);
            }
            match client.request("PUT", &format!("/v/{id}"), Some(&body)) {
                // The server of the shard was killed, before or after it wrote.
                Ok(answer) if answer.status == 503 && answer.summary().contains("does not answer") => {
                    self.possible = Some((id, self.next));
                    return;
                }
                Ok(answer) => {
                    assert_eq!(answer.status, 201, "{id}: {}", answer.summary());
                    let revision = str_at(&answer.json(), "/rev").to_owned();
                    self.acknowledged.insert(id, (revision, self.next));
                    self.count += 1;
                }
                Err(RequestError::Unknown(_)) => {
                    self.possible = Some((id, self.next));
                    return;
                }
                Err(RequestError::NotSent(_)) => return,
            }
        }
    }

    /// Compares the stored documents with the acknowledged ones.
    fn verify(&mut self, stored: &Acknowledged) {
        let prefix = format!("w{}-", self.number);
        let mut stored: Acknowledged = stored
            .iter()
            .filter(|(id, _)| id.starts_with(&prefix))
            .map(|(id, state)| (id.clone(), state.clone()))
            .collect();
        if let Some((id, number)) = self.possible.take()
            && let Some((revision, stored_number)) = stored.get(&id)
            && *stored_number == number
        {
            self.acknowledged.insert(id, (revision.clone(), number));
        }
        let lost: Vec<_> =
            self.acknowledged.iter().filter(|(id, state)| stored.remove(*id).as_ref() != Some(state)).collect();
        assert!(lost.is_empty() && stored.is_empty(), "lost or old: {lost:?}, not written: {stored:?}");
    }
}

/// Reads all documents; each is listed once.
fn read_all(client: &mut Client) -> Acknowledged {
    let all = client.expect_success("GET", "/v/_all_docs?include_docs=true", None);
    let rows = all["rows"].as_array().unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| str_at(row, "/id")).collect();
    assert!(ids.windows(2).all(|two| two[0] < two[1]), "a document is listed twice, or out of order");
    assert_eq!(all["total_rows"].as_u64(), Some(rows.len() as u64));
    let state = |row: &Value| (str_at(row, "/value/rev").to_owned(), row["doc"]["n"].as_u64().unwrap());
    rows.iter().map(|row| (str_at(row, "/id").to_owned(), state(row))).collect()
}

/// Compares the answers of all ways of reading.
fn verify(client: &mut Client, writers: &mut [Writer]) {
    let stored = read_all(client);
    writers.iter_mut().for_each(|writer| writer.verify(&stored));
    let unchanged = stored.iter().filter(|(id, (_, number))| **id == format!("u{number:04}")).count() as u64;
    assert_eq!(unchanged, UNCHANGED);
    let found =
        client.expect_success("POST", "/v/_find", Some(&json!({"selector": {"n": {"$gte": 0}}, "limit": 100_000})));
    let found = found["docs"].as_array().unwrap().iter();
    let found: Vec<(&str, &str)> = found.map(|doc| (str_at(doc, "/_id"), str_at(doc, "/_rev"))).collect();
    let expected: Vec<(&str, &str)> =
        stored.iter().map(|(id, (revision, _))| (id.as_str(), revision.as_str())).collect();
    assert_eq!(found, expected, "a query finds something else than a listing");
    assert_eq!(client.expect_success("GET", "/v", None)["doc_count"].as_u64(), Some(stored.len() as u64));
    // A document that has moved is reported again; its last row has the newest revision.
    let changes = client.expect_success("GET", "/v/_changes", None);
    let rows = changes["results"].as_array().unwrap().iter();
    let last: BTreeMap<&str, &str> = rows.map(|row| (str_at(row, "/id"), str_at(row, "/changes/0/rev"))).collect();
    assert_eq!(last.into_iter().collect::<Vec<_>>(), expected, "the changes tell something else than a listing");
    for (id, (revision, _)) in stored.iter().step_by(37) {
        assert_eq!(str_at(&client.expect_success("GET", &format!("/v/{id}"), None), "/_rev"), revision);
    }
}

/// Starts a move, if none is in progress. New shards lie on one of these servers.
fn start_move(client: &mut Client, random: &mut Random, servers: &[&str]) {
    let shards = client.expect_success("GET", "/v/_shards", None);
    if !shards["move"].is_null() {
        return;
    }
    let mut listed: Vec<(u64, &str)> = shards["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| (shard["buckets"].as_u64().unwrap(), str_at(shard, "/name")))
        .collect();
    listed.sort_unstable();
    let server = servers[random.below(servers.len() as u64) as usize];
    let request = match listed.len() {
        1 => json!({"split": listed[0].1, "server": server}),
        count if count < 4 && random.percent(60) => json!({"split": listed[count - 1].1, "server": server}),
        _ if servers.len() > 1 && random.percent(50) => json!({"merge": listed[0].1, "server": server}),
        count => json!({"merge": listed[0].1, "into": listed[count - 1].1}),
    };
    let answer = client.expect_response("POST", "/v/_shards", Some(&request));
    // Buckets can't return to a shard that they left.
    assert!(answer.is_success() || answer.summary().contains("can't come back"), "{request}: {}", answer.summary());
}

/// Waits for the end of the move. One that has stopped because another server was killed is continued.
fn finish_move(client: &mut Client, may_stop: bool) {
    wait_until("the move ends", MOVE_TIMEOUT, || {
        let moving = client.expect_success("GET", "/v/_shards", None)["move"].clone();
        if moving["state"] == "stopped" {
            assert!(may_stop, "{moving}");
            client.expect_response("POST", "/v/_shards", Some(&json!({"resume": true})));
        }
        moving.is_null()
    });
}

/// The number of directories of databases.
fn directory_count(databases: &Path) -> usize {
    let entries = databases.read_dir().unwrap().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "stemma")).count()
}

/// Writes the documents that only move.
fn write_unchanged(client: &mut Client) {
    let docs: Vec<Value> =
        (0..UNCHANGED).map(|n| json!({"_id": format!("u{n:04}"), "n": n, "text": "x".repeat(300)})).collect();
    client.expect_success("POST", "/v/_bulk_docs", Some(&json!({ "docs": docs })));
}

#[test]
fn killed_moves_of_shards_lose_nothing() {
    let kills = env_u64("STEMMA_SHARD_KILLS", 10);
    let mut random = Random::new(seed("shards"));
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &[]);
    let mut client = server.client();
    client.expect_success("PUT", "/v?shards=2", None);
    write_unchanged(&mut client);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.fork())).collect();
    let (mut in_move, mut completed) = (0, 0);
    for kill in 0..kills {
        let (wait, mut moving) = (random.milliseconds(5, 500), random.fork());
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let client = server.client();
                scope.spawn(move || writer.run(client));
            }
            let mut client = server.client();
            start_move(&mut client, &mut moving, &["here"]);
            std::thread::sleep(wait);
            server.send_sigkill();
        });
        server.kill();
        server.restart();
        let mut client = server.client();
        // The move goes on meanwhile.
        verify(&mut client, &mut writers);
        in_move += u64::from(!client.expect_success("GET", "/v/_shards", None)["move"].is_null());
        if kill % 3 == 2 || kill + 1 == kills {
            finish_move(&mut client, false);
            completed += 1;
            verify(&mut client, &mut writers);
            let shards = client.expect_success("GET", "/v", None)["shards"].as_object().unwrap().len();
            wait_until("former shards are removed", MOVE_TIMEOUT, || {
                directory_count(&server.databases()) == shards + 1
            });
        }
    }
    let written: u64 = writers.iter().map(|writer| writer.count).sum();
    println!(
        "{kills} kills while shards moved, {in_move} before the end of a move: {written} writes, {completed} checks \
         after it, 0 lost, 0 twice"
    );
    assert!(written > kills * 3, "the writers wrote too little");
    server.assert_no_panic();
    server.kill();
    server.check();
}

/// Lets a replica take the place of a shard. A server may be killed meanwhile.
fn promote(client: &mut Client, random: &mut Random) {
    let Ok(shards) = client.request("GET", "/v/_shards", None) else { return };
    let shards = shards.json()["shards"].clone();
    let shards = shards.as_array().unwrap();
    let shard = &shards[random.below(shards.len() as u64) as usize];
    client.request("POST", "/v/_shards", Some(&json!({"promote": shard["name"]}))).ok();
}

/// Waits until no server has more databases than shards, and a replica of each; one has the virtual database's own.
fn wait_until_removed(client: &mut Client, servers: &[Server]) {
    let started = Instant::now();
    loop {
        let shards = client.expect_success("GET", "/v/_shards", None);
        let expected = 2 * shards["shards"].as_array().unwrap().len() + 1;
        let counts: Vec<usize> = servers.iter().map(|server| directory_count(&server.databases())).collect();
        if counts.iter().sum::<usize>() == expected {
            return;
        }
        if started.elapsed() > MOVE_TIMEOUT {
            let databases: Vec<Value> =
                servers.iter().map(|server| server.client().expect_success("GET", "/_all_dbs", None)).collect();
            panic!("{counts:?} databases instead of {expected}: {databases:?}, {shards}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn killed_moves_between_servers_lose_nothing() {
    let kills = env_u64("STEMMA_SHARD_KILLS", 10);
    let mut random = Random::new(seed("shards between servers"));
    let directory = tempfile::tempdir().unwrap();
    // The first one has the virtual database.
    let names = ["here", "b", "c"];
    let mut servers: Vec<Server> = names.iter().map(|name| Server::start(&directory.path().join(name), &[])).collect();
    let mut client = servers[0].client();
    for (name, server) in names.iter().zip(&servers).skip(1) {
        let url = format!("http://admin:{PASSWORD}@{}", server.address());
        client.expect_success("PUT", &format!("/_servers/{name}"), Some(&json!({"url": url})));
    }
    client.expect_success("PUT", "/v?shards=3&servers=here,b,c&replicas=1", None);
    write_unchanged(&mut client);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.fork())).collect();
    let (mut killed, mut in_move) = ([0; 3], 0);
    for kill in 0..kills {
        let (wait, mut moving) = (random.milliseconds(5, 500), random.fork());
        let victim = random.below(3) as usize;
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let client = servers[0].client();
                scope.spawn(move || writer.run(client));
            }
            let mut client = servers[0].client();
            match moving.percent(40) {
                true => drop(scope.spawn(move || promote(&mut client, &mut moving))),
                false => start_move(&mut client, &mut moving, &names),
            }
            std::thread::sleep(wait);
            servers[victim].send_sigkill();
            if victim > 0 {
                // Writers whose documents are elsewhere go on until this.
                std::thread::sleep(wait);
                servers[0].send_sigkill();
            }
        });
        killed[victim] += 1;
        let ended = if victim == 0 { vec![0] } else { vec![victim, 0] };
        ended.iter().for_each(|at| servers[*at].kill());
        for at in ended {
            servers[at].restart();
        }
        let mut client = servers[0].client();
        in_move += u64::from(!client.expect_success("GET", "/v/_shards", None)["move"].is_null());
        verify(&mut client, &mut writers);
        if kill % 3 == 2 || kill + 1 == kills {
            finish_move(&mut client, true);
            verify(&mut client, &mut writers);
            wait_until_removed(&mut client, &servers);
        }
    }
    let written: u64 = writers.iter().map(|writer| writer.count).sum();
    println!(
        "{kills} kills of three servers ({killed:?}) while shards moved between them, {in_move} before the end of a \
         move: {written} writes, 0 lost, 0 twice"
    );
    assert!(written > kills * 3, "the writers wrote too little");
    for server in &mut servers {
        server.assert_no_panic();
        server.kill();
        server.check();
    }
}
