//! Each document, changed by several clients that name what they replace, is one document: from recorded histories, under kill -9.
//!
//! A round has documents of its own, some clients, and a SIGKILL at any moment; the server is started again, the clients go on, and every
//! document is read at last. `STEMMA_LINEAR_SECONDS` says how long rounds are done (short: 8). Each document takes some twenty calls, then
//! others take their turn: to refuse a history, the search goes through every order that it may have had.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Broken, Client, header, read_body, read_head, rev};
use crate::history::{Asked, Call, Told, is_linearizable};
use crate::random::{Random, seed, setting};
use crate::server::{Server, text};

/// Clients that all write; fewer where a history is to be refused, so that there are fewer orders to try.
const CLIENTS: usize = 6;
/// Documents that are written at the same time.
const DOCUMENTS: u64 = 4;
/// Calls of these, before others take their turn.
const CALLS: u64 = DOCUMENTS * 20;

/// A client, and what it knows of each document: the revision, and the number it holds.
struct Writer<'a> {
    client: Client,
    number: usize,
    random: Random,
    numbers: &'a AtomicU64,
    known: BTreeMap<u64, Option<(String, u64)>>,
    calls: Vec<(u64, Call)>,
}

/// How a request ended.
type Outcome = Option<(Told, Option<String>)>;

impl Writer<'_> {
    /// Asks one thing of one document, and notes it.
    fn step(&mut self, round: u64) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let document = number / CALLS * DOCUMENTS + self.random.below(DOCUMENTS);
        let path = format!("/linear/r{round}-{document}");
        let known = self.known.get(&document).cloned().flatten();
        let asked = match (&known, self.random.below(10)) {
            (_, 0..4) => Asked::Read,
            (Some((_, held)), 4) => Asked::Delete(*held),
            (known, _) => Asked::Set { expected: known.as_ref().map(|(_, held)| *held), number },
        };
        let begun = Instant::now();
        let revision = known.map(|(revision, _)| revision);
        let Ok(outcome) = self.ask(&path, asked, revision.as_deref()) else {
            // Nobody listens: nothing happened.
            std::thread::sleep(Duration::from_millis(5));
            return;
        };
        let ended = outcome.as_ref().map(|(told, _)| (Instant::now(), *told));
        self.calls.push((document, Call { client: self.number, asked, begun, ended }));
        match outcome {
            Some((Told::Holds(Some(held)), Some(revision))) => self.known.insert(document, Some((revision, held))),
            Some((Told::Done, Some(revision))) if asked != Asked::Read => {
                let held = if let Asked::Set { number, .. } = asked { Some((revision, number)) } else { None };
                self.known.insert(document, held)
            }
            Some((Told::Holds(None), _)) => self.known.insert(document, None),
            // Whoever met a conflict goes on with what it knew, until it reads.
            _ => None,
        };
    }

    fn ask(&mut self, path: &str, asked: Asked, revision: Option<&str>) -> Result<Outcome, std::io::Error> {
        let query = revision.map(rev).unwrap_or_default();
        let answer = match asked {
            Asked::Read => self.client.ask("GET", path, None),
            Asked::Set { number, .. } => {
                self.client.ask("PUT", &format!("{path}{query}"), Some(&json!({"number": number})))
            }
            Asked::Delete(_) => self.client.ask("DELETE", &format!("{path}{query}"), None),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(Broken::Unsent(error)) => return Err(error),
            Err(Broken::Unknown(_)) => return Ok(None),
        };
        Ok(match (asked, answer.status) {
            (Asked::Read, 200) => {
                let read = answer.json();
                Some((Told::Holds(read["number"].as_u64()), Some(text(&read, "/_rev").to_owned())))
            }
            (Asked::Read, 404) => Some((Told::Holds(None), None)),
            (_, 200..=202) => Some((Told::Done, Some(text(&answer.json(), "/rev").to_owned()))),
            (Asked::Set { .. }, 409) | (Asked::Delete(_), 404 | 409) => Some((Told::Conflict, None)),
            // A server that stops.
            (_, 500..) => None,
            _ => panic!("{asked:?} of {path}: {}", answer.shown()),
        })
    }
}

/// What was seen in some rounds.
#[derive(Default)]
struct Seen {
    rounds: u64,
    histories: usize,
    calls: usize,
    unknown: usize,
    refused: Vec<String>,
}

/// One round: clients write and read while the server is killed and started again; then each document's history is looked at.
fn round(server: &mut Server, at: SocketAddr, clients: usize, number: u64, random: &mut Random, seen: &mut Seen) {
    let (numbers, over) = (AtomicU64::new(1), AtomicBool::new(false));
    let randoms: Vec<Random> = (0..clients).map(|_| random.fork()).collect();
    let (before, after) = (random.milliseconds(30, 300), random.milliseconds(30, 150));
    let calls = std::thread::scope(|scope| {
        let writers = randoms.into_iter().enumerate().map(|(client, random)| {
            let (numbers, over) = (&numbers, &over);
            scope.spawn(move || {
                let (known, calls) = (BTreeMap::new(), Vec::new());
                let client_of = Client::new(at).patience(Duration::from_secs(5));
                let mut writer = Writer { client: client_of, number: client, random, numbers, known, calls };
                while !over.load(Ordering::Relaxed) {
                    writer.step(number);
                }
                writer.calls
            })
        });
        let writers: Vec<_> = writers.collect();
        std::thread::sleep(before);
        server.kill();
        server.restart();
        std::thread::sleep(after);
        over.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let mut histories: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    for (document, call) in calls {
        histories.entry(document).or_default().push(call);
    }
    let (client, known, random) = (Client::new(at), BTreeMap::new(), random.fork());
    let mut last = Writer { client, number: clients, random, numbers: &numbers, known, calls: Vec::new() };
    for (document, calls) in &mut histories {
        let begun = Instant::now();
        let read = last.ask(&format!("/linear/r{number}-{document}"), Asked::Read, None).unwrap();
        let (told, _) = read.expect("the server runs");
        calls.push(Call { client: clients, asked: Asked::Read, begun, ended: Some((Instant::now(), told)) });
    }
    seen.rounds += 1;
    seen.histories += histories.len();
    for (document, calls) in &histories {
        seen.calls += calls.len();
        seen.unknown += calls.iter().filter(|call| call.ended.is_none()).count();
        if !is_linearizable(calls) {
            seen.refused.push(format!("round {number}, document {document}: {calls:#?}"));
        }
    }
}

#[test]
fn each_document_is_one_document_while_its_server_is_killed() {
    let mut random = Random::new(seed("linearisability"));
    let place = tempfile::tempdir().unwrap();
    let patience = Duration::from_secs(setting("STEMMA_LINEAR_SECONDS", 8));
    let mut all = Vec::new();
    // Without a flush, a process that is killed still loses nothing: what it wrote is the kernel's.
    for (durability, share) in [("sync", 3), ("none", 1)] {
        let mut server = Server::start(&place.path().join(durability), &["--durability", durability]);
        server.client().good("PUT", "/linear", None);
        let (begun, mut seen) = (Instant::now(), Seen::default());
        while begun.elapsed() < patience * share / 4 {
            let (number, address) = (seen.rounds, server.address());
            round(&mut server, address, CLIENTS, number, &mut random, &mut seen);
            assert!(seen.refused.is_empty(), "durability {durability}: {}", seen.refused.join("\n"));
        }
        server.assert_calm();
        server.stop();
        server.check();
        println!(
            "linearisability, durability {durability}: {} kills, {} calls, {} of them with an unknown end, {} histories: 0 refused",
            seen.rounds, seen.calls, seen.unknown, seen.histories
        );
        all.push(seen.calls);
    }
    assert!(all.iter().all(|calls| *calls > 100), "the clients never got to write: {all:?}");
}

/// Stands before a server and answers some writes by itself, without a word to it. Ends with the process.
fn liar(server: SocketAddr) -> SocketAddr {
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
                    let (status, told) = if method == "PUT" && count % 8 == 0 {
                        (
                            201,
                            json!({"ok": true, "id": "it", "rev": format!("9-{count:032x}")}).to_string().into_bytes(),
                        )
                    } else {
                        let answer = loop {
                            match forward.send(method, path, header(&head, "content-type"), &body) {
                                Ok(answer) => break answer,
                                Err(Broken::Unsent(_)) => std::thread::sleep(Duration::from_millis(5)),
                                Err(Broken::Unknown(_)) => return,
                            }
                        };
                        (answer.status, answer.bytes)
                    };
                    let head = format!("HTTP/1.1 {status} Told\r\nContent-Length: {}\r\n\r\n", told.len());
                    if stream.get_mut().write_all(&[head.as_bytes(), &told].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_write_that_is_acknowledged_and_never_done_is_found() {
    let mut random = Random::new(seed("a liar before the server"));
    let place = tempfile::tempdir().unwrap();
    let mut server = Server::start(place.path(), &["--durability", "none"]);
    server.client().good("PUT", "/linear", None);
    let liar = liar(server.address());
    let mut seen = Seen::default();
    while seen.refused.is_empty() && seen.rounds < 5 {
        let number = seen.rounds;
        round(&mut server, liar, 2, number, &mut random, &mut seen);
    }
    assert!(!seen.refused.is_empty(), "{} calls through a liar, and nothing was noticed", seen.calls);
}
