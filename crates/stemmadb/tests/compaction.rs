//! Explicit compaction: it rewrites what is dead even if nothing is written, gives the space back to the file system,
//! and reports what that got back.

use std::path::{Path, PathBuf};

use serde_json::json;
use stemmadb::{Database, Durability, Options};

fn open(path: &Path) -> Database {
    Database::open_with(path, Options::new().durability(Durability::None).background(false)).unwrap()
}

/// Random text, so that no compression can make it smaller.
fn body(number: u64, round: u64) -> serde_json::Value {
    json!({"number": number, "round": round, "text": "0123456789".repeat(50)})
}

fn write(db: &Database, count: u64, round: u64) {
    (0..count).for_each(|number| _ = db.upsert(&format!("{number:05}"), &body(number, round)).unwrap());
}

fn log_files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = path.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn log_bytes(path: &Path) -> u64 {
    log_files(path).iter().map(|file| file.metadata().unwrap().len()).sum()
}

fn assert_contents(db: &Database, count: u64, round: u64) {
    for number in 0..count {
        let found = db.get(&format!("{number:05}")).unwrap().unwrap();
        assert_eq!(found.get("round").unwrap().unwrap().as_u64(), Some(round), "{number}");
    }
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

#[test]
fn an_idle_database_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path);
    (0..4).for_each(|round| write(&db, 5_000, round));
    db.close().unwrap();
    let db = open(&path);
    let before = log_bytes(&path);
    let live_bytes = db.info().unwrap().live_bytes;
    assert!(before > 3 * live_bytes, "{before} bytes, {live_bytes} live");
    let freed_bytes = db.maintenance().compact().unwrap();
    let after = log_bytes(&path);
    assert_eq!(freed_bytes, before - after, "the reported bytes are those that the directory lost");
    // Space for the next writes is allocated ahead.
    assert!(after < live_bytes * 11 / 10 + (1 << 20) + 4096, "{after} bytes for {live_bytes} live ones");
    assert_contents(&db, 5_000, 3);

    // Further runs find nothing to do and leave nothing behind.
    let files = log_files(&path);
    for _ in 0..5 {
        assert_eq!(db.maintenance().compact().unwrap(), 0);
        assert_eq!(log_files(&path), files);
    }
    assert_eq!(log_bytes(&path), after);
    db.close().unwrap();
    assert_contents(&open(&path), 5_000, 3);
}

#[test]
fn retired_files_are_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path);
    for round in 0..4 {
        write(&db, 5_000, round);
        db.insert(&format!("unrelated {round}"), &json!({})).unwrap();
        let before = log_bytes(&path);
        let freed_bytes = db.maintenance().compact().unwrap();
        let after = log_bytes(&path);
        assert_eq!(before.saturating_sub(after), freed_bytes, "round {round}");
        assert!(round == 0 || freed_bytes > 1_000_000, "round {round}: {freed_bytes}");
        assert!(!log_files(&path).iter().any(|file| file.to_string_lossy().contains("free")), "round {round}");
    }
    assert_contents(&db, 5_000, 3);
}

/// A snapshot keeps the files that it reads: they are not reported as freed.
#[test]
fn files_that_a_snapshot_reads_are_not_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path);
    write(&db, 5_000, 0);
    let snapshot = db.snapshot().unwrap();
    (1..3).for_each(|round| write(&db, 5_000, round));
    assert_eq!(db.maintenance().compact().unwrap(), 0);
    assert_eq!(snapshot.get("00007").unwrap().unwrap().get("round").unwrap().unwrap().as_u64(), Some(0));
    drop(snapshot);
    assert_contents(&db, 5_000, 2);
}

/// Small transactions are joined: a log of small frames shrinks although nothing in it is dead.
#[test]
fn small_frames_are_joined() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path);
    (0..20_000).for_each(|number| _ = db.insert(&format!("{number:05}"), &json!({"round": 0})).unwrap());
    db.maintenance().checkpoint().unwrap();
    let live_bytes = db.info().unwrap().live_bytes;
    let before = db.info().unwrap().log_bytes;
    assert!(before > live_bytes * 5 / 4, "{before} bytes, {live_bytes} live");
    db.maintenance().compact().unwrap();
    let after = db.info().unwrap().log_bytes;
    // A relocated record has nine bytes more, for the time of its first write.
    let longer = 20_000 * 9;
    assert!(after - longer < live_bytes * 11 / 10, "{after} bytes for {live_bytes} live ones");
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    assert_contents(&open(&path), 20_000, 0);
}
