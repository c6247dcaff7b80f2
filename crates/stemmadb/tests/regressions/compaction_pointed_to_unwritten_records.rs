//! Compaction points documents to their new records as soon as these are in the log's buffer. When writing the buffer
//! failed, the log discarded it, and intact documents were reported as corrupt until the database was reopened.

use stemmadb::testing::{Call, Failure, TestStorage, with_small_limits};

use super::*;

#[test]
fn documents_stay_readable_after_a_failed_compaction() {
    let storage = TestStorage::new(1);
    let db = storage.open(with_small_limits(options().cache_bytes(0), 1 << 20, 4 << 10, 6000)).unwrap();
    for round in 0..2 {
        for number in (0..100).skip(round * 50) {
            db.upsert(&format!("{number}"), &value(&format!(r#"{{"number":{number},"round":{round}}}"#))).unwrap();
        }
    }
    db.maintenance().checkpoint().unwrap();
    storage.disk().fail(Call::Write, 3, Failure::Broken, true);
    db.maintenance().compact().unwrap_err();
    for number in 0..100 {
        let found = db.get(&format!("{number}")).unwrap().unwrap();
        assert_eq!(found.get("number").unwrap(), Some(number.into()));
    }
    db.insert("more", &value("{}")).unwrap_err();
    drop(db);
    storage.heal();
    assert_sound(&storage.open(options()).unwrap());
}
