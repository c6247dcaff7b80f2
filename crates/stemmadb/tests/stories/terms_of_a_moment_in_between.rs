//! A merge was cut short when the terms were in the tree that a document had for a moment, and its row was not. The document was replaced
//! meanwhile, and compaction had stated what is known of it. Replaying the log's tail began with that statement: it left out the record
//! that takes the terms of that moment back, so a query for a value of the past found the document. Only `kill -9` had shown it.

use stemmadb::field;

use super::*;

/// The document `a` has `n` 1 in the tree, 2 in the memtable that is merged next, and 3 in the one after, with its statement. It had
/// forgotten an ancestor, so compaction states it.
fn replace_while_compacting(db: &Database, fail: impl FnOnce()) -> stemmadb::Result<u64> {
    let mut writes = Some(|| {
        db.edit(foreign("a", &["4-d", "3-c"], r#"{"n":2}"#)).unwrap();
        // With this, the memtable is full.
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
fn they_are_taken_back() {
    for nth in 1.. {
        let place = testing::Place::new(nth);
        let options = || testing::small(options().revs_limit(2), 32 << 10, 64 << 10, 2);
        let db = place.open(options()).unwrap();
        for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
            db.edit(foreign("a", &edit, r#"{"n":1}"#)).unwrap();
        }
        roll(&db);
        let compacted = replace_while_compacting(&db, || place.fail_commit(nth, testing::Failure::Broken, true));
        drop(db);
        place.heal();
        let db = place.open(options()).unwrap();
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
