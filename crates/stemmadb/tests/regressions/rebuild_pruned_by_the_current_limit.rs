//! A rebuild pruned ancestors by the current `revs_limit` instead of the limit in force at each write. Ancestors were
//! then missing or restored, and a revision that had arrived again after it was pruned lost its body.

use super::*;
use stemmadb::field;

fn replicate(db: &Database, path: &[&str]) {
    db.edit(foreign("a", path, r#"{"n":1}"#)).unwrap();
}

fn large(name: &str) -> Value {
    value(&format!(r#"{{"{name}":"{}"}}"#, "x".repeat(60 << 10)))
}

#[test]
fn lower_limit_prunes_nothing_before_the_next_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    replicate(&db, &["6-f", "5-e", "4-d", "3-c", "2-b", "1-a"]);
    rebuild_and_check(db, &path, options().revs_limit(2));
}

#[test]
fn higher_limit_restores_no_ancestors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    replicate(&db, &["3-c", "2-b", "1-a"]);
    replicate(&db, &["4-d", "3-c"]);
    rebuild_and_check(db, &path, options().revs_limit(1000));
}

/// The same with limits that change while the database is open, and compactions under each.
#[test]
fn changing_limits_restore_no_ancestors() {
    for compacts in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.stemma");
        let db = Database::open_with(&path, options()).unwrap();
        for (limit, paths) in [
            (3, [["6-f", "5-e", "4-d", "3-c"], ["7-b", "6-f", "5-e", "4-d"]]),
            (1000, [["7-a", "6-f", "5-e", "4-d"], ["9-a", "8-a", "7-a", "6-f"]]),
            (2, [["8-b", "7-b", "6-f", "5-e"], ["10-a", "9-a", "8-a", "7-a"]]),
            (1000, [["10-a", "9-a", "8-a", "7-a"], ["9-b", "8-b", "7-b", "6-f"]]),
        ] {
            db.maintenance().set_revs_limit(limit);
            paths.iter().for_each(|path| replicate(&db, path));
            db.insert(&format!("keeps {limit} {}", db.sequence()), &large("more")).unwrap();
            roll(&db);
            if compacts {
                db.maintenance().compact().unwrap();
            }
        }
        rebuild_and_check(db, &path, options().revs_limit(3));
    }
}

/// It becomes a leaf again, beside its descendant. Under a higher limit, a rebuild took it for the ancestor that it had
/// been.
#[test]
fn revision_arriving_again_after_pruning_is_kept() {
    for compacts in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.stemma");
        let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
        db.insert("keeps", &large("first")).unwrap();
        for edit in [["2-b", "1-a"], ["3-c", "2-b"], ["4-d", "3-c"], ["2-b", "1-a"]] {
            replicate(&db, &edit);
        }
        assert_eq!(db.revisions("a").unwrap().len(), 2);
        if compacts {
            for _ in 0..2 {
                roll(&db);
                db.maintenance().compact().unwrap();
            }
        }
        rebuild_and_check(db, &path, options().revs_limit(1000));
    }
}

/// A path with a different parent for a known revision is rejected, now and during a rebuild.
#[test]
fn rejected_ancestry_stays_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    replicate(&db, &["2-a", "1-x"]);
    roll(&db);
    db.insert("keeps", &large("first")).unwrap();
    replicate(&db, &["3-b", "2-a", "1-y"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    assert_eq!(db.revisions("a").unwrap()[0].revisions[2], "1-x".parse().unwrap());
    rebuild_and_check(db, &path, options().revs_limit(1000));
}

/// A snapshot record contains a leaf that was replaced later and whose segment is retired.
#[test]
fn snapshot_record_outlives_its_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
        replicate(&db, &edit);
    }
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    replicate(&db, &["4-d", "3-c"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    replicate(&db, &["5-e", "4-d"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    rebuild_and_check(db, &path, options().revs_limit(2));
}

/// The leaf in the snapshot record arrived again with more ancestors, and its segment is retired. On replay of that
/// record, the winner is the same revision as before, but becomes readable only now; it must have a body and its terms.
#[test]
fn winner_of_a_snapshot_record_that_arrived_again_is_indexed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
        replicate(&db, &edit);
    }
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    replicate(&db, &["4-d", "3-c"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    db.maintenance().set_revs_limit(1000);
    replicate(&db, &["4-d", "3-c", "2-b"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.find(field("n").eq(1)).count().unwrap(), 1);
}

/// If the segment of a snapshot record is retired without any leaf to move, the snapshot record is written again.
#[test]
fn snapshot_record_is_rewritten_when_its_segment_is_retired() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(3)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"], ["4-d", "3-c"]] {
        replicate(&db, &edit);
    }
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    roll(&db);
    db.insert("keeps", &large("first")).unwrap();
    replicate(&db, &["5-e", "4-d"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    assert_eq!(db.revisions("a").unwrap()[0].revisions.len(), 3);
    rebuild_and_check(db, &path, options().revs_limit(3));
}

/// A leaf that arrived again with more ancestors is located at its latest record.
#[test]
fn leaf_arriving_again_is_located_at_its_latest_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    replicate(&db, &["2-b"]);
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    replicate(&db, &["3-c", "2-b"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    replicate(&db, &["3-c", "2-b", "1-a"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    rebuild_and_check(db, &path, options().revs_limit(1000));
}

/// Snapshot records count as live bytes; otherwise compaction would rewrite them again and again.
#[test]
fn snapshot_records_count_as_live_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(50)).unwrap();
    let revisions: Vec<_> = (1..=52).rev().map(|generation| format!("{generation}-a")).collect();
    let path: Vec<_> = revisions.iter().map(String::as_str).collect();
    for number in 0..200 {
        db.edit(foreign(&format!("{number}"), &path[1..], "{}")).unwrap();
        db.edit(foreign(&format!("{number}"), &path[..2], "{}")).unwrap();
    }
    assert!(db.maintenance().compact().unwrap() > 0);
    let info = db.info().unwrap();
    assert!(info.live_bytes > info.log_bytes / 4 * 3, "{info:?}");
    assert_eq!(db.maintenance().compact().unwrap(), 0);
    assert_sound(&db);
}
