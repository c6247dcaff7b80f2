//! A replica sent older ancestors of a document, which were pruned immediately because of `revs_limit`. The record with
//! them contained nothing needed, so compaction dropped it with its segment, but it alone had the document's newest
//! sequence. After a rebuild the document appeared earlier in the feed, and a reader that had read up to a sequence in
//! between missed the change.

use super::*;

#[test]
fn newest_sequence_survives_when_its_record_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(2);
    let db = Database::open_with(&path, options()).unwrap();
    let large = format!(r#"{{"n":3,"text":"{}"}}"#, "y".repeat(60 << 10));
    db.edit(foreign("a", &["3-c", "2-b"], &large)).unwrap();
    roll(&db);
    db.edit(foreign("a", &["2-b", "1-a"], &large)).unwrap();
    let feed = |db: &Database| {
        let changes = db.changes(Sequence::ZERO).unwrap().run().map(|change| change.unwrap());
        changes.map(|change| (change.sequence, change.id.to_string())).collect::<Vec<_>>()
    };
    roll(&db);
    let before = feed(&db);
    for _ in 0..2 {
        db.maintenance().compact().unwrap();
        assert_eq!(feed(&db), before);
    }
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(feed(&db), before);
    assert_sound(&db);
}
