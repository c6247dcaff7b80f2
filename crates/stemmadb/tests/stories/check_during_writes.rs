//! `check` looked for every document number that had been given, also those of transactions that waited for their flush and were not
//! in its snapshot yet, and reported the documents as missing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn check_and_writers_go_on_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(directory.path().join("test.stemma"), Options::new()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (db, done) = (&db, &done);
            scope.spawn(move || {
                // So many at most: where flushes cost nothing, they outrun the checks.
                for number in 0..20_000 {
                    if done.load(Ordering::Acquire) {
                        break;
                    }
                    db.insert(&format!("{writer}-{number}"), &value(r#"{"n":1}"#)).unwrap();
                }
            });
        }
        for _ in 0..50 {
            assert_sound(&db);
        }
        done.store(true, Ordering::Release);
    });
}
