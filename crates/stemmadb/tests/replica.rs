//! Replicas compared with the owner of the log: at each sequence they answer the same, whatever the owner writes,
//! compacts, or loses to another owner, and they change nothing in the store.
//!
//! `STEMMA_REPLICA_SEEDS` sets the number of scripts (default 4), `STEMMA_REPLICA_STEPS` their length (default 150).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stemmadb::encryption::EncryptionKey;
use stemmadb::log_storage::{FileId, LogStorage, NameChange, StoredFile, StoredLog};
use stemmadb::past::Retention;
use stemmadb::replica::Replica;
use stemmadb::testing::{self, MemoryLogStorage, Random};
use stemmadb::{
    Database, DeltaEvent, DocumentId, Edit, ErrorKind, Index, IndexPolicy, Options, Result, Sequence, Snapshot, Value,
    field,
};
use tempfile::TempDir;

/// Long enough for anything that these tests wait for.
const SOON: Duration = Duration::from_secs(60);
/// An interval that no test waits for.
const NEVER: Duration = Duration::from_secs(3_600);

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A store that a replica only reads.
struct ReadOnly(MemoryLogStorage);

impl LogStorage for ReadOnly {
    fn take_over(&self) -> io::Result<StoredLog> {
        panic!("a replica takes the log over");
    }

    fn look(&self) -> io::Result<StoredLog> {
        self.0.look()
    }

    fn length(&self, file: FileId) -> io::Result<Option<u64>> {
        self.0.length(file)
    }

    fn append(&self, _: FileId, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a replica appends");
    }

    fn write(&self, _: FileId, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("a replica writes");
    }

    fn read(&self, file: FileId, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(file, offset, buffer)
    }

    fn change_names(&self, _: &[NameChange], _: &[StoredFile]) -> io::Result<()> {
        panic!("a replica changes names");
    }

    fn delete(&self, _: &StoredFile) -> io::Result<()> {
        panic!("a replica deletes a file");
    }
}

fn small() -> Options {
    testing::with_small_limits(Options::new().background(false), 10 << 10, 4 << 10, 30)
}

fn open(directory: &TempDir, log: &MemoryLogStorage) -> Database {
    Database::open_with(directory.path(), small().log_storage(Arc::new(log.another_owner()))).unwrap()
}

fn replica_with(directory: &TempDir, log: &MemoryLogStorage, options: Options) -> (Replica, Arc<ReadOnly>) {
    let storage = Arc::new(ReadOnly(log.another_owner()));
    (Replica::open(directory.path(), options.log_storage(storage.clone()), NEVER).unwrap(), storage)
}

fn replica(directory: &TempDir, log: &MemoryLogStorage) -> Replica {
    replica_with(directory, log, small()).0
}

/// What a database answers.
#[derive(Debug, PartialEq)]
struct Answers {
    /// The documents, each with the length of its attachment.
    documents: BTreeMap<String, (serde_json::Value, Option<usize>)>,
    /// Of each change: sequence, id, revision, and whether it is a deletion.
    feed: Vec<(Sequence, String, String, bool)>,
    sorted: Vec<String>,
    counts: Vec<u64>,
}

fn answers(snapshot: &Snapshot) -> Answers {
    let mut documents = BTreeMap::new();
    for document in snapshot.find(field("n").exists()).documents().unwrap() {
        let file = snapshot.open_attachment(&document, "file").unwrap().map(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7), "a file has other bytes");
            bytes.len()
        });
        let body: serde_json::Value = document.to().unwrap();
        documents.insert(document.id().as_str().to_owned(), (json!({"n": body["n"], "text": body["text"]}), file));
    }
    let feed = snapshot.changes(Sequence::ZERO).run().map(|change| {
        let change = change.unwrap();
        (change.sequence, change.id.as_str().to_owned(), change.revision.to_string(), change.deleted)
    });
    let sorted = snapshot.find(field("n").ge(0)).sort("n").ids().unwrap();
    Answers {
        feed: feed.collect(),
        sorted: sorted.map(|id| id.unwrap().as_str().to_owned()).collect(),
        counts: (0..4).map(|kind| snapshot.find(field("kind").eq(kind)).count().unwrap()).collect(),
        documents,
    }
}

fn upsert(db: &Database, id: &str, body: &serde_json::Value) -> Result<()> {
    db.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? }).map(drop)
}

/// Performs step `number` of a script: always the same.
fn step(db: &Database, seed: u64, number: u64) -> Result<()> {
    let mut random = Random::new(seed << 32 | number);
    let id = format!("d{}", random.below(12));
    let body = json!({"n": number, "kind": random.below(4), "text": "x".repeat(random.below(400) as usize)});
    match random.below(24) {
        0..=8 => upsert(db, &id, &body),
        9 | 10 => match db.get(&id)? {
            Some(document) => {
                let bytes = vec![7; random.below(90_000) as usize];
                db.files().attach(&id, document.revision(), "file", "text/plain", &bytes[..]).map(drop)
            }
            None => Ok(()),
        },
        11..=13 => match db.get(&id)? {
            Some(document) => db.delete(&id, document.revision()).map(drop),
            None => Ok(()),
        },
        14 => db.maintenance().checkpoint(),
        15 | 16 => db.maintenance().compact().map(drop),
        17 => db.local_documents().put(&format!("_local/{id}"), None, &json!({"n": number})).map(drop),
        18 => match db.indexes().list().is_empty() {
            true => db.indexes().create(Index::on("kind").then("n")),
            false => db.indexes().remove(&db.indexes().list()[0].name),
        },
        19 => db.history().keep(if random.below(2) == 0 { Retention::Everything } else { Retention::Nothing }),
        20 => {
            // A shape of its own.
            let mut body = body;
            body[format!("f{number}")] = json!(1);
            upsert(db, &id, &body)
        }
        _ => db.write(|transaction| {
            for at in 0..3 {
                let id = DocumentId::new(format!("d{at}"))?;
                transaction.edit(Edit::Upsert { id, body: Value::from_serialize(&body)? })?;
            }
            Ok(())
        }),
    }
}

fn steps() -> u64 {
    number_from("STEMMA_REPLICA_STEPS", 150)
}

fn seeds() -> std::ops::RangeInclusive<u64> {
    1..=number_from("STEMMA_REPLICA_SEEDS", 4)
}

fn assert_same(replica: &Database, owner: &Database, what: &str) {
    assert_eq!(replica.sequence(), owner.sequence(), "{what}");
    assert_eq!(answers(&replica.snapshot().unwrap()), answers(&owner.snapshot().unwrap()), "{what}");
    let locals = |db: &Database| db.local_documents().list("_local/").unwrap();
    assert_eq!(locals(replica), locals(owner), "{what}");
    let definitions = |db: &Database| db.indexes().list().into_iter().map(|index| index.name).collect::<Vec<_>>();
    assert_eq!(definitions(replica), definitions(owner), "{what}");
    for document in owner.find(field("n").exists()).documents().unwrap() {
        let branches = |db: &Database| format!("{:?}", db.revisions(document.id().as_str()).unwrap());
        assert_eq!(branches(replica), branches(owner), "{what}");
    }
    let report = replica.maintenance().check().unwrap();
    assert!(report.is_sound(), "{what}: {:?}", report.damages);
}

/// The results of a live query, as its deltas add up.
fn apply_deltas(watch: &mut stemmadb::Watch, result: &mut BTreeMap<String, serde_json::Value>) {
    while let Some(delta) = watch.next_within(Duration::ZERO).unwrap() {
        for event in delta.events() {
            match event.unwrap() {
                DeltaEvent::Added(document) | DeltaEvent::Changed(document) => {
                    result.insert(document.id().as_str().to_owned(), document.to().unwrap());
                }
                DeltaEvent::Removed { id, .. } => _ = result.remove(id.as_str()),
            }
        }
    }
}

#[test]
fn replica_answers_as_the_owner_whatever_it_writes() {
    let (mut reopened, mut followed) = (0, 0);
    for seed in seeds() {
        let (log, mut random) = (MemoryLogStorage::new(), Random::new(seed));
        let directories: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
        let mut db = open(&directories[0], &log);
        let mut own = TempDir::new().unwrap();
        let mut replica = Some(replica(&own, &log));
        let (mut old, mut reads_each) = (None, random.below(2) == 0);
        for number in 0..steps() {
            let what = format!("seed {seed}, step {number}");
            step(&db, seed, number).unwrap();
            match random.below(40) {
                0 => {
                    // Another process takes the log over: the owner closed it, or is still there.
                    let next = open(&directories[random.below(3) as usize % 2 + 1], &log);
                    drop(std::mem::replace(&mut db, next));
                    let next = open(&directories[0], &log);
                    drop(std::mem::replace(&mut db, next));
                }
                1 => {
                    // The replica is opened again, in its directory or in a new one.
                    let before = replica.take().unwrap();
                    reopened += before.status().reopen_count;
                    before.close().unwrap();
                    if random.below(2) == 0 {
                        own = TempDir::new().unwrap();
                    }
                    replica = Some(crate::replica(&own, &log));
                    old = None;
                }
                2 => reads_each = !reads_each,
                _ => {}
            }
            // If it does not poll after each step, the owner may retire segments that it has not seen.
            let replica = replica.as_ref().unwrap();
            if reads_each || random.below(20) == 0 {
                replica.refresh().unwrap();
                assert_same(&replica.database(), &db, &what);
                followed += 1;
            }
            // A snapshot stays as it is.
            if let Some((snapshot, expected)) = &old
                && random.below(8) == 0
            {
                assert_eq!(&answers(snapshot), expected, "{what}");
                old = None;
            }
            if old.is_none() && random.below(4) == 0 {
                let snapshot = replica.database().snapshot().unwrap();
                // The owner deletes contents of which it does not know that they are read here.
                if snapshot.find(field("_attachments").exists()).count().unwrap() == 0 {
                    let expected = answers(&snapshot);
                    old = Some((snapshot, expected));
                }
            }
        }
        let replica = replica.unwrap();
        replica.refresh().unwrap();
        assert_same(&replica.database(), &db, &format!("seed {seed}"));
        reopened += replica.status().reopen_count;
    }
    assert!(followed > 20, "{followed}");
    println!("compared {followed} times, reopened {reopened} times");
}

#[test]
fn every_state_of_a_replica_is_one_of_the_owner() {
    for seed in seeds() {
        let log = MemoryLogStorage::new();
        let directories: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
        let db = open(&directories[0], &log);
        let states = Mutex::new(BTreeMap::from([(db.sequence(), answers(&db.snapshot().unwrap()))]));
        let is_done = AtomicBool::new(false);
        let options = small().background(true).log_storage(Arc::new(ReadOnly(log.another_owner())));
        let replica = Replica::open(directories[1].path(), options, Duration::from_millis(1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut db = db;
                for number in 0..steps() {
                    // Attachments may be deleted while they are read here.
                    let mut random = Random::new(seed << 32 | number);
                    random.below(12);
                    step_without_files(&db, seed, number);
                    states.lock().unwrap().insert(db.sequence(), answers(&db.snapshot().unwrap()));
                    if number % 40 == 39 {
                        // The one before is still open, in the other directory.
                        let next = open(&directories[if number / 40 % 2 == 0 { 2 } else { 0 }], &log);
                        drop(std::mem::replace(&mut db, next));
                    }
                }
                is_done.store(true, Ordering::Release);
            });
            let mut newest = Sequence::ZERO;
            loop {
                let was_done = is_done.load(Ordering::Acquire);
                if was_done {
                    replica.refresh().unwrap();
                }
                let snapshot = replica.database().snapshot().unwrap();
                assert!(snapshot.sequence() >= newest, "seed {seed}: the replica went back");
                newest = snapshot.sequence();
                let found = answers(&snapshot);
                let waited = Instant::now();
                loop {
                    if let Some(expected) = states.lock().unwrap().get(&newest) {
                        assert_eq!(&found, expected, "seed {seed}, sequence {newest}");
                        break;
                    }
                    assert!(waited.elapsed() < SOON, "seed {seed}: no transaction ends at {newest}");
                    std::thread::yield_now();
                }
                if was_done {
                    let last = *states.lock().unwrap().last_key_value().unwrap().0;
                    assert_eq!(newest, last, "seed {seed}");
                    break;
                }
            }
        });
        let report = replica.database().maintenance().check().unwrap();
        assert!(report.is_sound(), "seed {seed}: {:?}", report.damages);
    }
}

fn step_without_files(db: &Database, seed: u64, number: u64) {
    let mut random = Random::new(seed << 32 | number);
    random.below(12);
    random.below(4);
    random.below(400);
    if !(9..=10).contains(&random.below(24)) {
        step(db, seed, number).unwrap();
    }
}

#[test]
fn feeds_live_queries_and_views_see_what_the_owner_writes() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let db = open(&directories[0], &log);
    let definition = json!({"key": "kind", "value": "n", "reduce": "_count"});
    for (name, refresh) in [("lazy", "lazy"), ("eager", "eager")] {
        let mut definition = definition.clone();
        definition["refresh"] = json!(refresh);
        db.views().define(name, &definition).unwrap();
    }
    let replica = replica(&directories[1], &log);
    let copy = replica.database();
    let mut subscription = copy.subscribe(Sequence::ZERO);
    let mut watch = copy.watch(field("kind").eq(1)).unwrap();
    let (mut result, mut changes) = (BTreeMap::new(), 0);
    for number in 0..300 {
        step(&db, 9, number).unwrap();
        replica.refresh().unwrap();
        apply_deltas(&mut watch, &mut result);
        let expected = copy.find(field("kind").eq(1)).documents().unwrap().into_iter();
        let expected = expected.map(|document| (document.id().as_str().to_owned(), document.to().unwrap()));
        assert_eq!(result, expected.collect(), "step {number}");
        while let Some(change) = subscription.next_within(Duration::ZERO).unwrap() {
            assert!(change.sequence <= db.sequence());
            changes += 1;
        }
        assert!(subscription.reached() >= copy.changes(Sequence::ZERO).unwrap().last_sequence());
        for name in ["lazy", "eager"] {
            let reduced = |db: &Database, kind: i64| {
                let view = db.views().open(name).unwrap();
                view.query().key(kind).reduce().unwrap()
            };
            (0..4).for_each(|kind| assert_eq!(reduced(&copy, kind), reduced(&db, kind), "step {number}, {name}"));
        }
        // A result that was cached before is not returned.
        for id in 0..12 {
            let body = |db: &Database| db.get(&format!("d{id}")).unwrap().map(|document| document.to_json().unwrap());
            assert_eq!(body(&copy), body(&db), "step {number}, d{id}");
        }
    }
    assert!(changes > 100, "{changes}");
    assert_eq!(replica.status().reopen_count, 0);
}

#[test]
fn replica_refuses_writes_and_says_who_takes_them() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let missing = small().log_storage(Arc::new(ReadOnly(log.another_owner())));
    let error = Replica::open(directories[1].path(), missing, NEVER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = Replica::open(directories[1].path(), small(), NEVER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");

    let owner = open(&directories[0], &log);
    let revision = owner.insert("a", &json!({"n": 1})).unwrap();
    // These options are the owner's.
    let options = small()
        .index(IndexPolicy::default().with_document_terms_max(500).unwrap())
        .compression(stemmadb::Compression::Zstd);
    let (replica, _) = replica_with(&directories[1], &log, options);
    let db = replica.database();
    let names = log.names();
    let refused = [
        db.insert("b", &json!({"m": 1})).map(drop),
        db.delete("a", &revision).map(drop),
        db.write(|transaction| transaction.insert("b", &json!({"m": 2})).map(drop)),
        db.optimistic(|attempt| attempt.insert("b", &json!({"m": 3})).map(drop)),
        db.update_where(field("n").eq(1), &stemmadb::Patch::new().set("m", 1)).map(drop),
        db.local_documents().put("_local/a", None, &json!({})).map(drop),
        db.files().store(&[1, 2, 3][..]).map(drop),
        db.indexes().create(Index::on("m").unique()),
        db.history().keep(Retention::Everything),
        db.views().define("view", &json!({"key": "n"})).map(drop),
        db.expiration().delete_expired().map(drop),
        db.maintenance().compact().map(drop),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{at}: {error}");
        assert!(error.to_string().contains("replica") && error.to_string().contains("owner"), "{at}: {error}");
    }
    assert!(!db.maintenance().takes_writes());
    db.maintenance().checkpoint().unwrap();
    db.flush().unwrap();
    assert_eq!(log.names(), names);

    // What was refused has left nothing behind that contradicts the log.
    owner.insert("b", &json!({"other": 1, "shape": 2})).unwrap();
    owner.insert("c", &json!({"m": 1})).unwrap();
    assert!(replica.wait_for(owner.sequence(), Duration::ZERO).unwrap());
    assert_eq!(db.find(field("m").eq(1)).count().unwrap(), 1);
    assert_eq!(replica.status().reopen_count, 0);
    assert_same(&db, &owner, "at the end");

    // A directory belongs to one replica at a time.
    let second = small().log_storage(Arc::new(ReadOnly(log.another_owner())));
    let error = Replica::open(directories[1].path(), second, NEVER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
}

#[test]
fn reads_go_on_while_the_store_is_unreachable_and_staleness_is_reported() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = open(&directories[0], &log);
    (0..200).for_each(|number| upsert(&owner, &format!("d{number}"), &json!({"n": number})).unwrap());
    owner.maintenance().checkpoint().unwrap();
    let storage = Arc::new(ReadOnly(log.another_owner()));
    let options = small().background(true).log_storage(storage.clone());
    let replica = Replica::open(directories[1].path(), options, Duration::from_millis(2)).unwrap();
    let waits_until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < SOON, "{what}");
            std::thread::yield_now();
        }
    };
    upsert(&owner, "seen", &json!({"n": -1})).unwrap();
    waits_until("it follows", &|| replica.database().get("seen").unwrap().is_some());

    storage.0.set_unreachable(true);
    let unreachable_since = Instant::now();
    waits_until("it fails", &|| replica.status().failure.is_some());
    upsert(&owner, "unseen", &json!({"n": -2})).unwrap();
    let db = replica.database();
    assert_eq!(db.find(field("n").ge(-1)).documents().unwrap().len(), 201, "each document can be read");
    assert!(db.get("unseen").unwrap().is_none());
    assert_eq!(replica.refresh().unwrap_err().kind(), ErrorKind::Unavailable);
    let error = replica.wait_for(owner.sequence(), Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let status = replica.status();
    assert!(status.failure.unwrap().to_string().contains("the store can't be reached"));
    assert!(status.staleness >= unreachable_since.elapsed() - Duration::from_millis(5), "{:?}", status.staleness);
    assert!(status.sequence < owner.sequence());

    storage.0.set_unreachable(false);
    let called_at = Instant::now();
    assert!(replica.wait_for(owner.sequence(), SOON).unwrap());
    replica.refresh().unwrap();
    let status = replica.status();
    assert!(status.failure.is_none() && status.staleness <= called_at.elapsed(), "{status:?}");
    assert!(db.get("unseen").unwrap().is_some(), "the same database goes on");

    // Opening needs the store.
    replica.close().unwrap();
    storage.0.set_unreachable(true);
    let options = small().log_storage(storage.clone());
    assert_eq!(Replica::open(directories[1].path(), options, NEVER).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn replica_that_was_opened_reads_documents_and_index_without_the_store() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = open(&directories[0], &log);
    for number in 0..2_000 {
        upsert(&owner, &format!("d{number}"), &json!({"n": number, "text": "x".repeat(300)})).unwrap();
    }
    owner.close().unwrap();
    assert!(log.names().iter().any(|name| name.starts_with("shipped/")), "{:?}", log.names());
    // From the copy of the owner's index, then from its own.
    for round in 0..2 {
        let options = small().on_rebuild(|_| panic!("the tree is built again"));
        let (replica, storage) = replica_with(&directories[1], &log, options);
        storage.0.set_unreachable(true);
        let before = storage.0.read_count();
        let db = replica.database();
        assert_eq!(db.find(field("n").ge(0)).sort("n").documents().unwrap().len(), 2_000, "round {round}");
        assert!(db.maintenance().check().unwrap().is_sound());
        assert_eq!(storage.0.read_count(), before, "round {round}");
        replica.close().unwrap();
    }
}

#[test]
fn polls_of_a_small_log_cost_few_requests() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = Database::open_with(directories[0].path(), Options::new().log_storage(Arc::new(log.another_owner())));
    let owner = owner.unwrap();
    (0..100).for_each(|number| upsert(&owner, &format!("d{number}"), &json!({"n": number})).unwrap());
    let (replica, storage) = replica_with(&directories[1], &log, Options::new().background(false));
    let opening = storage.0.read_count();
    assert!(opening <= 4, "{opening} requests to open");
    replica.refresh().unwrap();
    assert_eq!(storage.0.read_count() - opening, 1, "an unchanged log");
    upsert(&owner, "new", &json!({"n": -1})).unwrap();
    replica.refresh().unwrap();
    assert_eq!(storage.0.read_count() - opening, 3, "one more read for what was appended");
    assert!(replica.database().get("new").unwrap().is_some());
}

#[test]
fn segments_that_were_retired_unread_cost_a_new_opening() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = open(&directories[0], &log);
    let write = |from: u64| {
        for number in from..from + 200 {
            upsert(&owner, &format!("d{}", number % 20), &json!({"n": number, "text": "x".repeat(100)})).unwrap();
        }
        owner.maintenance().compact().unwrap();
    };
    write(0);
    let replica = replica(&directories[1], &log);
    let before = replica.database();
    let (mut subscription, old) = (before.subscribe(before.sequence()), answers(&before.snapshot().unwrap()));
    for round in 1..4 {
        write(round * 200);
        replica.refresh().unwrap();
        assert_eq!(replica.status().reopen_count, round, "the log was followed");
        assert_same(&replica.database(), &owner, "opened again");
    }
    // The one before can still be read, and is known to be old.
    assert_eq!(answers(&before.snapshot().unwrap()), old);
    assert!(before.sequence() < replica.database().sequence());
    assert!(subscription.next_change().unwrap().is_none(), "its feeds end");
    drop((before, subscription));
    write(800);
    replica.refresh().unwrap();
    let directories = std::fs::read_dir(directories[1].path()).unwrap().count();
    assert!(directories <= 2, "{directories} directories are left");
}

#[test]
fn segments_that_were_read_are_forgotten_when_the_owner_retires_them() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = open(&directories[0], &log);
    let replica = replica(&directories[1], &log);
    for number in 0..1_000 {
        upsert(&owner, &format!("d{}", number % 20), &json!({"n": number, "text": "x".repeat(100)})).unwrap();
        replica.refresh().unwrap();
        if number % 100 == 99 {
            let snapshot = replica.database().snapshot().unwrap();
            let expected = answers(&snapshot);
            owner.maintenance().compact().unwrap();
            replica.refresh().unwrap();
            assert_eq!(answers(&snapshot), expected, "an old snapshot can be read");
        }
    }
    // The snapshots that kept segments are gone.
    replica.refresh().unwrap();
    assert_eq!(replica.status().reopen_count, 0);
    assert_same(&replica.database(), &owner, "at the end");
    let (own, other) = (replica.database().info().unwrap(), owner.info().unwrap());
    assert_eq!(own.segment_count, other.segment_count);
    assert_eq!(own.live_bytes, other.live_bytes);
    let names: Vec<_> = std::fs::read_dir(directories[1].path().join("1/cache")).unwrap().collect();
    assert!(names.len() <= 2 * own.segment_count + 2, "{} copies of {} segments", names.len(), own.segment_count);
}

#[test]
fn log_that_was_deleted_and_created_again_is_another_one() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let owner = open(&directories[0], &log);
    owner.insert("a", &json!({"n": 1})).unwrap();
    let replica = replica(&directories[1], &log);
    log.delete_log();
    drop(owner);
    assert_eq!(replica.refresh().unwrap_err().kind(), ErrorKind::NotFound, "the log is gone");
    assert!(replica.database().get("a").unwrap().is_some());
    let owner = open(&directories[0], &log);
    owner.insert("b", &json!({"n": 2})).unwrap();
    replica.refresh().unwrap();
    assert!(replica.database().get("a").unwrap().is_none());
    assert_same(&replica.database(), &owner, "the new log");
}

#[test]
fn key_rotation_and_history_are_followed() {
    let (log, directories) = (MemoryLogStorage::new(), [TempDir::new().unwrap(), TempDir::new().unwrap()]);
    let options = || small().encryption(EncryptionKey::from_passphrase("correct horse").unwrap());
    // A segment that is written to is completed, moved and retired at once: its end can be read for a while.
    let owner = testing::with_retired_segment_delay(options().log_storage(Arc::new(log.another_owner())), SOON);
    let owner = Database::open_with(directories[0].path(), owner).unwrap();
    owner.history().keep(Retention::Everything).unwrap();
    let (replica, _) = replica_with(&directories[1], &log, options());
    for number in 1..=120_u64 {
        upsert(&owner, "a", &json!({"n": number, "text": "x".repeat(200)})).unwrap();
        replica.refresh().unwrap();
        match number {
            40 => owner.maintenance().reencrypt(|_| ()).unwrap(),
            80 => _ = owner.maintenance().compact().unwrap(),
            _ => {}
        }
        replica.refresh().unwrap();
        assert_eq!(replica.database().get("a").unwrap().unwrap().get("n").unwrap(), Some(number.into()));
    }
    let status = replica.status();
    assert_eq!(status.reopen_count, 0, "{status:?}");
    let first = owner.sequence().get() - 119;
    for number in [1, 30, 70, 100] {
        let at: Sequence = (first + number - 1).to_string().parse().unwrap();
        let past = |db: &Database| db.as_of(at).unwrap().get("a").unwrap().unwrap().get("n").unwrap();
        assert_eq!(past(&replica.database()), past(&owner), "as of {number}");
    }
    // What the owner does not keep can't be read here.
    owner.history().keep(Retention::Nothing).unwrap();
    owner.maintenance().compact().unwrap();
    replica.refresh().unwrap();
    let at: Sequence = first.to_string().parse().unwrap();
    assert_eq!(owner.as_of(at).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(replica.database().as_of(at).unwrap_err().kind(), ErrorKind::NotFound);
    assert_same(&replica.database(), &owner, "at the end");
}
