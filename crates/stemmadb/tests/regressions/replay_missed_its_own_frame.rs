//! Replay took one snapshot for each frame of the log. For the first frame after opening it skipped the memtable, which
//! was still empty, and so it missed what the same frame had said before: of several revisions of a document in one
//! transaction, only the last one was added to the document's tree, beside the leaf that it replaces.

use super::*;
use stemmadb::testing::TestStorage;

#[test]
fn revisions_of_one_transaction_are_replayed_one_after_the_other() {
    let storage = TestStorage::new(1);
    let db = storage.open(options()).unwrap();
    db.insert("a", &value(r#"{"n":1}"#)).unwrap();
    db.maintenance().checkpoint().unwrap();
    db.write(|transaction| {
        transaction.upsert("a", &value(r#"{"n":2}"#))?;
        let revision = transaction.upsert("a", &value(r#"{"n":3}"#))?;
        transaction.delete("a", &revision)?;
        transaction.upsert("b", &value(r#"{"n":1}"#))?;
        transaction.upsert("b", &value(r#"{"n":2}"#))
    })
    .unwrap();
    db.flush().unwrap();
    let expected = [db.revisions("a").unwrap(), db.revisions("b").unwrap()];
    let db = storage.crash_image(1).open(options()).unwrap();
    assert_eq!([db.revisions("a").unwrap(), db.revisions("b").unwrap()], expected);
    assert!(db.get("a").unwrap().is_none(), "a deleted document is back");
    assert_sound(&db);
}
