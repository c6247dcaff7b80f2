//! `check` listed the log's segments and read them one by one. If compaction retired one of them in the meantime,
//! `check` failed on a segment that was no longer needed; if compaction moved a document between two lookups, it
//! reported damage.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Stops the other thread, even if a check fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn check_succeeds_during_compaction() {
    let small = stemmadb::testing::with_small_limits(options(), 8 << 10, 4 << 10, 100);
    let db = Database::in_memory_with(small).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                for number in 0..40 {
                    db.upsert(
                        &format!("{number}"),
                        &value(r#"{"text":"a record of some length, so that segments are full soon"}"#),
                    )
                    .unwrap();
                }
                db.maintenance().compact().unwrap();
            }
        });
        let _stop = StopOnDrop(&is_done);
        for _ in 0..150 {
            assert_sound(&db);
        }
    });
}
