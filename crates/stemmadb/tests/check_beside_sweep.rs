//! A check beside a sweep: contents that were removed because no document has them any more are not damage; contents
//! that a document still has are.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use stemmadb::{Database, Options};

/// Contents of this size have a file of their own.
const FILE_BYTES: usize = 70_000;

const COUNT: usize = 20;

fn content(number: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(FILE_BYTES).collect()
}

fn attach(db: &Database, number: usize, content: &[u8]) {
    let id = number.to_string();
    let revision = db.upsert(&id, &json!({"number": number})).unwrap();
    db.files().attach(&id, &revision, "file", "application/octet-stream", content).unwrap();
}

/// Without background work, which would sweep as well.
fn open(path: &Path) -> Database {
    let db = Database::open_with(path, Options::new().background(false)).unwrap();
    (0..COUNT).for_each(|number| attach(&db, number, &content(number)));
    db
}

#[test]
fn contents_swept_during_a_check_are_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(&directory.path().join("db"));
    let mut swept = 0;
    // The first call is between the snapshot and the first document.
    let report = db.maintenance().check_with_progress(|_| {
        if swept == 0 {
            (0..COUNT).for_each(|number| attach(&db, number, &content(number + COUNT)));
            swept = db.files().sweep().unwrap().blob_count;
        }
    });
    assert_eq!(swept, COUNT as u64);
    assert_eq!(report.unwrap().damages, []);
}

#[test]
fn contents_lost_during_a_check_are_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = open(&path);
    let mut is_removed = false;
    let report = db.maintenance().check_with_progress(|_| {
        if !std::mem::replace(&mut is_removed, true) {
            std::fs::remove_dir_all(path.join("blobs")).unwrap();
            attach(&db, 0, &content(COUNT));
        }
    });
    // The content of the first document was replaced; those of the others are lost.
    let damages = report.unwrap().damages;
    assert_eq!(damages.len(), COUNT - 1, "{damages:#?}");
    assert!(damages.iter().all(|damage| damage.what.contains("lost")), "{damages:#?}");
}

#[test]
fn checks_beside_a_thread_that_sweeps_are_sound() {
    let directory = tempfile::tempdir().unwrap();
    let db = open(&directory.path().join("db"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                attach(&db, number % COUNT, &content(number % 50));
                db.files().sweep().unwrap();
            }
        });
        for round in 0..20 {
            let report = db.maintenance().check().unwrap();
            assert_eq!(report.damages, [], "round {round}");
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
