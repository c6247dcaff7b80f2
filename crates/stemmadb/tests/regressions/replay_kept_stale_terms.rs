//! A merge was interrupted after the tree had the terms that a document had temporarily, but not its row. The document
//! was replaced in the meantime, and compaction had written a snapshot record for it. Replay of the log's tail started
//! with that snapshot record and skipped the record that removes the temporary terms, so a query for an old value found
//! the document. Found only by `kill -9`.

use stemmadb::field;

use super::*;

/// In document `a`, `n` is 1 in the tree, 2 in the memtable merged next, and 3 in the one after, with its snapshot
/// record, which compaction writes because an ancestor was pruned.
fn replace_while_compacting(db: &Database, fail: impl FnOnce()) -> stemmadb::Result<u64> {
    let mut writes = Some(|| {
        db.edit(foreign("a", &["4-d", "3-c"], r#"{"n":2}"#)).unwrap();
        // This fills the memtable.
        db.insert("b", &value(&format!("{{\"text\":\"{}\"}}", "x".repeat(20 << 10)))).unwrap();
        db.edit(foreign("a", &["5-e", "4-d"], r#"{"n":3}"#)).unwrap();
        fail();
    });
    db.maintenance().compact_with_progress(|_| {
        if let Some(write) = writes.take() {
            write();
        }
    })
}

#[test]
fn stale_terms_are_removed_by_replay() {
    for nth in 1.. {
        let storage = testing::TestStorage::new(nth);
        let options = || testing::with_small_limits(options().revs_limit(2), 32 << 10, 64 << 10, 2);
        let db = storage.open(options()).unwrap();
        for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
            db.edit(foreign("a", &edit, r#"{"n":1}"#)).unwrap();
        }
        roll(&db);
        let compacted = replace_while_compacting(&db, || storage.fail_commit(nth, testing::Failure::Broken, true));
        drop(db);
        storage.heal();
        let db = storage.open(options()).unwrap();
        assert_sound(&db);
        for (n, count) in [(1, 0), (2, 0), (3, 1)] {
            assert_eq!(db.find(field("n").eq(n)).count().unwrap(), count, "n {n}, after {} commits", nth - 1);
        }
        if compacted.is_ok() {
            assert!(nth > 4, "the merge is one of several commits");
            break;
        }
    }
}
