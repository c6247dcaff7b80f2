//! The descending feed read a bounded number of tree rows and skipped those superseded by a memtable. When a whole
//! batch was superseded, it took this for the end, and older changes were missing.

use super::*;

#[test]
fn descending_feed_continues_past_superseded_rows() {
    let db = Database::in_memory_with(options()).unwrap();
    for number in 0..2000 {
        db.insert(&format!("{number:04}"), &value("{}")).unwrap();
    }
    db.maintenance().checkpoint().unwrap();
    for number in 500..1800 {
        db.upsert(&format!("{number:04}"), &value(r#"{"n":1}"#)).unwrap();
    }
    let changes = db.changes(Sequence::ZERO).unwrap().descending(true).run();
    let sequences: Vec<_> = changes.map(|change| change.unwrap().sequence).collect();
    assert_eq!(sequences.len(), 2000);
    assert!(sequences.is_sorted_by(|newer, older| newer > older));
}
