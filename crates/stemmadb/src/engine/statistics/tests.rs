//! Tests that statistics match the postings they count, which `check` verifies, after operations that could make them
//! differ.

use crate::value::Value;
use crate::{Database, DocumentId, Durability, Edit, Options};

fn options() -> Options {
    Options::new().durability(Durability::None).background(false)
}

fn body(at: u64) -> Value {
    Value::parse(format!(r#"{{"kind":{},"at":{at},"tags":[{},"x"]}}"#, at % 3, at % 1_000).as_bytes()).unwrap()
}

fn fill(db: &Database, from: u64, to: u64) {
    for start in (from..to).step_by(5_000) {
        let edits = (start..to.min(start + 5_000))
            .map(|at| Edit::Upsert { id: DocumentId::new(format!("d{at}")).unwrap(), body: body(at) });
        db.bulk(edits.collect()).unwrap().into_iter().for_each(|result| _ = result.unwrap());
    }
}

fn counts(db: &Database) -> Vec<(String, u64)> {
    db.indexes().paths().unwrap().into_iter().map(|info| (info.path, info.value_count)).collect()
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// Creates documents in two chunks, so that values have two rows. Values appear, disappear from one chunk and from
/// both, and reappear.
fn through_chunks(db: &Database) {
    fill(db, 0, 66_000);
    db.maintenance().checkpoint().unwrap();
    assert_sound(db);
    let expected =
        |at| [("at", at), ("kind", 3), ("tags", 0), ("tags[]", 1_001)].map(|(path, count)| (path.to_owned(), count));
    assert_eq!(counts(db), expected(66_000));
    for number in 65_000..66_000 {
        let id = format!("d{number}");
        let revision = *db.get(&id).unwrap().unwrap().revision();
        db.delete(&id, &revision).unwrap();
    }
    db.maintenance().checkpoint().unwrap();
    assert_sound(db);
    assert_eq!(counts(db), expected(65_000));
    fill(db, 65_000, 70_000);
    db.maintenance().checkpoint().unwrap();
    assert_sound(db);
    assert_eq!(counts(db), expected(70_000));
}

#[test]
fn counts_match_the_postings_in_memory() {
    through_chunks(&Database::in_memory_with(options()).unwrap());
}

#[test]
fn counts_match_the_postings_on_disk_and_after_a_rebuild() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    through_chunks(&db);
    let before = counts(&db);
    drop(db);
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(counts(&db), before);
    drop(db);
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(counts(&db), before);
    assert_sound(&db);
}
