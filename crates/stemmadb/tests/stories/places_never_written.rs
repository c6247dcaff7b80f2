//! Compaction points documents to their new places as soon as these are in the log's buffer. When writing the buffer failed, the log threw it
//! away, and documents that had been safe for long could not be read any more, "corrupt", until the database was reopened.

use stemmadb::testing::{Call, Failure, Place, small};

use super::*;

#[test]
fn what_compaction_could_not_write_can_still_be_read() {
    let place = Place::new(1);
    let db = place.open(small(options().cache_bytes(0), 1 << 20, 4 << 10, 6000)).unwrap();
    for round in 0..2 {
        for number in (0..100).skip(round * 50) {
            db.upsert(&format!("{number}"), &value(&format!(r#"{{"number":{number},"round":{round}}}"#))).unwrap();
        }
    }
    db.maintenance().checkpoint().unwrap();
    place.disk().fail(Call::Write, 3, Failure::Broken, true);
    db.maintenance().compact().unwrap_err();
    for number in 0..100 {
        let found = db.get(&format!("{number}")).unwrap().unwrap();
        assert_eq!(found.get("number").unwrap(), Some(number.into()));
    }
    db.insert("more", &value("{}")).unwrap_err();
    drop(db);
    place.heal();
    assert_sound(&place.open(options()).unwrap());
}
