//! Read newest first, the feed took a bounded number of the tree's rows and left out those that a memtable supersedes. When a whole
//! batch of them was superseded it took this for the end: older changes were never told of.

use super::*;

#[test]
fn the_feed_newest_first_goes_on_past_what_is_superseded() {
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
