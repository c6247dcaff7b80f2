//! A server killed at any moment loses nothing that it acknowledged over HTTP, and leaves nothing half done.
//!
//! The test's process, which survives, notes what each writer was told. After each SIGKILL the server is started again, and everything
//! it holds is compared: documents, files, an index against a look at every document, counts, the feed from every sequence that
//! was ever seen. `STEMMA_KILLS` says how often (short: 12).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::client::{Answer, Broken, Client, rev};
use crate::random::{Random, seed, setting};
use crate::server::{Server, text};

const WRITERS: usize = 4;
/// Documents of a writer.
const DOCUMENTS: u64 = 12;
/// Documents that are written with one request.
const TOGETHER: u64 = 4;
/// Kills of one directory before another is begun.
const KILLS_PER_PLACE: u64 = 60;

/// What a document is: its number tells its body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    number: u64,
    files: BTreeMap<String, Vec<u8>>,
}

/// What is known of a document.
#[derive(Debug, Clone, Default)]
struct Known {
    revision: Option<String>,
    /// As it was acknowledged last; none: it is not there.
    held: Option<Held>,
    /// As it may be instead, after a request whose end nobody knows.
    maybe: Option<Option<Held>>,
}

fn body(writer: usize, number: u64) -> Value {
    json!({"writer": writer, "number": number, "fill": "x".repeat(1 + (number * 37 % 600) as usize)})
}

/// One who writes documents that nobody else does.
struct Writer {
    number: usize,
    random: Random,
    next: u64,
    known: BTreeMap<String, Known>,
    acknowledged: u64,
}

/// The server is gone.
struct Gone;

impl Writer {
    fn new(number: usize, random: Random) -> Self {
        let known = (0..DOCUMENTS).map(|document| (format!("w{number}-{document:02}"), Known::default())).collect();
        Writer { number, random, next: 1, known, acknowledged: 0 }
    }

    /// Writes until the server is gone.
    fn run(&mut self, mut client: Client) {
        while self.step(&mut client).is_ok() {}
    }

    fn step(&mut self, client: &mut Client) -> Result<(), Gone> {
        let id = format!("w{}-{:02}", self.number, self.random.below(DOCUMENTS));
        let known = self.known[&id].clone();
        self.next += 1;
        match (known.held, self.random.below(10)) {
            (Some(_), 0) => self.one(client, &id, "DELETE", "", None, None),
            (Some(held), 1..3) => self.attach(client, &id, held),
            (_, 3..5) => self.together(client),
            _ => {
                let held = Held { number: self.next, files: BTreeMap::new() };
                let body = body(self.number, self.next).to_string().into_bytes();
                self.one(client, &id, "PUT", "", Some(("application/json", body)), Some(held))
            }
        }
    }

    fn attach(&mut self, client: &mut Client, id: &str, mut held: Held) -> Result<(), Gone> {
        let length = self.random.below(if self.random.clone().percent(10) { 200_000 } else { 4_000 });
        let mut random = self.random.fork();
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let name = format!("f{}", self.random.below(2));
        held.files.insert(name.clone(), bytes.clone());
        self.one(client, id, "PUT", &format!("/{name}"), Some(("application/octet-stream", bytes)), Some(held))
    }

    /// One request about one document.
    fn one(
        &mut self,
        client: &mut Client,
        id: &str,
        method: &str,
        rest: &str,
        body: Option<(&str, Vec<u8>)>,
        wanted: Option<Held>,
    ) -> Result<(), Gone> {
        let revision = self.known[id].revision.as_deref().map(rev).unwrap_or_default();
        let (kind, bytes) = body.map_or((None, Vec::new()), |(kind, bytes)| (Some(kind), bytes));
        let answer = client.send(method, &format!("/db/{id}{rest}{revision}"), kind, &bytes);
        let known = self.known.get_mut(id).expect("it is one of ours");
        let answer = answer.map_err(|broken| {
            known.maybe = matches!(broken, Broken::Unknown(_)).then_some(wanted.clone());
            Gone
        })?;
        assert!(answer.is_good(), "{method} {id}{rest}: {}", answer.shown());
        *known = acknowledged(text(&answer.json(), "/rev"), wanted);
        self.acknowledged += 1;
        Ok(())
    }

    /// Several documents with one request: each is written on its own merits.
    fn together(&mut self, client: &mut Client) -> Result<(), Gone> {
        let first = self.random.below(DOCUMENTS);
        let ids: Vec<String> =
            (0..TOGETHER).map(|at| format!("w{}-{:02}", self.number, (first + at) % DOCUMENTS)).collect();
        let mut docs = Vec::new();
        let mut wanted = Vec::new();
        for id in &ids {
            self.next += 1;
            let known = &self.known[id];
            let mut doc = body(self.number, self.next);
            doc["_id"] = json!(id);
            if let Some(revision) = &known.revision {
                doc["_rev"] = json!(revision);
            }
            let deletes = known.held.is_some() && self.random.percent(20);
            if deletes {
                doc["_deleted"] = json!(true);
            }
            wanted.push((!deletes).then(|| Held { number: self.next, files: BTreeMap::new() }));
            docs.push(doc);
        }
        let answered = client.ask("POST", "/db/_bulk_docs", Some(&json!({"docs": docs})));
        let rows = match answered {
            Ok(answer) => answer.json(),
            Err(broken) => {
                for (id, wanted) in ids.iter().zip(wanted) {
                    let known = self.known.get_mut(id).expect("it is one of ours");
                    known.maybe = matches!(broken, Broken::Unknown(_)).then_some(wanted);
                }
                return Err(Gone);
            }
        };
        for ((id, wanted), row) in ids.iter().zip(wanted).zip(rows.as_array().expect("a row for each")) {
            assert_eq!(row["ok"], true, "{row}");
            *self.known.get_mut(id).expect("it is one of ours") = acknowledged(text(row, "/rev"), wanted);
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Compares what is there with what was acknowledged; what nobody knew is known then. Returns how many unknown ends were done.
    fn verify(&mut self, there: &BTreeMap<String, (String, Held)>) -> u64 {
        let mut done = 0;
        for (id, known) in &mut self.known {
            let found = there.get(id).map(|(_, held)| held.clone());
            let is_as_acknowledged = found == known.held;
            let is_as_it_may_be = known.maybe.as_ref() == Some(&found);
            assert!(is_as_acknowledged || is_as_it_may_be, "{id} is {}, but {known:?}", summary(found.as_ref()));
            if let (Some((revision, _)), true, None) = (there.get(id), is_as_acknowledged, &known.maybe) {
                assert_eq!(Some(revision), known.revision.as_ref(), "{id}: another revision with the same content");
            }
            done += u64::from(!is_as_acknowledged);
            let revision = there.get(id).map(|(revision, _)| revision.clone());
            *known = Known { revision, held: found, maybe: None };
        }
        done
    }
}

fn summary(held: Option<&Held>) -> String {
    held.map_or_else(
        || "not there".to_owned(),
        |held| format!("number {} with files {:?}", held.number, held.files.keys()),
    )
}

fn acknowledged(revision: &str, held: Option<Held>) -> Known {
    // A document that is deleted is written anew without a revision.
    Known { revision: held.is_some().then(|| revision.to_owned()), held, maybe: None }
}

/// What a reader of the feed was told: sequences with the newest generation of each document by then.
#[derive(Default)]
struct Feed {
    since: Option<String>,
    seen: Vec<String>,
    generations: BTreeMap<String, u64>,
}

impl Feed {
    /// Reads on until the server is gone.
    fn run(&mut self, mut client: Client) {
        while let Ok(answer) = client.ask("GET", &self.path(), None) {
            for row in answer.json()["results"].as_array().expect("rows") {
                self.note(row);
            }
            let last = text(&answer.json(), "/last_seq").to_owned();
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

    fn note(&mut self, row: &Value) {
        let generation = generation(text(row, "/changes/0/rev"));
        let newest = self.generations.entry(text(row, "/id").to_owned()).or_default();
        *newest = generation.max(*newest);
        self.seen.push(text(row, "/seq").to_owned());
    }

    /// The feed is gapless: from each sequence that was seen, exactly what is later is told.
    fn verify(&self, client: &mut Client, random: &mut Random) -> usize {
        let all = client.good("GET", "/db/_changes", None);
        let rows = all["results"].as_array().expect("rows");
        let order: Vec<u64> = rows.iter().map(|row| position(text(row, "/seq"))).collect();
        assert!(order.windows(2).all(|two| two[0] < two[1]), "sequences don't ascend: {order:?}");
        let mut ids: Vec<&str> = rows.iter().map(|row| text(row, "/id")).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "a document is told twice: {ids:?}");
        let now: BTreeMap<&str, u64> =
            rows.iter().map(|row| (text(row, "/id"), generation(text(row, "/changes/0/rev")))).collect();
        for (id, seen) in &self.generations {
            let there = now.get(id.as_str()).copied().unwrap_or(0);
            assert!(there >= *seen, "{id}: the feed told of generation {seen}, and {there} is there");
        }
        let last = position(text(&all, "/last_seq"));
        // All of the newest, and some of the others: there are many.
        let few = self.seen.iter().rev().take(20).chain(self.seen.iter().filter(|_| random.clone().percent(5)));
        let few: Vec<&String> = few.take(60).collect();
        for since in &few {
            let reached = position(since);
            assert!(last >= reached, "the feed told {reached}, and ends at {last}");
            let later = client.good("GET", &format!("/db/_changes?since={since}"), None);
            let expected: Vec<&Value> = rows.iter().filter(|row| position(text(row, "/seq")) > reached).collect();
            assert_eq!(
                later["results"].as_array().expect("rows").iter().collect::<Vec<_>>(),
                expected,
                "since {since}"
            );
        }
        few.len()
    }
}

fn generation(revision: &str) -> u64 {
    revision.split('-').next().and_then(|number| number.parse().ok()).expect("a revision begins with a number")
}

/// The number in a sequence.
fn position(sequence: &str) -> u64 {
    sequence.split('-').next().and_then(|number| number.parse().ok()).expect("a sequence begins with a number")
}

/// Declares and drops an index and compacts, until the server is gone. Returns whether the index is there, if that is known.
fn administrate(mut client: Client, mut random: Random, mut is_there: Option<bool>) -> Option<bool> {
    let good = |answer: Result<Answer, Broken>| {
        answer.is_ok_and(|answer| {
            assert!(answer.is_good() || answer.status == 404, "{}", answer.shown());
            true
        })
    };
    loop {
        std::thread::sleep(random.milliseconds(1, 60));
        let goes_on = match random.below(3) {
            0 => good(client.ask("POST", "/db/_compact", Some(&json!({})))),
            1 => {
                let index = json!({"index": {"fields": ["writer", "number"]}, "ddoc": "by", "name": "number"});
                let done = good(client.ask("POST", "/db/_index", Some(&index)));
                is_there = done.then_some(true);
                done
            }
            _ => {
                let done = good(client.ask("DELETE", "/db/_index/by/json/number", None));
                is_there = done.then_some(false);
                done
            }
        };
        if !goes_on {
            return is_there;
        }
    }
}

/// Every document that is not deleted, with its files.
fn read_all(client: &mut Client) -> BTreeMap<String, (String, Held)> {
    let all = client.good("GET", "/db/_all_docs?include_docs=true&attachments=true", None);
    let rows = all["rows"].as_array().expect("rows").iter().filter(|row| !text(row, "/id").starts_with("_design/"));
    rows.map(|row| {
        let doc = &row["doc"];
        let (number, writer) = (doc["number"].as_u64().expect("a number"), doc["writer"].as_u64().expect("a writer"));
        let whole = body(writer as usize, number);
        let same = whole.as_object().expect("an object").iter().all(|(name, value)| doc[name] == *value);
        assert!(same, "not as it was written: {doc}");
        let files = doc.get("_attachments").and_then(Value::as_object).into_iter().flatten();
        let files =
            files.map(|(name, file)| (name.clone(), BASE64_STANDARD.decode(text(file, "/data")).expect("Base64")));
        let held = Held { number, files: files.collect() };
        (text(row, "/id").to_owned(), (text(doc, "/_rev").to_owned(), held))
    })
    .collect()
}

/// Queries by an index, listings and counts tell the same as a look at every document.
fn verify_agreement(client: &mut Client, there: &BTreeMap<String, (String, Held)>, index: Option<bool>) {
    for writer in 0..WRITERS {
        let query =
            json!({"selector": {"writer": writer, "number": {"$gt": 0}}, "fields": ["_id", "_rev"], "limit": 10000});
        let found = client.good("POST", "/db/_find", Some(&query));
        let mut found: Vec<(&str, &str)> =
            found["docs"].as_array().expect("docs").iter().map(|doc| (text(doc, "/_id"), text(doc, "/_rev"))).collect();
        found.sort_unstable();
        let of_it = there.iter().filter(|(id, _)| id.starts_with(&format!("w{writer}-")));
        let expected: Vec<(&str, &str)> = of_it.map(|(id, (revision, _))| (id.as_str(), revision.as_str())).collect();
        assert_eq!(found, expected, "by the index of writer {writer}");
    }
    let indexes = client.good("GET", "/db/_index", None);
    let declared = indexes["indexes"].as_array().expect("indexes").iter().any(|index| index["name"] == "number");
    assert!(index.is_none_or(|index| index == declared), "the index was declared: {index:?}, and is: {declared}");
    let info = client.good("GET", "/db", None);
    let feed = client.good("GET", "/db/_changes", None);
    let rows = feed["results"].as_array().expect("rows");
    let deleted = rows.iter().filter(|row| row["deleted"] == true).count();
    let listed = client.good("GET", "/db/_all_docs", None);
    let alive = listed["rows"].as_array().expect("rows").len();
    assert_eq!((&info["doc_count"], &info["doc_del_count"]), (&json!(alive), &json!(deleted)), "{info}");
    assert_eq!((rows.len() - deleted, &listed["total_rows"]), (alive, &json!(alive)));
    assert_eq!(info["update_seq"], feed["last_seq"]);
}

/// What was seen.
#[derive(Default)]
struct Seen {
    acknowledged: u64,
    unknown_done: u64,
    resumed: usize,
    slowest: Duration,
}

/// One directory, its server killed some times.
fn place(path: &Path, kills: u64, random: &mut Random, seen: &mut Seen) {
    let mut server = Server::start(path, &[]);
    server.client().good("PUT", "/db", None);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.fork())).collect();
    let mut feed = Feed::default();
    let mut index = Some(false);
    for kill in 0..kills {
        let (patience, fork) = (random.milliseconds(20, 500), random.fork());
        index = std::thread::scope(|scope| {
            let server_ref = &server;
            for writer in &mut writers {
                scope.spawn(move || writer.run(server_ref.client()));
            }
            let feed = &mut feed;
            scope.spawn(move || feed.run(server_ref.client()));
            let administrator = scope.spawn(move || administrate(server_ref.client(), fork, index));
            std::thread::sleep(patience);
            server_ref.kill_now();
            administrator.join().unwrap()
        });
        server.kill();
        if kill % 7 == 6 {
            forget_trees(&server);
        }
        seen.slowest = seen.slowest.max(server.restart());
        let mut client = server.client();
        let there = read_all(&mut client);
        seen.unknown_done += writers.iter_mut().map(|writer| writer.verify(&there)).sum::<u64>();
        verify_agreement(&mut client, &there, index);
        seen.resumed += feed.verify(&mut client, random);
    }
    seen.acknowledged += writers.iter().map(|writer| writer.acknowledged).sum::<u64>();
    server.assert_calm();
    server.stop();
    server.check();
}

/// Removes what is reduced from the log: it is made again.
fn forget_trees(server: &Server) {
    for entry in server.databases().read_dir().expect("databases").flatten() {
        std::fs::remove_dir_all(entry.path().join("tree")).ok();
    }
}

#[test]
fn a_server_that_is_killed_loses_nothing_it_acknowledged() {
    let mut random = Random::new(seed("kill -9 over HTTP"));
    let kills = setting("STEMMA_KILLS", 12);
    let mut seen = Seen::default();
    let mut done = 0;
    while done < kills {
        let some = KILLS_PER_PLACE.min(kills - done);
        let directory = tempfile::tempdir().unwrap();
        place(directory.path(), some, &mut random, &mut seen);
        done += some;
    }
    println!(
        "kill -9 over HTTP: {kills} kills, {} acknowledged writes, {} done without an answer, {} resumed feeds, slowest start {:?}: \
         0 lost, 0 partial, 0 in the index, 0 in the feed",
        seen.acknowledged, seen.unknown_done, seen.resumed, seen.slowest
    );
    assert!(seen.acknowledged > kills * 10, "the writers never got to write");
}

/// What finds nothing wrong where something is, is no test.
mod teeth {
    use super::*;

    fn held(number: u64, files: &[(&str, &[u8])]) -> Held {
        Held { number, files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect() }
    }

    /// A writer that was told of one document, and may have written another state of it.
    fn verify(told: Option<Held>, maybe: Option<Option<Held>>, there: Option<Held>) -> u64 {
        let mut writer = Writer::new(0, Random::new(1));
        let revision = told.is_some().then(|| "1-a".to_owned());
        writer.known.insert("w0-00".to_owned(), Known { revision, held: told, maybe });
        writer.verify(&there.into_iter().map(|held| ("w0-00".to_owned(), ("1-a".to_owned(), held))).collect())
    }

    #[test]
    fn what_was_told_or_may_be_is_accepted() {
        let (one, two) = (held(1, &[("f", b"x")]), held(2, &[]));
        assert_eq!(verify(Some(one.clone()), None, Some(one.clone())), 0);
        assert_eq!(verify(Some(one.clone()), Some(Some(two.clone())), Some(two)), 1);
        assert_eq!(verify(Some(one), Some(None), None), 1);
    }

    #[test]
    #[should_panic(expected = "is not there")]
    fn a_lost_write_is_found() {
        verify(Some(held(1, &[])), None, None);
    }

    #[test]
    #[should_panic(expected = "is number 1 ")]
    fn a_deletion_that_is_undone_is_found() {
        verify(None, None, Some(held(1, &[])));
    }

    #[test]
    #[should_panic(expected = "is number 2 ")]
    fn half_of_a_write_is_found() {
        let whole = Some(held(2, &[("f", b"whole")]));
        verify(Some(held(1, &[])), Some(whole), Some(held(2, &[("f", b"who")])));
    }
}
