//! A server killed at random times loses no acknowledged write and leaves no partial one.
//!
//! The test process records what each writer was acknowledged. After each SIGKILL the server is restarted and all its
//! data is compared: documents, attachments, query results by index and by scan, counts, and the changes feed from
//! every sequence seen. `STEMMA_KILLS` sets the number of kills (default 12).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::client::{Client, RequestError, Response, rev};
use crate::random::{Random, env_u64, seed};
use crate::server::{Server, str_at};

const WRITERS: usize = 4;
/// Number of documents per writer.
const DOCUMENTS: u64 = 12;
/// Number of documents per bulk request.
const BULK_DOCUMENTS: u64 = 4;
/// Number of kills before a new directory is used.
const KILLS_PER_DIRECTORY: u64 = 60;

/// Content of a document; the number determines its body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DocumentState {
    number: u64,
    files: BTreeMap<String, Vec<u8>>,
}

/// Expected state of a document.
#[derive(Debug, Clone, Default)]
struct TrackedDocument {
    revision: Option<String>,
    /// The state last acknowledged; `None` if the document does not exist.
    state: Option<DocumentState>,
    /// The alternative state after a request with an unknown outcome.
    possible: Option<Option<DocumentState>>,
}

fn body(writer: usize, number: u64) -> Value {
    json!({"writer": writer, "number": number, "fill": "x".repeat(1 + (number * 37 % 600) as usize)})
}

/// A client that writes its own documents.
struct Writer {
    number: usize,
    random: Random,
    next: u64,
    tracked: BTreeMap<String, TrackedDocument>,
    acknowledged: u64,
}

/// The connection to the server failed.
struct ServerGone;

impl Writer {
    fn new(number: usize, random: Random) -> Self {
        let tracked =
            (0..DOCUMENTS).map(|document| (format!("w{number}-{document:02}"), TrackedDocument::default())).collect();
        Writer { number, random, next: 1, tracked, acknowledged: 0 }
    }

    /// Writes until the server is killed.
    fn run(&mut self, mut client: Client) {
        while self.step(&mut client).is_ok() {}
    }

    fn step(&mut self, client: &mut Client) -> Result<(), ServerGone> {
        let id = format!("w{}-{:02}", self.number, self.random.below(DOCUMENTS));
        let tracked = self.tracked[&id].clone();
        self.next += 1;
        match (tracked.state, self.random.below(10)) {
            (Some(_), 0) => self.send_one(client, &id, "DELETE", "", None, None),
            (Some(state), 1..3) => self.attach(client, &id, state),
            (_, 3..5) => self.write_bulk(client),
            _ => {
                let state = DocumentState { number: self.next, files: BTreeMap::new() };
                let body = body(self.number, self.next).to_string().into_bytes();
                self.send_one(client, &id, "PUT", "", Some(("application/json", body)), Some(state))
            }
        }
    }

    fn attach(&mut self, client: &mut Client, id: &str, mut state: DocumentState) -> Result<(), ServerGone> {
        let length = self.random.below(if self.random.clone().percent(10) { 200_000 } else { 4_000 });
        let mut random = self.random.fork();
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let name = format!("f{}", self.random.below(2));
        state.files.insert(name.clone(), bytes.clone());
        self.send_one(client, id, "PUT", &format!("/{name}"), Some(("application/octet-stream", bytes)), Some(state))
    }

    /// Sends one request for one document.
    fn send_one(
        &mut self,
        client: &mut Client,
        id: &str,
        method: &str,
        rest: &str,
        body: Option<(&str, Vec<u8>)>,
        expected_state: Option<DocumentState>,
    ) -> Result<(), ServerGone> {
        let revision = self.tracked[id].revision.as_deref().map(rev).unwrap_or_default();
        let (kind, bytes) = body.map_or((None, Vec::new()), |(kind, bytes)| (Some(kind), bytes));
        let answer = client.send(method, &format!("/db/{id}{rest}{revision}"), kind, &bytes);
        let tracked = self.tracked.get_mut(id).expect("a document of this writer");
        let answer = answer.map_err(|broken| {
            tracked.possible = matches!(broken, RequestError::Unknown(_)).then_some(expected_state.clone());
            ServerGone
        })?;
        assert!(answer.is_success(), "{method} {id}{rest}: {}", answer.summary());
        *tracked = acknowledged(str_at(&answer.json(), "/rev"), expected_state);
        self.acknowledged += 1;
        Ok(())
    }

    /// Writes several documents with one request; each succeeds or fails on its own.
    fn write_bulk(&mut self, client: &mut Client) -> Result<(), ServerGone> {
        let first = self.random.below(DOCUMENTS);
        let ids: Vec<String> =
            (0..BULK_DOCUMENTS).map(|at| format!("w{}-{:02}", self.number, (first + at) % DOCUMENTS)).collect();
        let mut docs = Vec::new();
        let mut expected_state = Vec::new();
        for id in &ids {
            self.next += 1;
            let tracked = &self.tracked[id];
            let mut doc = body(self.number, self.next);
            doc["_id"] = json!(id);
            if let Some(revision) = &tracked.revision {
                doc["_rev"] = json!(revision);
            }
            let deletes = tracked.state.is_some() && self.random.percent(20);
            if deletes {
                doc["_deleted"] = json!(true);
            }
            expected_state.push((!deletes).then(|| DocumentState { number: self.next, files: BTreeMap::new() }));
            docs.push(doc);
        }
        let answered = client.request("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
        let rows = match answered {
            Ok(answer) => answer.json(),
            Err(broken) => {
                for (id, expected_state) in ids.iter().zip(expected_state) {
                    let tracked = self.tracked.get_mut(id).expect("a document of this writer");
                    tracked.possible = matches!(broken, RequestError::Unknown(_)).then_some(expected_state);
                }
                return Err(ServerGone);
            }
        };
        for ((id, expected_state), row) in ids.iter().zip(expected_state).zip(rows.as_array().expect("a row for each"))
        {
            assert_eq!(row["ok"], true, "{row}");
            *self.tracked.get_mut(id).expect("a document of this writer") =
                acknowledged(str_at(row, "/rev"), expected_state);
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Compares the stored documents with the expected states and resolves unknown outcomes. Returns the number of
    /// requests with an unknown outcome that were executed.
    fn verify(&mut self, stored: &BTreeMap<String, (String, DocumentState)>) -> u64 {
        let mut done = 0;
        for (id, tracked) in &mut self.tracked {
            let found = stored.get(id).map(|(_, state)| state.clone());
            let is_as_acknowledged = found == tracked.state;
            let is_as_possible = tracked.possible.as_ref() == Some(&found);
            assert!(is_as_acknowledged || is_as_possible, "{id} is {}, but {tracked:?}", summary(found.as_ref()));
            if let (Some((revision, _)), true, None) = (stored.get(id), is_as_acknowledged, &tracked.possible) {
                assert_eq!(Some(revision), tracked.revision.as_ref(), "{id}: another revision with the same content");
            }
            done += u64::from(!is_as_acknowledged);
            let revision = stored.get(id).map(|(revision, _)| revision.clone());
            *tracked = TrackedDocument { revision, state: found, possible: None };
        }
        done
    }
}

fn summary(state: Option<&DocumentState>) -> String {
    state.map_or_else(
        || "missing".to_owned(),
        |state| format!("number {} with files {:?}", state.number, state.files.keys()),
    )
}

fn acknowledged(revision: &str, state: Option<DocumentState>) -> TrackedDocument {
    // A deleted document is recreated without naming a revision.
    TrackedDocument { revision: state.is_some().then(|| revision.to_owned()), state, possible: None }
}

/// A reader of the changes feed: the sequences it saw, and the newest generation of each document.
#[derive(Default)]
struct Feed {
    since: Option<String>,
    seen: Vec<String>,
    generations: BTreeMap<String, u64>,
}

impl Feed {
    /// Reads until the server is killed.
    fn run(&mut self, mut client: Client) {
        while let Ok(answer) = client.request("GET", &self.path(), None) {
            for row in answer.json()["results"].as_array().expect("rows") {
                self.record(row);
            }
            let last = str_at(&answer.json(), "/last_seq").to_owned();
            if self.since.as_ref() != Some(&last) {
                self.seen.push(last.clone());
            }
            self.since = Some(last);
        }
    }

    fn path(&self) -> String {
        let since = self.since.as_deref().unwrap_or("0");
        format!("/db/_changes?feed=longpoll&timeout=1000&limit=20&since={since}")
    }

    fn record(&mut self, row: &Value) {
        let generation = generation(str_at(row, "/changes/0/rev"));
        let newest = self.generations.entry(str_at(row, "/id").to_owned()).or_default();
        *newest = generation.max(*newest);
        self.seen.push(str_at(row, "/seq").to_owned());
    }

    /// Verifies that the feed is gapless: from each sequence seen, it returns exactly the later changes. Returns the
    /// number of sequences tried.
    fn verify(&self, client: &mut Client, random: &mut Random) -> usize {
        let all = client.expect_success("GET", "/db/_changes", None);
        let rows = all["results"].as_array().expect("rows");
        let order: Vec<u64> = rows.iter().map(|row| position(str_at(row, "/seq"))).collect();
        assert!(order.windows(2).all(|two| two[0] < two[1]), "sequences do not ascend: {order:?}");
        let mut ids: Vec<&str> = rows.iter().map(|row| str_at(row, "/id")).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "a document appears twice: {ids:?}");
        let now: BTreeMap<&str, u64> =
            rows.iter().map(|row| (str_at(row, "/id"), generation(str_at(row, "/changes/0/rev")))).collect();
        for (id, seen) in &self.generations {
            let stored = now.get(id.as_str()).copied().unwrap_or(0);
            assert!(stored >= *seen, "{id}: the feed had generation {seen}, but {stored} is stored");
        }
        let last = position(str_at(&all, "/last_seq"));
        // The newest sequences and a sample of the others.
        let sample = self.seen.iter().rev().take(20).chain(self.seen.iter().filter(|_| random.clone().percent(5)));
        let sample: Vec<&String> = sample.take(60).collect();
        for since in &sample {
            let reached = position(since);
            assert!(last >= reached, "the feed returned {reached}, but ends at {last}");
            let later = client.expect_success("GET", &format!("/db/_changes?since={since}"), None);
            let expected: Vec<&Value> = rows.iter().filter(|row| position(str_at(row, "/seq")) > reached).collect();
            assert_eq!(
                later["results"].as_array().expect("rows").iter().collect::<Vec<_>>(),
                expected,
                "since {since}"
            );
        }
        sample.len()
    }
}

fn generation(revision: &str) -> u64 {
    revision.split('-').next().and_then(|number| number.parse().ok()).expect("a revision begins with a number")
}

/// The numeric part of a sequence.
fn position(sequence: &str) -> u64 {
    sequence.split('-').next().and_then(|number| number.parse().ok()).expect("a sequence begins with a number")
}

/// Creates and drops an index and compacts, until the server is killed. Returns whether the index exists, if that is
/// known.
fn run_admin(mut client: Client, mut random: Random, mut index_exists: Option<bool>) -> Option<bool> {
    let succeeded = |answer: Result<Response, RequestError>| {
        answer.is_ok_and(|answer| {
            assert!(answer.is_success() || answer.status == 404, "{}", answer.summary());
            true
        })
    };
    loop {
        std::thread::sleep(random.milliseconds(1, 60));
        let is_running = match random.below(3) {
            0 => succeeded(client.request("POST", "/db/_compact", Some(&json!({})))),
            1 => {
                let index = json!({"index": {"fields": ["writer", "number"]}, "ddoc": "by", "name": "number"});
                let done = succeeded(client.request("POST", "/db/_index", Some(&index)));
                index_exists = done.then_some(true);
                done
            }
            _ => {
                let done = succeeded(client.request("DELETE", "/db/_index/by/json/number", None));
                index_exists = done.then_some(false);
                done
            }
        };
        if !is_running {
            return index_exists;
        }
    }
}

/// Reads every document that is not deleted, with its attachments.
fn read_all(client: &mut Client) -> BTreeMap<String, (String, DocumentState)> {
    let all = client.expect_success("GET", "/db/_all_docs?include_docs=true&attachments=true", None);
    let rows = all["rows"].as_array().expect("rows").iter().filter(|row| !str_at(row, "/id").starts_with("_design/"));
    rows.map(|row| {
        let doc = &row["doc"];
        let (number, writer) = (doc["number"].as_u64().expect("a number"), doc["writer"].as_u64().expect("a writer"));
        let whole = body(writer as usize, number);
        let same = whole.as_object().expect("an object").iter().all(|(name, value)| doc[name] == *value);
        assert!(same, "not the body that was written: {doc}");
        let files = doc.get("_attachments").and_then(Value::as_object).into_iter().flatten();
        let files =
            files.map(|(name, file)| (name.clone(), BASE64_STANDARD.decode(str_at(file, "/data")).expect("Base64")));
        let state = DocumentState { number, files: files.collect() };
        (str_at(row, "/id").to_owned(), (str_at(doc, "/_rev").to_owned(), state))
    })
    .collect()
}

/// Verifies that indexed queries, listings and counts agree with the documents read.
fn verify_agreement(client: &mut Client, stored: &BTreeMap<String, (String, DocumentState)>, index: Option<bool>) {
    for writer in 0..WRITERS {
        let query =
            json!({"selector": {"writer": writer, "number": {"$gt": 0}}, "fields": ["_id", "_rev"], "limit": 10000});
        let found = client.expect_success("POST", "/db/_find", Some(&query));
        let mut found: Vec<(&str, &str)> = found["docs"]
            .as_array()
            .expect("docs")
            .iter()
            .map(|doc| (str_at(doc, "/_id"), str_at(doc, "/_rev")))
            .collect();
        found.sort_unstable();
        let of_writer = stored.iter().filter(|(id, _)| id.starts_with(&format!("w{writer}-")));
        let expected: Vec<(&str, &str)> =
            of_writer.map(|(id, (revision, _))| (id.as_str(), revision.as_str())).collect();
        assert_eq!(found, expected, "by the index of writer {writer}");
    }
    let indexes = client.expect_success("GET", "/db/_index", None);
    let declared = indexes["indexes"].as_array().expect("indexes").iter().any(|index| index["name"] == "number");
    assert!(
        index.is_none_or(|index| index == declared),
        "expected the index to exist: {index:?}, but found: {declared}"
    );
    let info = client.expect_success("GET", "/db", None);
    let feed = client.expect_success("GET", "/db/_changes", None);
    let rows = feed["results"].as_array().expect("rows");
    let deleted = rows.iter().filter(|row| row["deleted"] == true).count();
    let listed = client.expect_success("GET", "/db/_all_docs", None);
    let live = listed["rows"].as_array().expect("rows").len();
    assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(live), &json!(deleted)), "{info}");
    assert_eq!((rows.len() - deleted, &listed["total_rows"]), (live, &json!(live)));
    assert_eq!(info["update_seq"], feed["last_seq"]);
}

/// Counts over all kills.
#[derive(Default)]
struct Totals {
    acknowledged: u64,
    unknown_done: u64,
    resumed: usize,
    slowest: Duration,
}

/// Runs a server on a new directory and kills it `kills` times.
fn run_directory(path: &Path, kills: u64, random: &mut Random, totals: &mut Totals) {
    let mut server = Server::start(path, &[]);
    server.client().expect_success("PUT", "/db", None);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.fork())).collect();
    let mut feed = Feed::default();
    let mut index = Some(false);
    for kill in 0..kills {
        let (delay, fork) = (random.milliseconds(20, 500), random.fork());
        index = std::thread::scope(|scope| {
            let server_ref = &server;
            for writer in &mut writers {
                scope.spawn(move || writer.run(server_ref.client()));
            }
            let feed = &mut feed;
            scope.spawn(move || feed.run(server_ref.client()));
            let administrator = scope.spawn(move || run_admin(server_ref.client(), fork, index));
            std::thread::sleep(delay);
            server_ref.send_sigkill();
            administrator.join().unwrap()
        });
        server.kill();
        if kill % 7 == 6 {
            remove_trees(&server);
        }
        totals.slowest = totals.slowest.max(server.restart());
        let mut client = server.client();
        let stored = read_all(&mut client);
        totals.unknown_done += writers.iter_mut().map(|writer| writer.verify(&stored)).sum::<u64>();
        verify_agreement(&mut client, &stored, index);
        totals.resumed += feed.verify(&mut client, random);
    }
    totals.acknowledged += writers.iter().map(|writer| writer.acknowledged).sum::<u64>();
    server.assert_no_panic();
    server.stop();
    server.check();
}

/// Removes the trees, which are then rebuilt from the log.
fn remove_trees(server: &Server) {
    for entry in server.databases().read_dir().expect("databases").flatten() {
        std::fs::remove_dir_all(entry.path().join("tree")).ok();
    }
}

#[test]
fn killed_server_loses_no_acknowledged_write() {
    let mut random = Random::new(seed("kill -9 over HTTP"));
    let kills = env_u64("STEMMA_KILLS", 12);
    let mut totals = Totals::default();
    let mut done = 0;
    while done < kills {
        let some = KILLS_PER_DIRECTORY.min(kills - done);
        let directory = tempfile::tempdir().unwrap();
        run_directory(directory.path(), some, &mut random, &mut totals);
        done += some;
    }
    println!(
        "kill -9 over HTTP: {kills} kills, {} acknowledged writes, {} done without an answer, {} resumed feeds, \
         slowest start {:?}: 0 lost, 0 partial, 0 in the index, 0 in the feed",
        totals.acknowledged, totals.unknown_done, totals.resumed, totals.slowest
    );
    assert!(totals.acknowledged > kills * 10, "the writers wrote too little");
}

/// Tests of the verification: it must detect each injected fault.
mod self_tests {
    use super::*;

    fn state(number: u64, files: &[(&str, &[u8])]) -> DocumentState {
        DocumentState {
            number,
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
        }
    }

    /// Verifies one stored document against an acknowledged and a possible state.
    fn verify(
        expected: Option<DocumentState>,
        possible: Option<Option<DocumentState>>,
        stored: Option<DocumentState>,
    ) -> u64 {
        let mut writer = Writer::new(0, Random::new(1));
        let revision = expected.is_some().then(|| "1-a".to_owned());
        writer.tracked.insert("w0-00".to_owned(), TrackedDocument { revision, state: expected, possible });
        writer.verify(&stored.into_iter().map(|state| ("w0-00".to_owned(), ("1-a".to_owned(), state))).collect())
    }

    #[test]
    fn acknowledged_and_possible_states_are_accepted() {
        let (one, two) = (state(1, &[("f", b"x")]), state(2, &[]));
        assert_eq!(verify(Some(one.clone()), None, Some(one.clone())), 0);
        assert_eq!(verify(Some(one.clone()), Some(Some(two.clone())), Some(two)), 1);
        assert_eq!(verify(Some(one), Some(None), None), 1);
    }

    #[test]
    #[should_panic(expected = "is missing")]
    fn lost_write_is_detected() {
        verify(Some(state(1, &[])), None, None);
    }

    #[test]
    #[should_panic(expected = "is number 1 ")]
    fn undone_deletion_is_detected() {
        verify(None, None, Some(state(1, &[])));
    }

    #[test]
    #[should_panic(expected = "is number 2 ")]
    fn partial_write_is_detected() {
        let whole = Some(state(2, &[("f", b"whole")]));
        verify(Some(state(1, &[])), Some(whole), Some(state(2, &[("f", b"who")])));
    }
}
