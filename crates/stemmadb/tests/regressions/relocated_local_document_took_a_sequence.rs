//! A transaction of local documents takes one sequence. Replay also counted one for a frame in which compaction had
//! rewritten a local document: after every reopening, the database had a later sequence than before.

use super::*;

#[test]
fn relocated_local_document_takes_no_sequence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    db.local_documents().put("_local/a", None, &value(r#"{"n":1}"#)).unwrap();
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    let before = db.sequence();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(db.sequence(), before);
    assert_eq!(db.local_documents().get("_local/a").unwrap(), Some((1, value(r#"{"n":1}"#))));
    assert_sound(&db);
}
