//! Compaction rewrote the records of an old segment, including old settings, which then followed newer ones. Since the
//! last settings in the log apply, a rebuild restored an index policy that had been replaced long before.

use stemmadb::IndexPolicy;

use super::*;

#[test]
fn compaction_keeps_the_newest_settings() {
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
    assert_eq!(db.maintenance().check().unwrap().term_count, before.term_count, "the same terms are indexed as before");
    assert_sound(&db);
}
