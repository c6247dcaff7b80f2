//! Read-only databases: nothing on the disk changes, and writers are excluded.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use stemmadb::{Database, ErrorKind, Options, Selector, field};

/// Every file in a directory, recursively, with its content.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in directory.read_dir().unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.display().to_string(), std::fs::read(&path).unwrap());
        }
    }
    found
}

fn open_read_only(path: &Path) -> stemmadb::Result<Database> {
    Database::open_with(path, Options::new().read_only(true))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().flatten() {
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            std::fs::copy(&path, copied).unwrap();
        }
    }
}

#[test]
fn read_only_database_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("read.stemma");
    assert_eq!(open_read_only(&path).unwrap_err().kind(), ErrorKind::NotFound);
    let db = Database::open(&path).unwrap();
    for number in 0..500 {
        db.insert(&format!("d{number}"), &json!({"n": number})).unwrap();
    }
    db.maintenance().checkpoint().unwrap();
    let last = db.insert("last", &json!({"n": 500})).unwrap();
    assert_eq!(open_read_only(&path).unwrap_err().kind(), ErrorKind::Locked);
    // As a killed process leaves it: the log has records that are not in the tree.
    let killed = directory.path().join("killed.stemma");
    copy(&path, &killed);
    db.close().unwrap();

    for path in [&path, &killed] {
        let before = contents(path);
        let db = open_read_only(path).unwrap();
        assert_eq!(Database::open(path).unwrap_err().kind(), ErrorKind::Locked);
        assert_eq!(db.find(field("n").ge(490)).count().unwrap(), 11);
        assert_eq!(db.get("last").unwrap().unwrap().revision(), &last);
        assert!(db.maintenance().check().unwrap().is_sound());
        let refused = [
            db.insert("new", &json!({})).unwrap_err(),
            db.local_documents().put("_local/a", None, &json!({})).unwrap_err(),
            db.maintenance().compact().unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::Unavailable), "{refused:?}");
        db.maintenance().checkpoint().unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        assert_eq!(contents(path), before);
    }
    std::fs::remove_dir_all(killed.join("tree")).unwrap();
    let before = contents(&killed);
    assert_eq!(open_read_only(&killed).unwrap().find(Selector::everything()).count().unwrap(), 501);
    assert_eq!(contents(&killed), before);
    let db = Database::open(&killed).unwrap();
    db.insert("new", &json!({})).unwrap();
}

#[test]
fn interrupted_rebuild_is_made_good_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rebuilt.stemma");
    let options = Options::new().memory_bytes(1 << 20).background(false);
    let db = Database::open_with(&path, options.clone()).unwrap();
    for number in 0..20_000 {
        db.insert(&format!("d{number}"), &json!({"n": number, "text": "x".repeat(100)})).unwrap();
    }
    db.close().unwrap();
    let mut calls = 0;
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Database::rebuild(&path, options, |progress| {
            calls += 1;
            assert!(progress.done < progress.total * 9 / 10, "interrupted");
        })
    }));
    assert!(interrupted.is_err(), "the rebuild ended after {calls} reports");
    assert!(contents(&path.join("tree")).keys().any(|name| name.ends_with(".run")), "nothing was written yet");
    let before = contents(&path);
    assert_eq!(open_read_only(&path).unwrap().find(Selector::everything()).count().unwrap(), 20_000);
    assert_eq!(contents(&path), before);
}

#[test]
fn paths_are_listed_with_their_counts() {
    let db = Database::in_memory();
    db.insert("a", &json!({"t": "x", "tags": ["a", 1], "in": {"n": 1}, "a.b": null})).unwrap();
    let deleted = db.insert("b", &json!({"t": 2, "tags": [{"k": 1}], "only": 1})).unwrap();
    let paths = || -> Vec<String> {
        let show = |info: stemmadb::PathInfo| {
            let kinds = info.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>();
            format!("{} {}: {}; {} values", info.path, info.document_count, kinds.join(", "), info.value_count)
        };
        db.indexes().paths().unwrap().into_iter().map(show).collect()
    };
    let expected = [
        "a\\.b 1: null 1; 1 values",
        "in 1: object 1; 0 values",
        "in.n 1: number 1; 1 values",
        "only 1: number 1; 1 values",
        "t 2: number 1, string 1; 2 values",
        "tags 2: array 2; 0 values",
        "tags[] 1: number 1, string 1; 2 values",
        "tags[].k 1: number 1; 1 values",
    ];
    assert_eq!(paths(), expected);
    db.maintenance().checkpoint().unwrap();
    assert_eq!(paths(), expected);
    db.delete("b", &deleted).unwrap();
    assert!(!paths().iter().any(|line| line.starts_with("only")));
}

#[test]
fn compaction_reports_progress() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new().segment_bytes(64 << 10).background(false).durability(stemmadb::Durability::None);
    let db = Database::open_with(directory.path().join("compact.stemma"), options).unwrap();
    for round in 0..4 {
        for number in 0..500 {
            db.upsert(&format!("d{number}"), &json!({"text": "x".repeat(200), "round": round})).unwrap();
        }
    }
    let mut steps = Vec::new();
    let freed = db.maintenance().compact_with_progress(|step| steps.push(step)).unwrap();
    assert!(freed > 200_000 && steps.len() > 3, "{freed} bytes in {} steps", steps.len());
    assert!(steps.iter().all(|step| step.done <= step.total));
    assert!(steps.is_sorted_by_key(|step| step.done), "{steps:?}");
    assert_eq!(steps.last().unwrap().done, steps.last().unwrap().total);
}
