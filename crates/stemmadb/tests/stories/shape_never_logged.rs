//! A body's field names become a shape in memory before the edit is checked. When the edit failed, a checkpoint wrote the shape
//! into the tree although no frame of the log had it; after reopening, the shape counted as logged, so no later frame had it
//! either. Documents of that shape could be read until the tree was deleted, and never again after that.

use super::*;

#[test]
fn a_shape_the_tree_knows_is_in_the_log() {
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
