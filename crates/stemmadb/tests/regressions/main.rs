//! Regression tests: one file per fixed bug, with a description of the fault in its header.

mod check_failed_during_compaction;
mod check_failed_during_writes;
mod compaction_lost_ancestors;
mod compaction_lost_the_newest_sequence;
mod compaction_misplaced_leaves_of_one_frame;
mod compaction_pointed_to_unwritten_records;
mod compaction_restored_old_settings;
mod descending_feed_was_truncated;
mod field_presence_replayed_out_of_order;
mod local_ids_were_unchecked;
mod lost_segment_lost_field_names;
mod rebuild_pruned_by_the_current_limit;
mod rebuild_restored_a_pruned_revision_as_leaf;
mod rebuild_restored_pruned_ancestors;
mod reinserted_revision_changed_its_body;
mod relocated_local_document_took_a_sequence;
mod replay_kept_stale_terms;
mod replay_missed_its_own_frame;
mod salvage_restored_a_deleted_document;
mod shape_was_missing_from_the_log;
mod snapshot_missed_the_first_write;
mod sweep_removed_content_of_a_losing_leaf;

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

/// Rebuilds the database from its log and checks that it knows the same revisions of `a`, with a body for each leaf.
fn rebuild_and_check(db: Database, path: &std::path::Path, options: Options) -> Database {
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

/// Writes until all earlier records are in sealed segments.
fn roll(db: &Database) {
    for _ in 0..3 {
        db.upsert("filler", &value(&format!("{{\"text\":\"{}\"}}", "x".repeat(60 << 10)))).unwrap();
        db.maintenance().checkpoint().unwrap();
    }
}
