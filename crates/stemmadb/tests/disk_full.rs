//! A full disk during checkpoints and merges: reads go on, so do writes while there is memory, and everything recovers
//! by itself once there is space, without reopening.

use std::time::{Duration, Instant};

use stemmadb::testing::{self, Call, Failure, TestStorage};
use stemmadb::{Database, Durability, ErrorKind, Options, Result};

/// Longer than the interval between two tries, and than writers wait.
const TIMEOUT: Duration = Duration::from_secs(30);

fn options(background: bool) -> Options {
    let options = Options::new().durability(Durability::None).background(background);
    testing::with_small_limits(options, 64 << 10, 64 << 10, 200)
}

fn write(db: &Database, number: u64) -> Result<()> {
    let body = serde_json::json!({"number": number, "group": number % 7, "text": "x".repeat(200)});
    db.insert(&number.to_string(), &body).map(|_| ())
}

fn assert_readable(db: &Database, count: u64) {
    assert_eq!(db.info().unwrap().document_count, count);
    for number in (0..count).step_by(17) {
        let found = db.get(&number.to_string()).unwrap().unwrap();
        assert_eq!(found.get("number").unwrap().unwrap().as_u64(), Some(number));
    }
}

/// Nothing is damaged, and no file is left that nothing lists.
fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what} after {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes until the memory is full and a write is refused; returns how many were accepted.
fn write_until_refused(db: &Database, from: u64) -> u64 {
    let began = Instant::now();
    for number in from.. {
        if let Err(error) = write(db, number) {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.message().contains("no space is left"), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("tried again")), "{error:?}");
            return number;
        }
        assert!(began.elapsed() < TIMEOUT, "no write is refused");
    }
    unreachable!("it ends above")
}

#[test]
fn checkpoints_go_on_once_there_is_space() {
    for call in [Call::WriteRun, Call::WriteManifest] {
        let storage = TestStorage::new(1);
        let db = storage.open(options(true)).unwrap();
        (0..500).for_each(|number| write(&db, number).unwrap());
        db.maintenance().checkpoint().unwrap();
        storage.disk().fail(call, 1, Failure::Full, true);
        let count = write_until_refused(&db, 500);
        assert!(count > 520, "writes go on while there is memory: {count}");
        assert_readable(&db, count);
        assert_sound(&db);
        storage.heal();
        until("writes are refused", || write(&db, count).is_ok());
        (count + 1..count + 500).for_each(|number| write(&db, number).unwrap());
        assert_readable(&db, count + 500);
        assert_sound(&db);
        db.close().unwrap();
        let db = storage.open(options(true)).unwrap();
        assert_readable(&db, count + 500);
        assert_sound(&db);
    }
}

#[test]
fn checkpoints_go_on_once_there_are_descriptors() {
    let storage = TestStorage::new(5);
    let db = storage.open(options(true)).unwrap();
    (0..500).for_each(|number| write(&db, number).unwrap());
    storage.disk().fail(Call::WriteRun, 1, Failure::NoDescriptor, true);
    until("no checkpoint fails", || db.maintenance().checkpoint().is_err());
    assert!(db.maintenance().takes_writes());
    write(&db, 500).unwrap();
    assert_readable(&db, 501);
    storage.heal();
    until("no checkpoint succeeds", || db.maintenance().checkpoint().is_ok());
    (501..1_000).for_each(|number| write(&db, number).unwrap());
    assert_readable(&db, 1_000);
    assert_sound(&db);
}

#[test]
fn checkpoints_without_background_work_are_tried_again_by_each_write() {
    let storage = TestStorage::new(2);
    let db = storage.open(options(false)).unwrap();
    (0..500).for_each(|number| write(&db, number).unwrap());
    storage.disk().fail(Call::WriteRun, 1, Failure::Full, true);
    let count = write_until_refused(&db, 500);
    assert!(write(&db, count).is_err());
    assert_eq!(db.maintenance().checkpoint().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_readable(&db, count);
    assert_sound(&db);
    let image = storage.crash_image(7);
    storage.heal();
    (count..count + 500).for_each(|number| write(&db, number).unwrap());
    assert_readable(&db, count + 500);
    assert_sound(&db);
    assert_sound(&image.open(options(false)).unwrap());
}

#[test]
fn closing_on_a_full_disk_loses_nothing() {
    let storage = TestStorage::new(3);
    let db = storage.open(options(true)).unwrap();
    (0..100).for_each(|number| write(&db, number).unwrap());
    storage.disk().fail(Call::WriteRun, 1, Failure::Full, true);
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Unavailable);
    storage.heal();
    let db = storage.open(options(true)).unwrap();
    assert_readable(&db, 100);
    assert_sound(&db);
}

#[test]
fn merges_go_on_once_there_is_space() {
    let storage = TestStorage::new(4);
    let db = storage.open(options(true)).unwrap();
    // Too little for a merge, but too much for a database at rest.
    for round in 0..5 {
        (round * 60..round * 60 + 60).for_each(|number| write(&db, number).unwrap());
        db.maintenance().checkpoint().unwrap();
    }
    let written = storage.disk().count(Call::WriteRun);
    storage.disk().fail(Call::WriteRun, 1, Failure::Full, true);
    until("no merge is tried", || storage.disk().count(Call::WriteRun) > written + 1);
    assert_readable(&db, 300);
    assert_sound(&db);
    storage.heal();
    let failed = storage.disk().count(Call::WriteRun);
    until("no merge is tried again", || storage.disk().count(Call::WriteRun) > failed);
    write(&db, 300).unwrap();
    assert_readable(&db, 301);
    assert_sound(&db);
    let info = db.info().unwrap();
    assert_eq!((info.tree_held_bytes, info.oldest_snapshot), (0, None));
}

#[test]
fn info_names_the_oldest_snapshot_that_keeps_files() {
    let storage = TestStorage::new(5);
    let db = storage.open(options(false)).unwrap();
    (0..100).for_each(|number| write(&db, number).unwrap());
    db.maintenance().checkpoint().unwrap();
    assert_eq!(db.info().unwrap().oldest_snapshot, None);
    let snapshot = db.snapshot().unwrap();
    for round in 0..100 {
        db.upsert("changed", &serde_json::json!({"round": round})).unwrap();
        db.maintenance().compact().unwrap();
    }
    let info = db.info().unwrap();
    let oldest = info.oldest_snapshot.unwrap();
    assert_eq!(oldest.sequence, snapshot.sequence());
    assert!(oldest.age < TIMEOUT, "{oldest:?}");
    assert_eq!(info.tree_held_bytes, info.tree_bytes - info.tree_live_bytes);
    assert!(info.tree_held_bytes > 0);
    assert!(snapshot.get("changed").unwrap().is_none());
    assert_eq!(snapshot.find(stemmadb::field("group").ge(0)).count().unwrap(), 100);
    assert_sound(&db);
    drop(snapshot);
    let info = db.info().unwrap();
    assert_eq!((info.tree_held_bytes, info.oldest_snapshot), (0, None));
    assert_sound(&db);
}

/// A failed write of the log ends writes, and the database says so; opened again, it takes writes.
#[test]
fn a_database_reports_whether_it_takes_writes() {
    let storage = TestStorage::new(11);
    let db = storage.open(options(false)).unwrap();
    write(&db, 0).unwrap();
    assert!(db.maintenance().takes_writes());
    storage.disk().fail(Call::Write, 1, Failure::Full, true);
    assert_eq!(write(&db, 1).unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!db.maintenance().takes_writes());
    assert_readable(&db, 1);
    storage.heal();
    assert!(!db.maintenance().takes_writes(), "it has to be opened again");
    db.close().ok();
    let db = storage.open(options(false)).unwrap();
    assert!(db.maintenance().takes_writes());
    write(&db, 2).unwrap();
}

/// What frees space is accepted, and nothing else.
#[test]
fn deletions_are_accepted_while_other_writes_are_not() {
    let db = Database::in_memory();
    (0..10).for_each(|number| write(&db, number).unwrap());
    let revision = *db.get("3").unwrap().unwrap().revision();
    db.maintenance().set_deletions_only(true);
    let refusals = [
        write(&db, 10).unwrap_err(),
        db.files().attach("4", &revision, "f", "text/plain", &b"content"[..]).unwrap_err(),
        db.write(|transaction| {
            transaction.delete("3", &revision)?;
            transaction.insert("11", &serde_json::json!({}))
        })
        .unwrap_err(),
        db.local_documents().put("_local/x", None, &serde_json::json!({})).unwrap_err(),
    ];
    for refused in refusals {
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
    }
    db.delete("3", &revision).unwrap();
    db.maintenance().compact().unwrap();
    assert_eq!(db.info().unwrap().document_count, 9);
    db.maintenance().set_deletions_only(false);
    write(&db, 10).unwrap();
}

/// A smaller memory merges what exceeds it, and drops what is cached beyond it.
#[test]
fn memory_of_an_open_database_can_be_changed() {
    let storage = TestStorage::new(12);
    let db = storage.open(Options::new().durability(Durability::None).background(false)).unwrap();
    let body = |number: u64| serde_json::json!({"number": number, "text": "x".repeat(500)});
    (0..3_000).for_each(|number| _ = db.insert(&number.to_string(), &body(number)).unwrap());
    (0..3_000).for_each(|number| assert!(db.get(&number.to_string()).unwrap().is_some()));
    let before = db.info().unwrap();
    assert!(before.memory_bytes > 1 << 20 && before.cache_bytes > 1 << 20, "{before:?}");
    db.maintenance().set_memory(256 << 10, 1 << 20);
    let after = db.info().unwrap();
    assert!(after.cache_bytes < before.cache_bytes / 2, "{after:?}");
    // Without background work, writers merge.
    db.insert("more", &body(0)).unwrap();
    db.insert("again", &body(0)).unwrap();
    assert!(db.info().unwrap().memory_bytes <= 1 << 20, "{:?}", db.info().unwrap());
    db.maintenance().set_memory(64 << 20, 64 << 20);
    (0..3_000).for_each(|number| assert!(db.get(&number.to_string()).unwrap().is_some()));
    assert!(db.info().unwrap().cache_bytes > 1 << 20);
}
