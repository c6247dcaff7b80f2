//! Compaction appended the records of an old segment again, old settings among them. They then came after newer ones, and the
//! last settings in the log are those in force: a rebuild went back to an index policy given up long ago.

use stemmadb::IndexPolicy;

use super::*;

#[test]
fn compaction_does_not_bring_old_settings_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let old = IndexPolicy::new(["year"], []).unwrap();
    let new = IndexPolicy::new([], ["title"]).unwrap();
    let db = Database::open_with(&path, options().index(old)).unwrap();
    db.insert("a", &value(r#"{"title":"Solaris","year":1961,"pages":204}"#)).unwrap();
    roll(&db);
    db.close().unwrap();
    let db = Database::open_with(&path, options().index(new)).unwrap();
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    let before = db.maintenance().check().unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(db.maintenance().check().unwrap().term_count, before.term_count, "other terms are indexed than before");
    assert_sound(&db);
}
