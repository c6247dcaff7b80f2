//! Two branches of one document were written by one transaction, so that their records lay in one frame. Compaction moved both, but
//! noted the second in a state that still had the first at its old place: once the segment was gone, the document was
//! unreadable.

use super::*;

#[test]
fn both_leaves_of_a_frame_are_found_where_they_were_moved() {
    let db = Database::in_memory_with(options()).unwrap();
    db.bulk(vec![foreign("a", &["2-b"], r#"{"n":2}"#), foreign("a", &["1-a"], r#"{"n":1}"#)]).unwrap();
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    for (revision, body) in [("2-b", r#"{"n":2}"#), ("1-a", r#"{"n":1}"#)] {
        let found = db.get_revision("a", &revision.parse().unwrap()).unwrap().unwrap();
        assert_eq!(found.value().unwrap(), value(body));
    }
    assert_sound(&db);
}
