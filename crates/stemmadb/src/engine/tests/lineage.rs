//! Replaced revisions: readable until compaction removes them.

use super::{assert_sound, book, on_disk_and_in_memory, options};
use crate::revision::Revision;
use crate::{Database, Edit};

/// Replaces the document `count` times; returns its revisions, oldest first.
fn replace(db: &Database, id: &str, count: usize) -> Vec<Revision> {
    let mut revisions = vec![db.insert(id, &book(0)).unwrap()];
    for number in 1..=count {
        revisions.push(db.replace(id, &revisions[number - 1], &book(number)).unwrap());
    }
    revisions
}

/// Asserts that exactly these revisions of `revisions` can be read, and that they have their bodies.
fn assert_stored(db: &Database, id: &str, revisions: &[Revision], from: usize) {
    let snapshot = db.snapshot().unwrap();
    for (number, revision) in revisions.iter().enumerate() {
        let found = snapshot.get_revision(id, revision).unwrap();
        let body = found.map(|document| (*document.revision(), document.value().unwrap()));
        assert_eq!(body, (number >= from).then(|| (*revision, book(number))), "revision {number}");
    }
    let leaf = revisions.len() - 1;
    let ancestors: Vec<_> = revisions[from.min(leaf)..leaf].iter().rev().map(|revision| (*revision, false)).collect();
    assert_eq!(snapshot.stored_ancestors(id, &revisions[leaf]).unwrap(), ancestors);
}

#[test]
fn replaced_revisions_are_readable_until_an_explicit_compaction() {
    on_disk_and_in_memory(|open| {
        let db = open();
        let revisions = replace(&db, "a", 4);
        assert_stored(&db, "a", &revisions, 0);
        db.maintenance().checkpoint().unwrap();
        assert_stored(&db, "a", &revisions, 0);
        drop(db);

        let db = open();
        assert_stored(&db, "a", &revisions, 0);
        db.maintenance().compact().unwrap();
        assert_stored(&db, "a", &revisions, 4);
        drop(db);

        let db = open();
        assert_stored(&db, "a", &revisions, 4);
        assert_sound(&db);
    });
}

#[test]
fn edits_of_one_transaction_and_deletions_are_readable() {
    on_disk_and_in_memory(|open| {
        let db = open();
        let (first, second, third) = db
            .write(|tx| {
                let first = tx.insert("a", &book(1))?;
                let second = tx.replace("a", &first, &book(2))?;
                tx.insert("b", &book(9))?;
                Ok((first, second, tx.replace("a", &second, &book(3))?))
            })
            .unwrap();
        let deletion = db.delete("a", &third).unwrap();
        let recreated = db.insert("a", &book(4)).unwrap();
        let snapshot = db.snapshot().unwrap();
        for (revision, number) in [(first, 1), (second, 2), (third, 3), (recreated, 4)] {
            let found = snapshot.get_revision("a", &revision).unwrap().unwrap();
            assert_eq!(found.value().unwrap(), book(number));
        }
        assert!(snapshot.get_revision("a", &deletion).unwrap().unwrap().is_deleted());
        let ancestors = snapshot.stored_ancestors("a", &recreated).unwrap();
        assert_eq!(ancestors, [(deletion, true), (third, false), (second, false), (first, false)]);
        assert_eq!(snapshot.get_revision("b", &first).unwrap(), None);
    });
}

#[test]
fn replicated_branches_are_readable() {
    let db = Database::in_memory_with(options()).unwrap();
    let revisions = replace(&db, "a", 1);
    let foreign = |path: &[&str], number: usize| Edit::Foreign {
        id: "a".parse().unwrap(),
        revisions: path.iter().map(|revision| revision.parse().unwrap()).collect(),
        deleted: false,
        body: book(number),
        files: Vec::new(),
    };
    let root = revisions[0].to_string();
    db.edit(foreign(&["2-f", &root], 10)).unwrap();
    // A replica sends a revision without those between.
    db.edit(foreign(&["4-f", "3-f", "2-f", &root], 11)).unwrap();
    let snapshot = db.snapshot().unwrap();
    let read = |revision: &str| {
        snapshot.get_revision("a", &revision.parse().unwrap()).unwrap().map(|document| document.value().unwrap())
    };
    assert_eq!(read("2-f"), Some(book(10)));
    assert_eq!(read("3-f"), None);
    assert_eq!(read(&root), Some(book(0)));
    assert_eq!(read("7-unknown"), None);
    assert_eq!(snapshot.get_leaf("a", &"2-f".parse().unwrap()).unwrap(), None);
    assert_sound(&db);
}

/// Background compaction moves the newest record; it still leads to those that other segments hold.
#[test]
fn a_relocated_record_leads_to_older_segments() {
    let db = Database::in_memory_with(options().background(false)).unwrap();
    let first = db.insert("a", &book(0)).unwrap();
    db.insert("kept in the first segment", &book(0)).unwrap();
    db.store().parts.log.roll().unwrap();
    let second = db.replace("a", &first, &book(1)).unwrap();
    let mut garbage = db.insert("garbage", &book(0)).unwrap();
    for number in 0..200 {
        garbage = db.replace("garbage", &garbage, &book(number)).unwrap();
    }
    db.store().parts.log.roll().unwrap();
    db.insert("in the newest segment", &book(0)).unwrap();
    db.maintenance().checkpoint().unwrap();
    assert!(db.store().compact_if_worthwhile().unwrap());
    let segments: Vec<u32> = db.store().parts.log.segments().iter().map(|segment| segment.number).collect();
    assert!(segments.contains(&1) && !segments.contains(&2), "{segments:?}");
    assert_stored(&db, "a", &[first, second], 0);
    assert_sound(&db);
}

/// An old revision never shows an attachment that can't be read.
#[test]
fn a_replaced_revision_ends_with_its_attachment() {
    let db = Database::in_memory_with(options().background(false)).unwrap();
    let first = db.insert("a", &book(0)).unwrap();
    let content = db.files().store(&b"content"[..]).unwrap();
    let second = db.write(|tx| tx.attach("a", &first, "file", "text/plain", &content)).unwrap();
    drop(content);
    let third = db.files().detach("a", &second, "file").unwrap();
    let snapshot = db.snapshot().unwrap();
    let old = snapshot.get_revision("a", &second).unwrap().unwrap();
    assert!(snapshot.open_attachment(&old, "file").unwrap().is_some());
    drop(snapshot);
    db.files().sweep().unwrap();
    db.maintenance().checkpoint().unwrap();
    assert_eq!(db.get_revision("a", &second).unwrap(), None);
    assert_eq!(db.snapshot().unwrap().stored_ancestors("a", &third).unwrap(), [(first, false)]);
}
