//! The lock of a database: it belongs to the directory, whatever happens to the files in it and to its name.

#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use serde_json::json;
use stemmadb::{Database, ErrorKind, Options};

const PATH: &str = "STEMMA_LOCK_PATH";
const READ_ONLY: &str = "STEMMA_LOCK_READ_ONLY";

/// Opens the database that the variables name, in a process of its own; prints how that went.
#[test]
fn child() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let options = Options::new().create(false).read_only(std::env::var_os(READ_ONLY).is_some());
    match Database::open_with(path, options) {
        Ok(db) => println!("\nopened {}", db.info().unwrap().document_count),
        Err(error) => println!("\n{:?}", error.kind()),
    }
}

/// How another process opens the database.
fn open_elsewhere(path: &Path, read_only: bool) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(PATH, path);
    if read_only {
        command.env(READ_ONLY, "1");
    }
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let is_outcome = |line: &&str| line.starts_with("opened") || *line == "Locked";
    output.lines().find(is_outcome).unwrap_or_else(|| panic!("no outcome: {output}")).to_owned()
}

#[test]
fn other_processes_are_locked_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open(&path).unwrap();
    db.insert("a", &json!({})).unwrap();
    assert_eq!(open_elsewhere(&path, false), "Locked");
    assert_eq!(open_elsewhere(&path, true), "Locked");
    std::fs::remove_file(path.join("LOCK")).unwrap();
    assert_eq!(open_elsewhere(&path, false), "Locked", "without the file `LOCK`");
    assert_eq!(open_elsewhere(&path, true), "Locked", "without the file `LOCK`");
    assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::Locked, "in the same process");
    db.insert("b", &json!({})).unwrap();
    db.close().unwrap();
    assert_eq!(open_elsewhere(&path, false), "opened 2");
}

#[test]
fn readers_share_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open(&path).unwrap();
    db.insert("a", &json!({})).unwrap();
    db.close().unwrap();
    let reader = Database::open_with(&path, Options::new().read_only(true)).unwrap();
    assert_eq!(open_elsewhere(&path, true), "opened 1");
    assert_eq!(open_elsewhere(&path, false), "Locked");
    drop(reader);
    assert_eq!(open_elsewhere(&path, false), "opened 1");
}

/// A process of an earlier version locks only the file `LOCK`.
#[test]
fn earlier_versions_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    Database::open(&path).unwrap().close().unwrap();
    let file = std::fs::File::options().write(true).open(path.join("LOCK")).unwrap();
    file.lock().unwrap();
    assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(open_elsewhere(&path, true), "Locked");
    file.unlock().unwrap();
    Database::open(&path).unwrap();
}

/// A directory that is renamed stays the one that is written, and a new one of its name is another database.
#[test]
fn a_renamed_directory_stays_the_one_that_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("db"), directory.path().join("moved"));
    let options = || Options::new().background(false);
    let old = Database::open_with(&path, options()).unwrap();
    old.insert("a", &json!({"in": "old"})).unwrap();
    std::fs::rename(&path, &moved).unwrap();
    let new = Database::open_with(&path, options()).unwrap();
    assert_eq!(new.info().unwrap().document_count, 0);
    new.insert("b", &json!({"in": "new"})).unwrap();
    old.insert("c", &json!({"in": "old"})).unwrap();
    for db in [&old, &new] {
        db.maintenance().checkpoint().unwrap();
        db.maintenance().compact().unwrap();
        assert!(db.maintenance().check().unwrap().is_sound());
    }
    assert_eq!(Database::open(&moved).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(open_elsewhere(&path, false), "Locked");
    old.close().unwrap();
    new.close().unwrap();
    let ids = |path: &Path| {
        let db = Database::open(path).unwrap();
        db.snapshot().unwrap().list().run().map(|listed| listed.unwrap().id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&moved), ["a", "c"]);
    assert_eq!(ids(&path), ["b"]);
}
