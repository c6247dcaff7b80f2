//! `check` listed the log's segments and read one after the other. When compaction retired one of them meanwhile, it gave up with an error
//! about a segment that was no longer needed; when compaction moved a document between two look-ups, it reported damage.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Ends what goes on beside, also where a check fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn check_and_compaction_go_on_at_the_same_time() {
    let small = stemmadb::testing::small(options(), 8 << 10, 4 << 10, 100);
    let db = Database::in_memory_with(small).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
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
        let _end = End(&done);
        for _ in 0..150 {
            assert_sound(&db);
        }
    });
}
