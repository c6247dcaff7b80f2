//! A replica sent older ancestors of a revision that was already a leaf here. The record with them contained no needed
//! body, so compaction dropped it with its segment, and the next rebuild no longer knew the ancestors.

use super::*;

#[test]
fn ancestors_from_a_second_record_survive_compaction() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    db.edit(foreign("a", &["3-c", "2-b"], r#"{"n":3}"#)).unwrap();
    db.edit(foreign("a", &["3-c", "2-b", "1-a"], r#"{"n":3}"#)).unwrap();
    let before = db.revisions("a").unwrap();
    assert_eq!(before[0].revisions.len(), 3);
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    assert_eq!(db.revisions("a").unwrap(), before);
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// The same with the two records in different segments, of which only the second is retired.
#[test]
fn ancestors_survive_when_only_the_second_record_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let large = format!(r#"{{"n":3,"text":"{}"}}"#, "y".repeat(60 << 10));
    db.edit(foreign("a", &["3-c", "2-b"], &large)).unwrap();
    roll(&db);
    db.edit(foreign("a", &["3-c", "2-b", "1-a"], &large)).unwrap();
    roll(&db);
    let before = db.revisions("a").unwrap();
    assert!(db.maintenance().compact().unwrap() > 0);
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}
