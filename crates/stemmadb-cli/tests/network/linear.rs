//! Linearizability of single documents under concurrent clients and kill -9, checked on recorded histories.
//!
//! Each round uses new documents and several clients, and kills the server at a random time. The server is restarted,
//! the clients continue, and at the end every document is read. `STEMMA_LINEAR_SECONDS` sets the duration (default 8).
//! Each document receives about twenty calls, then the clients move on to others: to reject a history, the search must
//! try all possible orders.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, RequestError, header, read_body, read_head, rev};
use crate::history::{Call, Operation, Outcome, is_linearizable};
use crate::random::{Random, env_u64, seed};
use crate::server::{Server, str_at};

/// Number of writing clients. The test of a faulty server uses fewer, so that there are fewer orders to try.
const CLIENTS: usize = 6;
/// Number of documents written at the same time.
const DOCUMENTS: u64 = 4;
/// Number of calls to these documents before the clients move on to others.
const CALLS: u64 = DOCUMENTS * 20;

/// A client, and the revision and number it last saw of each document.
struct Writer<'a> {
    /// Of one server or several: each call goes to one of them.
    clients: Vec<Client>,
    number: usize,
    random: Random,
    numbers: &'a AtomicU64,
    known: BTreeMap<u64, Option<(String, u64)>>,
    calls: Vec<(u64, Call)>,
}

/// The outcome and the new or current revision; `None` if unknown.
type CallOutcome = Option<(Outcome, Option<String>)>;

impl Writer<'_> {
    /// Performs one random operation and records it.
    fn step(&mut self, round: u64) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let document = number / CALLS * DOCUMENTS + self.random.below(DOCUMENTS);
        let path = format!("/linear/r{round}-{document}");
        let known = self.known.get(&document).cloned().flatten();
        let operation = match (&known, self.random.below(10)) {
            (_, 0..4) => Operation::Read,
            (Some((_, held)), 4) => Operation::Delete(*held),
            (known, _) => Operation::Set { expected: known.as_ref().map(|(_, held)| *held), number },
        };
        let started = Instant::now();
        let revision = known.map(|(revision, _)| revision);
        let Ok(outcome) = self.request(&path, operation, revision.as_deref()) else {
            // Connection refused: the request was not executed.
            std::thread::sleep(Duration::from_millis(5));
            return;
        };
        let finished = outcome.as_ref().map(|(outcome, _)| (Instant::now(), *outcome));
        self.calls.push((document, Call { client: self.number, operation, started, finished }));
        match outcome {
            Some((Outcome::Holds(Some(held)), Some(revision))) => self.known.insert(document, Some((revision, held))),
            Some((Outcome::Done, Some(revision))) if operation != Operation::Read => {
                let held = if let Operation::Set { number, .. } = operation { Some((revision, number)) } else { None };
                self.known.insert(document, held)
            }
            Some((Outcome::Holds(None), _)) => self.known.insert(document, None),
            // After a conflict, the client keeps using the old revision until it reads.
            _ => None,
        };
    }

    fn request(
        &mut self,
        path: &str,
        operation: Operation,
        revision: Option<&str>,
    ) -> Result<CallOutcome, std::io::Error> {
        let query = revision.map(rev).unwrap_or_default();
        let client = self.random.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[client];
        let answer = match operation {
            Operation::Read => client.request("GET", path, None),
            Operation::Set { number, .. } => {
                client.request("PUT", &format!("{path}{query}"), Some(&json!({"number": number})))
            }
            Operation::Delete(_) => client.request("DELETE", &format!("{path}{query}"), None),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(RequestError::NotSent(error)) => return Err(error),
            Err(RequestError::Unknown(_)) => return Ok(None),
        };
        Ok(match (operation, answer.status) {
            (Operation::Read, 200) => {
                let read = answer.json();
                Some((Outcome::Holds(read["number"].as_u64()), Some(str_at(&read, "/_rev").to_owned())))
            }
            (Operation::Read, 404) => Some((Outcome::Holds(None), None)),
            (_, 200..=202) => Some((Outcome::Done, Some(str_at(&answer.json(), "/rev").to_owned()))),
            (Operation::Set { .. }, 409) | (Operation::Delete(_), 404 | 409) => Some((Outcome::Conflict, None)),
            // The server is shutting down.
            (_, 500..) => None,
            _ => panic!("{operation:?} of {path}: {}", answer.summary()),
        })
    }
}

/// Counts over several rounds.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) rounds: u64,
    pub(crate) histories: usize,
    pub(crate) calls: usize,
    pub(crate) unknown: usize,
    pub(crate) refused: Vec<String>,
}

/// Runs one round: clients write and read while the server is killed and restarted; then checks each document's
/// history.
fn round(server: &mut Server, at: SocketAddr, clients: usize, number: u64, random: &mut Random, totals: &mut Totals) {
    let (before, after) = (random.milliseconds(30, 300), random.milliseconds(30, 150));
    let disturb = || {
        std::thread::sleep(before);
        server.kill();
        server.restart();
        std::thread::sleep(after);
    };
    round_with(&[at], (clients, Duration::from_secs(5)), number, random, totals, disturb);
}

/// Runs one round with several servers, while `disturb` runs. `clients`: their number, and how long they wait.
pub(crate) fn round_with(
    at: &[SocketAddr],
    (clients, patience): (usize, Duration),
    number: u64,
    random: &mut Random,
    totals: &mut Totals,
    disturb: impl FnOnce(),
) {
    let (numbers, stop) = (AtomicU64::new(1), AtomicBool::new(false));
    let randoms: Vec<Random> = (0..clients).map(|_| random.fork()).collect();
    let connect = || at.iter().map(|at| Client::new(*at).timeout(patience)).collect();
    let calls = std::thread::scope(|scope| {
        let writers = randoms.into_iter().enumerate().map(|(client, random)| {
            let (numbers, stop) = (&numbers, &stop);
            scope.spawn(move || {
                let (known, calls) = (BTreeMap::new(), Vec::new());
                let clients = connect();
                let mut writer = Writer { clients, number: client, random, numbers, known, calls };
                while !stop.load(Ordering::Relaxed) {
                    writer.step(number);
                }
                writer.calls
            })
        });
        let writers: Vec<_> = writers.collect();
        disturb();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let mut histories: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    for (document, call) in calls {
        histories.entry(document).or_default().push(call);
    }
    let (known, random) = (BTreeMap::new(), random.fork());
    let mut last = Writer { clients: connect(), number: clients, random, numbers: &numbers, known, calls: Vec::new() };
    for (document, calls) in &mut histories {
        let started = Instant::now();
        let read = || last.request(&format!("/linear/r{number}-{document}"), Operation::Read, None).ok().flatten();
        let (outcome, _) = std::iter::repeat_with(read).take(20).flatten().next().expect("the server runs");
        calls.push(Call {
            client: clients,
            operation: Operation::Read,
            started,
            finished: Some((Instant::now(), outcome)),
        });
    }
    totals.rounds += 1;
    totals.histories += histories.len();
    for (document, calls) in &histories {
        totals.calls += calls.len();
        totals.unknown += calls.iter().filter(|call| call.finished.is_none()).count();
        if !is_linearizable(calls) {
            totals.refused.push(format!("round {number}, document {document}: {calls:#?}"));
        }
    }
}

#[test]
fn each_document_is_linearizable_under_kills() {
    let mut random = Random::new(seed("linearisability"));
    let directory = tempfile::tempdir().unwrap();
    let duration = Duration::from_secs(env_u64("STEMMA_LINEAR_SECONDS", 8));
    let mut all = Vec::new();
    // Even without flushes, a killed process loses nothing: its writes are in the kernel's page cache.
    for (durability, share) in [("sync", 3), ("none", 1)] {
        let mut server = Server::start(&directory.path().join(durability), &["--durability", durability]);
        server.client().expect_success("PUT", "/linear", None);
        let (started, mut totals) = (Instant::now(), Totals::default());
        while started.elapsed() < duration * share / 4 {
            let (number, address) = (totals.rounds, server.address());
            round(&mut server, address, CLIENTS, number, &mut random, &mut totals);
            assert!(totals.refused.is_empty(), "durability {durability}: {}", totals.refused.join("\n"));
        }
        server.assert_no_panic();
        server.stop();
        server.check();
        println!(
            "linearisability, durability {durability}: {} kills, {} calls, {} of them with an unknown end, \
             {} histories: 0 refused",
            totals.rounds, totals.calls, totals.unknown, totals.histories
        );
        all.push(totals.calls);
    }
    assert!(all.iter().all(|calls| *calls > 100), "the clients made too few calls: {all:?}");
}

/// Starts a proxy that acknowledges some writes without forwarding them. Its threads end with the process.
fn lying_proxy(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut forward = Client::new(server);
                let mut count = 0;
                while let Ok(head) = read_head(&mut stream) {
                    let body = read_body(&mut stream, &head).unwrap();
                    let mut words = head[0].split(' ');
                    let (method, path) = (words.next().unwrap(), words.next().unwrap());
                    count += u64::from(method == "PUT");
                    let (status, reply) = if method == "PUT" && count % 8 == 0 {
                        (
                            201,
                            json!({"ok": true, "id": "it", "rev": format!("9-{count:032x}")}).to_string().into_bytes(),
                        )
                    } else {
                        let answer = loop {
                            match forward.send(method, path, header(&head, "content-type"), &body) {
                                Ok(answer) => break answer,
                                Err(RequestError::NotSent(_)) => std::thread::sleep(Duration::from_millis(5)),
                                Err(RequestError::Unknown(_)) => return,
                            }
                        };
                        (answer.status, answer.bytes)
                    };
                    let head = format!("HTTP/1.1 {status} Reply\r\nContent-Length: {}\r\n\r\n", reply.len());
                    if stream.get_mut().write_all(&[head.as_bytes(), &reply].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn acknowledged_but_unexecuted_writes_are_detected() {
    let mut random = Random::new(seed("lying proxy"));
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), &["--durability", "none"]);
    server.client().expect_success("PUT", "/linear", None);
    let proxy = lying_proxy(server.address());
    let mut totals = Totals::default();
    while totals.refused.is_empty() && totals.rounds < 5 {
        let number = totals.rounds;
        round(&mut server, proxy, 2, number, &mut random, &mut totals);
    }
    assert!(!totals.refused.is_empty(), "{} calls through a lying proxy were accepted", totals.calls);
}
