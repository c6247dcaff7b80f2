//! Databases whose log is in a store: their directory can be lost, an earlier owner can't write, and a call that fails,
//! whether it took effect or not, loses nothing that was acknowledged.
//!
//! `STEMMA_FAULT_SEEDS` sets the number of scripts (default 1), `STEMMA_FAULT_STRIDE` tests only every n-th call
//! (default 3; 1 for all).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use stemmadb::backup::{self, At, DirectoryTarget, RestoreOptions};
use stemmadb::encryption::EncryptionKey;
use stemmadb::log_storage::LogCopies;
use stemmadb::past::Retention;
use stemmadb::replication::Peer;
use stemmadb::testing::{self, MemoryLogStorage, Random, StorageFault};
use stemmadb::{Database, DocumentId, Edit, ErrorKind, Options, Result, Sequence, Value, field};
use tempfile::TempDir;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options(log: &Arc<MemoryLogStorage>) -> Options {
    testing::with_small_limits(Options::new().background(false), 10 << 10, 4 << 10, 30).log_storage(log.clone())
}

fn open(directory: &TempDir, log: &Arc<MemoryLogStorage>) -> Database {
    Database::open_with(directory.path(), options(log)).unwrap()
}

/// Another process that takes over the log.
fn another(log: &MemoryLogStorage) -> Arc<MemoryLogStorage> {
    Arc::new(log.another_owner())
}

/// The documents, each with the length of its attachment.
type Content = BTreeMap<String, (serde_json::Value, Option<u64>)>;

fn content(db: &Database) -> Content {
    let mut content = Content::new();
    for document in db.find(field("n").exists()).documents().unwrap() {
        let id = document.id().as_str().to_owned();
        let length = db.files().open(&id, "file").unwrap().map(|mut file| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7), "a file has other bytes");
            bytes.len() as u64
        });
        let body: serde_json::Value = document.to().unwrap();
        content.insert(id, (json!({"n": body["n"], "text": body["text"]}), length));
    }
    content
}

/// Performs step `number` of a script: always the same.
fn step(db: &Database, seed: u64, number: u64) -> Result<()> {
    let mut random = Random::new(seed << 32 | number);
    let id = format!("d{}", random.below(8));
    let body = json!({"n": number, "text": "x".repeat(random.below(400) as usize)});
    match random.below(10) {
        0..=4 => {
            let body = Value::from_serialize(&body)?;
            db.edit(Edit::Upsert { id: DocumentId::new(id)?, body }).map(drop)
        }
        5 if db.get(&id)?.is_some() => {
            let bytes = vec![7; random.below(200_000) as usize];
            let Some(document) = db.get(&id)? else { return Ok(()) };
            db.files().attach(&id, document.revision(), "file", "text/plain", &bytes[..]).map(drop)
        }
        6 => match db.get(&id)? {
            Some(document) => db.delete(&id, document.revision()).map(drop),
            None => Ok(()),
        },
        7 => db.maintenance().checkpoint(),
        8 => db.maintenance().compact().map(drop),
        _ => db.write(|transaction| {
            for at in 0..3 {
                let id = DocumentId::new(format!("d{at}"))?;
                transaction.edit(Edit::Upsert { id, body: Value::from_serialize(&body)? })?;
            }
            Ok(())
        }),
    }
}

const STEPS: u64 = 60;

#[test]
fn nothing_acknowledged_is_lost_when_any_call_fails() {
    for seed in 1..=number_from("STEMMA_FAULT_SEEDS", 1) {
        let (log, directory) = (Arc::new(MemoryLogStorage::new()), TempDir::new().unwrap());
        let db = open(&directory, &log);
        let mut contents = vec![content(&db)];
        for number in 0..STEPS {
            step(&db, seed, number).unwrap();
            contents.push(content(&db));
        }
        drop(db);
        assert!(contents.last().unwrap().values().any(|(_, file)| file.is_some_and(|bytes| bytes > 64 << 10)));
        let calls = log.change_count();
        for call in (0..calls).step_by(number_from("STEMMA_FAULT_STRIDE", 3) as usize) {
            for takes_effect in [false, true] {
                fail_at(seed, StorageFault { after_calls: call, takes_effect }, &contents);
            }
        }
    }
}

fn fail_at(seed: u64, fault: StorageFault, contents: &[Content]) {
    let (log, directory) = (Arc::new(MemoryLogStorage::new()), TempDir::new().unwrap());
    log.fail(fault);
    let mut acknowledged = 0;
    // Every other time, hardly anything stays in the directory.
    let options = match fault.after_calls % 2 {
        0 => options(&log),
        _ => options(&log).log_copies(LogCopies::up_to(1)),
    };
    if let Ok(db) = Database::open_with(directory.path(), options) {
        for number in 0..STEPS {
            if step(&db, seed, number).is_err() {
                break;
            }
            acknowledged = number as usize + 1;
        }
    }
    let allowed = &contents[acknowledged..=(acknowledged + 1).min(contents.len() - 1)];
    let lost = TempDir::new().unwrap();
    // In the same directory, and in one that has nothing.
    for directory in [&directory, &lost] {
        let log = another(&log);
        let db = open(directory, &log);
        let found = content(&db);
        assert!(allowed.contains(&found), "seed {seed}, {fault:?}, after {acknowledged} steps: {found:#?}");
        assert!(db.maintenance().check().unwrap().damages.is_empty());
        db.insert("afterwards", &json!({})).unwrap();
        db.delete("afterwards", db.get("afterwards").unwrap().unwrap().revision()).unwrap();
        db.maintenance().compact().unwrap();
        assert_eq!(content(&db), found);
        drop(db);
        let log = another(&log);
        drop(open(directory, &log));
        assert_eq!(log.file_count(), log.names().len(), "files without a name are deleted: {:?}", log.names());
    }
}

#[test]
fn an_owner_that_was_deposed_writes_nothing() {
    let log = Arc::new(MemoryLogStorage::new());
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let old = open(&first, &log);
    old.insert("a", &json!({"n": 1})).unwrap();
    let new = open(&second, &another(&log));
    let error = old.insert("b", &json!({"n": 2})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another process has taken over the log"), "{error}");
    assert_eq!(old.insert("b", &json!({"n": 2})).unwrap_err().kind(), ErrorKind::Closed);
    assert!(old.files().store(&vec![7; 100_000][..]).is_err());
    assert!(old.maintenance().compact().is_err());
    new.insert("b", &json!({"n": 3})).unwrap();
    drop(old);
    assert_eq!(content(&new).len(), 2);

    // The old directory is used again, with what the other owner wrote.
    let again = open(&first, &another(&log));
    assert_eq!(content(&again)["b"].0["n"], 3);
}

#[test]
fn a_directory_whose_log_was_compacted_elsewhere_is_built_again() {
    let log = Arc::new(MemoryLogStorage::new());
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let write = |db: &Database, from: u64| {
        for number in from..from + 60 {
            step(db, 3, number).unwrap();
        }
    };
    for round in 0..3 {
        for directory in [&first, &second] {
            let db = open(directory, &another(&log));
            let before = content(&db);
            db.maintenance().compact().unwrap();
            assert_eq!(content(&db), before);
            write(&db, round * 60);
            db.maintenance().checkpoint().unwrap();
            db.maintenance().compact().unwrap();
            assert!(db.maintenance().check().unwrap().damages.is_empty());
        }
    }
}

#[test]
fn directories_belong_to_one_log() {
    let (one, other) = (Arc::new(MemoryLogStorage::new()), Arc::new(MemoryLogStorage::new()));
    let directory = TempDir::new().unwrap();
    open(&directory, &one).insert("a", &json!({"n": 1})).unwrap();
    let db = open(&directory, &other);
    assert!(db.get("a").unwrap().is_none(), "it is the directory of the other log now");
    drop(db);
    assert!(open(&directory, &one).get("a").unwrap().is_some());

    let own = TempDir::new().unwrap();
    Database::open(own.path()).unwrap().insert("a", &json!({})).unwrap();
    let error = Database::open_with(own.path(), options(&one)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(Database::open(own.path()).unwrap().get("a").unwrap().is_some());
}

#[test]
fn history_and_backups_are_as_on_a_disk() {
    let log = Arc::new(MemoryLogStorage::new());
    let (first, second, copy) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let db = open(&first, &log);
    db.history().keep(Retention::Everything).unwrap();
    for number in 0..100 {
        let body = Value::from_serialize(&json!({"n": number, "text": "x".repeat(300)})).unwrap();
        db.edit(Edit::Upsert { id: DocumentId::new("a").unwrap(), body }).unwrap();
    }
    db.maintenance().checkpoint().unwrap();
    db.maintenance().compact().unwrap();
    assert!(log.names().iter().any(|name| name.starts_with("history/")), "{:?}", log.names());
    drop(db);
    let db = open(&second, &another(&log));
    let past = db.as_of("50".parse::<stemmadb::Sequence>().unwrap()).unwrap();
    assert_eq!(past.get("a").unwrap().unwrap().get("n").unwrap(), Some(49.into()));
    assert_eq!(db.history().revisions("a").unwrap().len(), 100);
    let target = copy.path().join("backup");
    db.maintenance().backup(&target).unwrap();
    let target = DirectoryTarget::open(&target).unwrap();
    backup::restore(&target, copy.path().join("restored"), RestoreOptions::new()).unwrap();
    let restored = Database::open(copy.path().join("restored")).unwrap();
    assert_eq!(restored.get("a").unwrap().unwrap().get("n").unwrap(), Some(99.into()));
}

#[test]
fn branches_in_a_store_have_the_whole_database() {
    for key in [None, Some(EncryptionKey::from_callback(|| Ok([7; 32])))] {
        let with_key = |options: Options| key.iter().fold(options, |options, key| options.encryption(key.clone()));
        let directories: Vec<TempDir> = (0..4).map(|_| TempDir::new().unwrap()).collect();
        let own = testing::with_small_limits(with_key(Options::new().background(false)), 10 << 10, 4 << 10, 30);
        let db = Database::open_with(directories[0].path(), own).unwrap();
        db.history().keep(Retention::Everything).unwrap();
        for number in 0..300 {
            step(&db, 1, number).ok();
        }
        let before = db.sequence();
        db.maintenance().compact().unwrap();
        let compacted = db.sequence();
        for number in 0..5 {
            db.upsert(&format!("d{number}"), &json!({"n": 1_000 + number, "text": "new"})).unwrap();
        }
        db.keys("names").unwrap().set("a", &1).unwrap();
        db.flush().unwrap();
        let expected = content(&db);
        assert!(!expected.is_empty());
        let past = |db: &Database, at: Sequence| {
            let past = db.as_of(at).unwrap();
            past.find(field("n").exists())
                .documents()
                .unwrap()
                .iter()
                .map(|one| one.value().unwrap().to_json())
                .collect()
        };
        let (then, log): (Vec<String>, _) = (past(&db, before), Arc::new(MemoryLogStorage::new()));
        db.maintenance().branch_to_store(directories[1].path(), At::Latest, log.clone()).unwrap();
        // A branch of the past has no later documents.
        let early = Arc::new(MemoryLogStorage::new());
        db.maintenance().branch_to_store(directories[2].path(), At::Sequence(compacted), early.clone()).unwrap();
        let refused = db.maintenance().branch_to_store(directories[3].path(), At::Latest, another(&log)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");

        let branch = Database::open_with(directories[1].path(), with_key(options(&log))).unwrap();
        assert_ne!(branch.identity().unwrap(), db.identity().unwrap());
        branch.insert("later", &json!({"m": 1})).unwrap();
        drop(branch);
        // The directory is lost.
        let branch = Database::open_with(directories[3].path(), with_key(options(&another(&log)))).unwrap();
        assert_eq!((content(&branch), past(&branch, before)), (expected, then.clone()));
        assert_eq!(branch.keys("names").unwrap().get::<u64>("a").unwrap(), Some(1));
        assert!(branch.get("later").unwrap().is_some());
        assert!(branch.maintenance().check().unwrap().is_sound());
        let early = Database::open_with(directories[2].path(), with_key(options(&early))).unwrap();
        assert_eq!((past(&early, before), early.sequence()), (then, compacted));
        assert_eq!(db.get("later").unwrap(), None);
    }
}

#[test]
fn next_owner_begins_with_the_copy_of_the_tree() {
    let log = Arc::new(MemoryLogStorage::new());
    let first = TempDir::new().unwrap();
    let db = open(&first, &log);
    for number in 0..2_000 {
        db.insert(&format!("d{number}"), &json!({"n": number, "text": "x".repeat(300)})).unwrap();
    }
    db.close().unwrap();
    assert!(log.names().iter().any(|name| name.starts_with("shipped/")), "{:?}", log.names());
    let open_without_rebuild = |directory: &TempDir| {
        let options = options(&another(&log)).on_rebuild(|_| panic!("the tree is built again"));
        Database::open_with(directory.path(), options).unwrap()
    };
    let mut directories = vec![first];
    for round in 0..4 {
        let fresh = TempDir::new().unwrap();
        let db = open_without_rebuild(&fresh);
        assert_eq!(db.find(field("n").ge(0)).count().unwrap(), 2_000 + round * 700);
        for number in 0..700 {
            let text = "y".repeat(400);
            db.insert(&format!("r{round}-{number}"), &json!({"n": number, "text": text})).unwrap();
        }
        assert!(db.maintenance().check().unwrap().is_sound());
        db.close().unwrap();
        directories.push(fresh);
        // One that owned it before has files of its own, and files that it was lent.
        let db = open_without_rebuild(&directories[round as usize]);
        assert_eq!(db.find(field("n").ge(0)).count().unwrap(), 2_000 + (round + 1) * 700);
        assert!(db.maintenance().check().unwrap().is_sound());
    }
    let last = TempDir::new().unwrap();
    let db = open_without_rebuild(&last);
    let documents = db.find(field("text").exists()).documents().unwrap();
    assert!(documents.iter().all(|document| document.get("text").unwrap().is_some()));
    drop(db);
    let log = another(&log);
    drop(open(&TempDir::new().unwrap(), &log));
    assert_eq!(log.file_count(), log.names().len());
}

/// The bytes of the copies in a directory, which has the marker of a complete copy only if the copy has bytes.
fn copied_bytes(directory: &TempDir) -> u64 {
    let copies = directory.path().join("cache");
    let mut sum = 0;
    for file in copies.read_dir().unwrap().map(|file| file.unwrap()) {
        let (name, bytes) = (file.file_name().into_string().unwrap(), file.metadata().unwrap().len());
        if let Some(copy) = name.strip_suffix(".complete") {
            assert!(copies.join(copy).metadata().unwrap().len() > 0, "{name} is the marker of an empty copy");
        }
        sum += bytes;
    }
    sum
}

/// Segments have 10 KiB, contents up to 100,000 bytes.
fn fill(db: &Database) {
    for number in 0..100 {
        let id = format!("d{number}");
        db.insert(&id, &json!({"n": number, "text": "x".repeat(2_000)})).unwrap();
        if number % 10 == 0 {
            let (bytes, revision) = (vec![7; 100_000 + number], *db.get(&id).unwrap().unwrap().revision());
            db.files().attach(&id, &revision, "file", "text/plain", &bytes[..]).unwrap();
        }
    }
}

#[test]
fn copies_take_the_space_allowed() {
    let (log, directory) = (Arc::new(MemoryLogStorage::new()), TempDir::new().unwrap());
    let copies = LogCopies::up_to(150_000);
    let options = |log: &Arc<MemoryLogStorage>| options(log).log_copies(copies.clone()).cache_bytes(0);
    let db = Database::open_with(directory.path(), options(&log)).unwrap();
    fill(&db);
    // The newest segment counts, too.
    let is_bounded = || copies.bytes() < 170_000 && copied_bytes(&directory) < 170_000;
    assert!(is_bounded(), "{} {}", copies.bytes(), copied_bytes(&directory));
    let before = content(&db);
    assert_eq!(before.len(), 100);
    assert!(is_bounded(), "{} {}", copies.bytes(), copied_bytes(&directory));
    let reads = log.read_count();
    assert!(db.get("d0").unwrap().is_some() && db.get("d99").unwrap().is_some());
    assert_eq!(content(&db), before);
    assert!(log.read_count() > reads, "what is not in the directory is read from the store");
    db.maintenance().compact().unwrap();
    assert!(db.maintenance().check().unwrap().is_sound());
    drop(db);
    assert_eq!(copies.bytes(), 0);

    // The directory is used again, and one that has a copy of everything is cut down.
    let log = another(&log);
    let db = Database::open_with(directory.path(), options(&log)).unwrap();
    assert_eq!(content(&db), before);
    drop(db);
    let whole = TempDir::new().unwrap();
    let db = open(&whole, &another(&log));
    assert_eq!(content(&db), before);
    assert!(copied_bytes(&whole) > 1_000_000);
    drop(db);
    let log = another(&log);
    let db = Database::open_with(whole.path(), options(&log)).unwrap();
    assert_eq!(content(&db), before);
    assert!(copied_bytes(&whole) < 170_000, "{}", copied_bytes(&whole));
}

#[test]
fn databases_share_the_space_of_copies() {
    let copies = LogCopies::up_to(600_000);
    let logs = [(); 2].map(|()| Arc::new(MemoryLogStorage::new()));
    let directories = [(); 2].map(|()| TempDir::new().unwrap());
    let open =
        |at: usize| Database::open_with(directories[at].path(), options(&logs[at]).log_copies(copies.clone())).unwrap();
    let (idle, busy) = (open(0), open(1));
    fill(&idle);
    fill(&busy);
    assert!(copied_bytes(&directories[1]) > 400_000);
    assert!(copied_bytes(&directories[0]) < 200_000, "the copies that are not used give way");
    assert_eq!(content(&idle), content(&busy));
}

#[test]
fn copies_are_removed_while_others_read() {
    let (log, directory) = (Arc::new(MemoryLogStorage::new()), TempDir::new().unwrap());
    let bound = LogCopies::up_to(1);
    let db = Database::open_with(directory.path(), options(&log).log_copies(bound).cache_bytes(0)).unwrap();
    fill(&db);
    let before = content(&db);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(content(&db), before)));
        }
        scope.spawn(|| {
            for number in 0..200 {
                db.insert(&format!("other-{number}"), &json!({"text": "y".repeat(2_000)})).unwrap();
                if number % 50 == 0 {
                    db.maintenance().compact().unwrap();
                }
            }
        });
    });
    drop(db);
    let db = open(&directory, &another(&log));
    assert!(db.maintenance().check().unwrap().is_sound());
    assert_eq!(content(&db), before);
}
