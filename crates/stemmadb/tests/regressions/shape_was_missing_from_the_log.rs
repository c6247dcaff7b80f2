//! A body's field names become a shape in memory before the edit is validated. When the edit failed, a checkpoint wrote
//! the shape to the tree although no frame of the log contained it; after reopening, the shape counted as logged, so no
//! later frame contained it either. Documents of that shape were readable until the tree was deleted, and never again
//! afterwards.

use super::*;

#[test]
fn shapes_in_the_tree_are_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    db.insert("a", &value(r#"{"title":"Solaris"}"#)).unwrap();
    db.insert("a", &value(r#"{"never":1,"seen":2}"#)).unwrap_err();
    db.close().unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    db.insert("b", &value(r#"{"never":3,"seen":4}"#)).unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(db.get("b").unwrap().unwrap().value().unwrap(), value(r#"{"never":3,"seen":4}"#));
    assert_sound(&db);
}
