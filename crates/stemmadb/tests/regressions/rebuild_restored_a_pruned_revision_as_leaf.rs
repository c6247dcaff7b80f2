//! A document keeps the ids of its latest revisions only. If compaction dropped the records showing that an old
//! revision had been replaced, while the old record itself remained in another segment, a rebuild took the old revision
//! for a branch: a spurious conflict, and a deleted document became visible again.

use super::*;

#[test]
fn deleted_document_stays_deleted_after_pruning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(3);
    let db = Database::open_with(&path, options()).unwrap();
    // The first segment is kept, as most of it is needed.
    db.insert("keeps", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
    let mut revision = db.insert("a", &value(r#"{"n":1}"#)).unwrap();
    roll(&db);
    for n in 2..20 {
        revision = db.replace("a", &revision, &value(&format!(r#"{{"n":{n}}}"#))).unwrap();
    }
    db.delete("a", &revision).unwrap();
    roll(&db);
    let before = db.revisions("a").unwrap();
    assert!(db.maintenance().compact().unwrap() > 0);
    for _ in 0..2 {
        assert_eq!(db.revisions("a").unwrap(), before);
        roll(&db);
        db.maintenance().compact().unwrap();
    }
    let db = rebuild_and_check(db, &path, options());
    assert_eq!(db.get("a").unwrap(), None);
    assert_eq!(db.revisions("a").unwrap(), before);
}
