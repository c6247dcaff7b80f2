//! A replica told of older ancestors of a revision that was a leaf here already. The record that said so held no body that was
//! needed, so compaction let it go with its segment; the next rebuild knew the revision, but no longer its ancestors.

use super::*;

#[test]
fn what_a_second_record_tells_of_a_leaf_survives_compaction() {
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
    let db = rebuilt(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}

/// The same where the two records lie in different segments, of which only the second is given up.
#[test]
fn the_second_record_may_go_alone() {
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
    let db = rebuilt(db, &path, options());
    assert_eq!(db.revisions("a").unwrap(), before);
}
