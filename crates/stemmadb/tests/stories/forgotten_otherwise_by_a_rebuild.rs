//! A rebuild forgot ancestors by today's `revs_limit`, where the writes had forgotten others, by the limit of their time. Ancestors were
//! missing then, or known that had been forgotten; and a revision that had come again after it was forgotten was lost with its body.

use super::*;
use stemmadb::field;

fn tell(db: &Database, path: &[&str]) {
    db.edit(foreign("a", path, r#"{"n":1}"#)).unwrap();
}

fn large(name: &str) -> Value {
    value(&format!(r#"{{"{name}":"{}"}}"#, "x".repeat(60 << 10)))
}

#[test]
fn a_lower_limit_forgets_nothing_before_the_next_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    tell(&db, &["6-f", "5-e", "4-d", "3-c", "2-b", "1-a"]);
    rebuilt(db, &path, options().revs_limit(2));
}

#[test]
fn a_higher_limit_brings_nothing_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    tell(&db, &["3-c", "2-b", "1-a"]);
    tell(&db, &["4-d", "3-c"]);
    rebuilt(db, &path, options().revs_limit(1000));
}

/// The same where the limit changes while the database is open, and compaction looked at the document under each.
#[test]
fn nor_do_limits_that_come_and_go() {
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
            paths.iter().for_each(|path| tell(&db, path));
            db.insert(&format!("keeps {limit} {}", db.sequence()), &large("more")).unwrap();
            roll(&db);
            if compacts {
                db.maintenance().compact().unwrap();
            }
        }
        rebuilt(db, &path, options().revs_limit(3));
    }
}

/// It is a leaf again, beside what came of it. With a higher limit the rebuild took it for the ancestor that it had been.
#[test]
fn what_comes_again_after_it_was_forgotten_is_not_lost() {
    for compacts in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.stemma");
        let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
        db.insert("keeps", &large("first")).unwrap();
        for edit in [["2-b", "1-a"], ["3-c", "2-b"], ["4-d", "3-c"], ["2-b", "1-a"]] {
            tell(&db, &edit);
        }
        assert_eq!(db.revisions("a").unwrap().len(), 2);
        if compacts {
            for _ in 0..2 {
                roll(&db);
                db.maintenance().compact().unwrap();
            }
        }
        rebuilt(db, &path, options().revs_limit(1000));
    }
}

/// A path that claims another parent for a known revision is not believed, now or later.
#[test]
fn a_claim_that_was_not_believed_is_not_believed_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    tell(&db, &["2-a", "1-x"]);
    roll(&db);
    db.insert("keeps", &large("first")).unwrap();
    tell(&db, &["3-b", "2-a", "1-y"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    assert_eq!(db.revisions("a").unwrap()[0].revisions[2], "1-x".parse().unwrap());
    rebuilt(db, &path, options().revs_limit(1000));
}

/// What the log states of a document names a leaf that was replaced later, and whose segment is gone.
#[test]
fn what_is_stated_outlives_what_it_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
        tell(&db, &edit);
    }
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    tell(&db, &["4-d", "3-c"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    tell(&db, &["5-e", "4-d"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    rebuilt(db, &path, options().revs_limit(2));
}

/// The leaf that is named was told again, with more ancestors, and its segment is gone: where that is replayed, the winner is the same revision
/// as before, but only now it can be read. It has a body, and its terms.
#[test]
fn a_winner_that_was_stated_and_told_again_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(2)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"]] {
        tell(&db, &edit);
    }
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    tell(&db, &["4-d", "3-c"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    db.maintenance().set_revs_limit(1000);
    tell(&db, &["4-d", "3-c", "2-b"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    let db = rebuilt(db, &path, options());
    assert_eq!(db.find(field("n").eq(1)).count().unwrap(), 1);
}

/// What is stated goes with its segment, where no leaf is moved any more: it is stated again.
#[test]
fn what_is_stated_is_stated_again_when_its_segment_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(3)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"], ["4-d", "3-c"]] {
        tell(&db, &edit);
    }
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    roll(&db);
    db.insert("keeps", &large("first")).unwrap();
    tell(&db, &["5-e", "4-d"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    assert_eq!(db.revisions("a").unwrap()[0].revisions.len(), 3);
    rebuilt(db, &path, options().revs_limit(3));
}

/// The same of a leaf that is one still: it was told again, with more ancestors, and lies where it was told last.
#[test]
fn what_is_told_again_lies_where_it_was_told_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    tell(&db, &["2-b"]);
    roll(&db);
    let kept = db.insert("keeps", &large("first")).unwrap();
    tell(&db, &["3-c", "2-b"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.delete("keeps", &kept).unwrap();
    db.insert("keeps too", &large("second")).unwrap();
    tell(&db, &["3-c", "2-b", "1-a"]);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    rebuilt(db, &path, options().revs_limit(1000));
}

/// What is stated is needed, and counts as much: else compaction would write it again and again.
#[test]
fn what_is_stated_counts_as_needed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().revs_limit(50)).unwrap();
    let revisions: Vec<_> = (1..=52).rev().map(|generation| format!("{generation}-a")).collect();
    let told: Vec<_> = revisions.iter().map(String::as_str).collect();
    for number in 0..200 {
        db.edit(foreign(&format!("{number}"), &told[1..], "{}")).unwrap();
        db.edit(foreign(&format!("{number}"), &told[..2], "{}")).unwrap();
    }
    assert!(db.maintenance().compact().unwrap() > 0);
    let info = db.info().unwrap();
    assert!(info.live_bytes > info.log_bytes / 4 * 3, "{info:?}");
    assert_eq!(db.maintenance().compact().unwrap(), 0);
    assert_sound(&db);
}
