//! A conflicting revision arrived after the document had pruned (`revs_limit`) the ancestors of its parent. Compaction
//! dropped the records that had caused the pruning, while an older record still contained those ancestors: a rebuild
//! restored them, and replicas received other ancestors than before.

use super::*;

#[test]
fn ancestors_unknown_to_a_conflict_stay_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(4);
    let db = Database::open_with(&path, options()).unwrap();
    // The first segment is kept, as most of it is needed. It contains 5 and 4.
    db.insert("keeps", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
    db.edit(foreign("a", &["6-f", "5-e", "4-d"], r#"{"n":6}"#)).unwrap();
    roll(&db);
    for (revision, parent) in [("7-a", "6-f"), ("8-a", "7-a"), ("9-a", "8-a")] {
        db.edit(foreign("a", &[revision, parent], r#"{"n":7}"#)).unwrap();
    }
    db.edit(foreign("a", &["7-b", "6-f"], r#"{"n":8}"#)).unwrap();
    db.edit(foreign("a", &["10-a", "9-a"], r#"{"n":10}"#)).unwrap();
    let before = db.revisions("a").unwrap();
    let lengths: Vec<_> = before.iter().map(|branch| branch.revisions.len()).collect();
    assert_eq!(lengths, [4, 2]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    for _ in 0..2 {
        assert_eq!(db.revisions("a").unwrap(), before);
        roll(&db);
        db.maintenance().compact().unwrap();
    }
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// Ancestors sent again after pruning are known after a rebuild, although the leaf's own record contained them before
/// they were pruned.
#[test]
fn ancestors_sent_again_stay_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(3);
    let db = Database::open_with(&path, options()).unwrap();
    // The first segment is kept: the leaf's own record contains four ancestors, of which two are retained.
    db.insert("keeps", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
    db.edit(foreign("a", &["5-a", "4-a", "3-a", "2-a", "1-a"], r#"{"n":5}"#)).unwrap();
    roll(&db);
    db.edit(foreign("a", &["2-b", "1-b"], r#"{"n":2}"#)).unwrap();
    roll(&db);
    db.maintenance().compact().unwrap();
    db.close().unwrap();
    let options = || options().revs_limit(5);
    let db = Database::open_with(&path, options()).unwrap();
    db.edit(foreign("a", &["5-a", "4-a", "3-a", "2-a", "1-a"], r#"{"n":5}"#)).unwrap();
    roll(&db);
    db.edit(foreign("a", &["3-b", "2-b"], r#"{"n":3}"#)).unwrap();
    let before = db.revisions("a").unwrap();
    assert_eq!(before[0].revisions.len(), 5);
    roll(&db);
    for _ in 0..2 {
        db.maintenance().compact().unwrap();
        roll(&db);
    }
    assert_eq!(db.revisions("a").unwrap(), before);
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// The same with an interrupted checkpoint, so that records already merged into the tree are replayed.
#[test]
fn replay_after_an_interrupted_checkpoint_restores_no_ancestors() {
    for nth in 1.. {
        let storage = testing::TestStorage::new(nth);
        let options = || testing::with_small_limits(options().revs_limit(4), 64 << 10, 64 << 10, 2);
        let db = storage.open(options()).unwrap();
        // Without a first checkpoint, the next open would replay everything.
        db.insert("other", &value("{}")).unwrap();
        db.maintenance().checkpoint().unwrap();
        db.edit(foreign("a", &["6-f", "5-e", "4-d"], r#"{"n":6}"#)).unwrap();
        for (revision, parent) in [("7-a", "6-f"), ("8-a", "7-a"), ("9-a", "8-a"), ("7-b", "6-f"), ("10-a", "9-a")] {
            db.edit(foreign("a", &[revision, parent], r#"{"n":7}"#)).unwrap();
        }
        let before = db.revisions("a").unwrap();
        storage.fail_commit(nth, testing::Failure::Broken, true);
        let is_interrupted = db.maintenance().checkpoint().is_err();
        drop(db);
        storage.heal();
        let db = storage.open(options()).unwrap();
        assert_eq!(db.revisions("a").unwrap(), before, "after {} commits", nth - 1);
        assert_sound(&db);
        if !is_interrupted {
            break;
        }
    }
}
