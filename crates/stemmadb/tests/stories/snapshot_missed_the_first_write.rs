//! A snapshot left an empty memtable out and asked only then which sequence was published. A write that came between was in
//! the sequence but in no memtable of the snapshot: readers missed it, and subscribers, who go on after that sequence, for ever.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn what_is_published_is_in_the_snapshot() {
    let db = Database::in_memory_with(options()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=3000 {
                db.upsert("a", &value(&format!(r#"{{"n":{number}}}"#))).unwrap();
                // The next write meets an empty memtable.
                db.maintenance().checkpoint().unwrap();
            }
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let snapshot = db.snapshot().unwrap();
                    let found = snapshot.get("a").unwrap().map(|document| document.sequence());
                    assert_eq!(found.unwrap_or(Sequence::ZERO), snapshot.sequence());
                }
            });
        }
    });
}
