//! Two branches of a document were written by one transaction, with both records in one frame. Compaction moved both,
//! but recorded the second move in a state in which the first leaf was still at its old position: once the segment was
//! retired, the document was unreadable.

use super::*;

#[test]
fn both_leaves_of_a_moved_frame_are_readable() {
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
