//! A known revision arrived again with unknown ancestors and with a different body or as a deletion, which no correct
//! peer sends. The new record had the new body, while the index and earlier readers had the old one.

use super::*;
use stemmadb::field;

/// Checks the content of `a`, by its revision and by queries for both bodies.
fn assert_unchanged(db: &Database, when: &str) {
    let found = db.get("a").unwrap().map(|document| (document.revision().to_string(), document.value().unwrap()));
    let (revision, body) = found.unwrap_or_else(|| panic!("{when}: it is gone"));
    assert!(revision.starts_with("3-"), "{when}: {revision}");
    assert_eq!(body, value(r#"{"n":1}"#), "{when}");
    let counts = [1, 2].map(|n| db.find(field("n").eq(n)).count().unwrap());
    assert_eq!(counts, [1, 0], "{when}");
    assert_sound(db);
}

#[test]
fn known_revision_keeps_its_first_body() {
    for is_deletion in [false, true] {
        for is_one_transaction in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("test.stemma");
            let db = Database::open_with(&path, options()).unwrap();
            let first = foreign("a", &["3-c"], r#"{"n":1}"#);
            let mut again = foreign("a", &["3-c", "2-b"], r#"{"n":2}"#);
            if let Edit::Foreign { deleted, .. } = &mut again {
                *deleted = is_deletion;
            }
            if is_one_transaction {
                db.bulk(vec![first, again]).unwrap();
            } else {
                db.edit(first).unwrap();
                db.edit(again).unwrap();
            }
            assert_unchanged(&db, "as it was written");
            roll(&db);
            assert_unchanged(&db, "merged");
            db.maintenance().compact().unwrap();
            assert_unchanged(&db, "compacted");
            let db = rebuild_and_check(db, &path, options());
            assert_unchanged(&db, "rebuild_and_check");
        }
    }
}
