//! Bugs that were found, one file each: the story on top, then the test that keeps it from coming back.

mod ancestry_lost_with_a_segment;
mod check_during_compaction;
mod check_during_writes;
mod content_of_a_losing_leaf_swept;
mod deleted_and_back_by_salvage;
mod feed_cut_short_backwards;
mod forgotten_ancestors_of_a_conflict_back;
mod forgotten_otherwise_by_a_rebuild;
mod forgotten_revision_back_as_a_leaf;
mod local_ids_unchecked;
mod local_relocated_took_a_sequence;
mod names_lost_with_a_segment;
mod places_never_written;
mod policy_back_from_the_past;
mod presence_in_the_wrong_order;
mod revision_told_again_with_another_body;
mod sequence_lost_with_a_segment;
mod shape_never_logged;
mod snapshot_missed_the_first_write;
mod terms_of_a_moment_in_between;
mod two_leaves_in_one_frame;

use stemmadb::{Database, DocumentId, Durability, Edit, Options, Revision, Sequence, Value, testing};

fn options() -> Options {
    Options::new().durability(Durability::None).background(false).segment_bytes(64 << 10)
}

fn value(json: &str) -> Value {
    Value::parse(json.as_bytes()).unwrap()
}

fn foreign(id: &str, path: &[&str], body: &str) -> Edit {
    let revisions = path.iter().map(|text| text.parse::<Revision>().unwrap()).collect();
    Edit::Foreign { id: DocumentId::new(id).unwrap(), revisions, deleted: false, body: value(body), files: Vec::new() }
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// The database after a rebuild, which knows the same of `a`, with a body for each leaf.
fn rebuilt(db: Database, path: &std::path::Path, options: Options) -> Database {
    let before = db.revisions("a").unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(path, options).unwrap();
    assert_eq!(db.revisions("a").unwrap(), before);
    for branch in &before {
        let found = db.get_revision("a", &branch.revisions[0]).unwrap();
        assert!(found.is_some(), "{} has no body", branch.revisions[0]);
    }
    assert_sound(&db);
    db
}

/// Writes until everything before now lies in segments that are not the newest.
fn roll(db: &Database) {
    for _ in 0..3 {
        db.upsert("filler", &value(&format!("{{\"text\":\"{}\"}}", "x".repeat(60 << 10)))).unwrap();
        db.maintenance().checkpoint().unwrap();
    }
}
