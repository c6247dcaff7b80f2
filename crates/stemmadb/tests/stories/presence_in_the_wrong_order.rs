//! Compaction writes the leaves of a document again, each with the document's latest sequence. Without a tree, replay then changes the
//! document's fields twice at one sequence, and the memtable, which ordered such changes by sequence, took the first for the last:
//! the index said that a field of the losing leaf was there.

use super::*;

#[test]
fn of_two_changes_at_one_sequence_the_later_counts() {
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
