//! A replica told of older ancestors of a document, which were forgotten at once, as so many are not kept (`revs_limit`). The record that
//! said so told nothing that was needed, so compaction let it go with its segment; but it alone had the document's newest sequence. After
//! a rebuild the document stood further back in the feed, and whoever had read up to a place between missed that change.

use super::*;

#[test]
fn the_newest_sequence_is_kept_when_its_record_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let options = || options().revs_limit(2);
    let db = Database::open_with(&path, options()).unwrap();
    let large = format!(r#"{{"n":3,"text":"{}"}}"#, "y".repeat(60 << 10));
    db.edit(foreign("a", &["3-c", "2-b"], &large)).unwrap();
    roll(&db);
    db.edit(foreign("a", &["2-b", "1-a"], &large)).unwrap();
    let told = |db: &Database| {
        let changes = db.changes(Sequence::ZERO).unwrap().run().map(|change| change.unwrap());
        changes.map(|change| (change.sequence, change.id.to_string())).collect::<Vec<_>>()
    };
    roll(&db);
    let before = told(&db);
    for _ in 0..2 {
        db.maintenance().compact().unwrap();
        assert_eq!(told(&db), before);
    }
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(told(&db), before);
    assert_sound(&db);
}
