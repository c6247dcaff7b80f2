//! `check` looked up every assigned document number, including those of transactions that were waiting for their flush
//! and not in its snapshot yet, and reported these documents as missing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn check_succeeds_during_writes() {
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(directory.path().join("test.stemma"), Options::new()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (db, is_done) = (&db, &is_done);
            scope.spawn(move || {
                // An upper bound: where flushes are free, writers outpace the checks.
                for number in 0..20_000 {
                    if is_done.load(Ordering::Acquire) {
                        break;
                    }
                    db.insert(&format!("{writer}-{number}"), &value(r#"{"n":1}"#)).unwrap();
                }
            });
        }
        for _ in 0..50 {
            assert_sound(&db);
        }
        is_done.store(true, Ordering::Release);
    });
}
