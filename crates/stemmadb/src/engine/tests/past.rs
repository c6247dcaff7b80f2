//! The past and interrupted compactions.

use std::sync::Arc;

use serde_json::json;

use crate::retention::Retention;
use crate::vfs::{Call, Failure, FaultVfs};
use crate::{Database, Options, Sequence, testing};

fn open(disk: &FaultVfs) -> Database {
    let options = testing::with_small_limits(Options::new().background(false), 16 << 10, 16 << 10, 40);
    testing::open_database(Arc::new(disk.clone()), options).unwrap()
}

/// The database loses nothing of its past when a compaction ends at any call that changes the disk, as if the process
/// ended there: between the history file and the end of its segment, too.
#[test]
fn a_compaction_that_fails_anywhere_keeps_the_past() {
    for nth in 1.. {
        let disk = FaultVfs::new(nth);
        let db = open(&disk);
        db.history().keep(Retention::Everything).unwrap();
        for edit in 0..4 {
            for number in 0..20 {
                db.upsert(&format!("d{number}"), &json!({"edit": edit, "fill": "f".repeat(500)})).unwrap();
            }
        }
        db.maintenance().checkpoint().unwrap();
        disk.fail(Call::AnyChange, nth, Failure::Broken, true);
        let is_compacted = db.maintenance().compact().is_ok();
        drop(db);
        disk.heal();
        let db = open(&disk);
        assert_eq!(db.history().oldest(), Sequence::ZERO, "change {nth} failed");
        let past = db.as_of(Sequence(40)).unwrap();
        assert_eq!(past.find(crate::field("edit").eq(1)).count().unwrap(), 20, "change {nth} failed");
        let report = db.maintenance().check().unwrap();
        assert!(report.is_sound(), "change {nth} failed: {:?}", report.damages);
        // Its leftovers don't prevent the next compaction.
        db.maintenance().compact().unwrap_or_else(|error| panic!("change {nth} failed, and then: {error:?}"));
        assert_eq!(db.history().oldest(), Sequence::ZERO, "change {nth} failed");
        if is_compacted {
            assert!(nth > 20, "a compaction makes only {nth} changes");
            break;
        }
    }
}
