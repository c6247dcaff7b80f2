//! A conflicting revision came when the document had forgotten (`revs_limit`) what its parent came from. Compaction gave up the records
//! that had made it forget, while an older one still told of that ancestry: a rebuild knew what had been forgotten, and told other
//! ancestors to replicas than before.

use super::*;

#[test]
fn what_a_conflict_never_knew_stays_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(4);
    let db = Database::open_with(&path, options()).unwrap();
    // The first segment stays: most of it is needed. It tells of 5 and 4.
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
    let db = rebuilt(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// What is told again after it was forgotten is known after a rebuild, though the leaf's own record named it before it was forgotten.
#[test]
fn what_is_told_again_stays_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(3);
    let db = Database::open_with(&path, options()).unwrap();
    // The first segment stays: the leaf's own record names four ancestors, of which two are kept.
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
    let db = rebuilt(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// The same where a checkpoint is cut short, so that what the tree has already is replayed.
#[test]
fn nor_does_a_second_replay_bring_it_back() {
    for nth in 1.. {
        let place = testing::Place::new(nth);
        let options = || testing::small(options().revs_limit(4), 64 << 10, 64 << 10, 2);
        let db = place.open(options()).unwrap();
        // Without a first checkpoint the next opening would begin anew.
        db.insert("other", &value("{}")).unwrap();
        db.maintenance().checkpoint().unwrap();
        db.edit(foreign("a", &["6-f", "5-e", "4-d"], r#"{"n":6}"#)).unwrap();
        for (revision, parent) in [("7-a", "6-f"), ("8-a", "7-a"), ("9-a", "8-a"), ("7-b", "6-f"), ("10-a", "9-a")] {
            db.edit(foreign("a", &[revision, parent], r#"{"n":7}"#)).unwrap();
        }
        let before = db.revisions("a").unwrap();
        place.fail_commit(nth, testing::Failure::Broken, true);
        let is_cut_short = db.maintenance().checkpoint().is_err();
        drop(db);
        place.heal();
        let db = place.open(options()).unwrap();
        assert_eq!(db.revisions("a").unwrap(), before, "after {} commits", nth - 1);
        assert_sound(&db);
        if !is_cut_short {
            break;
        }
    }
}
