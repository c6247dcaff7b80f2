//! A revision that was known came again, with ancestors that were not, and with another body under the same name, or as a deletion: as no
//! honest peer has it. The record had the new body, the index and whoever had read it the old one.

use super::*;
use stemmadb::field;

/// What is found of `a`, by its revision and by either body.
fn assert_as_first_told(db: &Database, when: &str) {
    let found = db.get("a").unwrap().map(|document| (document.revision().to_string(), document.value().unwrap()));
    let (revision, body) = found.unwrap_or_else(|| panic!("{when}: it is gone"));
    assert!(revision.starts_with("3-"), "{when}: {revision}");
    assert_eq!(body, value(r#"{"n":1}"#), "{when}");
    let counts = [1, 2].map(|n| db.find(field("n").eq(n)).count().unwrap());
    assert_eq!(counts, [1, 0], "{when}");
    assert_sound(db);
}

#[test]
fn it_stays_what_it_was_first_told_to_be() {
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
            assert_as_first_told(&db, "as it was written");
            roll(&db);
            assert_as_first_told(&db, "merged");
            db.maintenance().compact().unwrap();
            assert_as_first_told(&db, "compacted");
            let db = rebuilt(db, &path, options());
            assert_as_first_told(&db, "rebuilt");
        }
    }
}
