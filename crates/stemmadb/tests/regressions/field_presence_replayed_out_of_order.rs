//! Compaction rewrites the leaves of a document, each with the document's latest sequence. A rebuild then changes the
//! document's fields twice at one sequence, and the memtable, which ordered such changes by sequence only, took the
//! first for the last: the index reported a field of the losing leaf as present.

use super::*;

#[test]
fn later_change_at_the_same_sequence_wins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    db.edit(foreign("a", &["1-loser"], r#"{"year":1961,"only":"here"}"#)).unwrap();
    db.edit(foreign("a", &["2-winner"], r#"{"year":1972}"#)).unwrap();
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    assert_sound(&Database::open_with(&path, options()).unwrap());
}
