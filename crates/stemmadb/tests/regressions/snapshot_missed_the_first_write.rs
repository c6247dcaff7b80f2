//! A snapshot skipped an empty memtable and read the published sequence only afterwards. A write in between was covered
//! by that sequence but in no memtable of the snapshot: readers missed it, and subscribers, who continue after that
//! sequence, missed it forever.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn published_writes_are_in_the_snapshot() {
    let db = Database::in_memory_with(options()).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=3000 {
                db.upsert("a", &value(&format!(r#"{{"n":{number}}}"#))).unwrap();
                // The next write goes to an empty memtable.
                db.maintenance().checkpoint().unwrap();
            }
            is_done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    let snapshot = db.snapshot().unwrap();
                    let found = snapshot.get("a").unwrap().map(|document| document.sequence());
                    assert_eq!(found.unwrap_or(Sequence::ZERO), snapshot.sequence());
                }
            });
        }
    });
}
