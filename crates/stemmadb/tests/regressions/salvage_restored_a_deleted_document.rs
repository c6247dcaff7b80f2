//! A document was written, replaced and deleted, and the middle record was damaged. Salvage recovered the first content
//! and a deletion that seemed unrelated to it, so the document reappeared. Found by 2,000 damaged logs. The deletion is
//! now attached to the last revision before the lost one; where that is ambiguous, it is reported.

use stemmadb::salvage::{SalvageReport, Salvaged};

use super::*;

/// Flips a bit in every occurrence of `text` in the log.
fn damage(path: &std::path::Path, text: &str) {
    let mut count = 0;
    for entry in path.join("log").read_dir().unwrap() {
        let file = entry.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        let offsets: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
        for &at in &offsets {
            bytes[at] ^= 1;
        }
        count += offsets.len();
        std::fs::write(&file, bytes).unwrap();
    }
    assert_eq!(count, 1, "`{text}` is in the log");
}

/// Salvages a database into a new one.
fn salvage_all(path: &std::path::Path) -> (Database, SalvageReport) {
    let db = Database::in_memory();
    let report = stemmadb::salvage::salvage_database(path, |found| {
        if let Salvaged::Revision(found) = found {
            let edit = Edit::Foreign {
                id: found.id,
                revisions: found.revisions,
                deleted: found.deleted,
                body: found.body,
                files: Vec::new(),
            };
            db.bulk(vec![edit])?.remove(0)?;
        }
        Ok(())
    });
    (db, report.unwrap())
}

fn leaf_count(db: &Database, id: &str) -> usize {
    db.revisions(id).unwrap().len()
}

#[test]
fn deletion_with_a_lost_parent_stays_a_deletion() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let first = db.insert("deleted", &value(r#"{"text":"the first content"}"#)).unwrap();
    let second = db.replace("deleted", &first, &value(r#"{"text":"the middle content"}"#)).unwrap();
    db.delete("deleted", &second).unwrap();
    let first = db.insert("kept", &value(r#"{"text":"first"}"#)).unwrap();
    let second = db.replace("kept", &first, &value(r#"{"text":"lost as well"}"#)).unwrap();
    db.replace("kept", &second, &value(r#"{"text":"third"}"#)).unwrap();
    // Two possible parents of the lost revision, and a revision older by two generations.
    let edits = [
        foreign("unclear", &["1-aa"], r#"{"text":"one"}"#),
        foreign("unclear", &["1-bb"], r#"{"text":"another"}"#),
        foreign("unclear", &["3-cc", "2-cc"], r#"{"text":"of one of them"}"#),
        foreign("far", &["1-aa"], r#"{"text":"long ago"}"#),
        foreign("far", &["4-cc", "3-cc"], r#"{"text":"much later"}"#),
        // Replicated without a parent, so no parent is missing.
        foreign("conflict", &["2-aa"], r#"{"text":"one"}"#),
        foreign("conflict", &["3-bb"], r#"{"text":"another"}"#),
    ];
    for edit in edits {
        db.bulk(vec![edit]).unwrap().remove(0).unwrap();
    }
    db.close().unwrap();
    damage(&path, "the middle content");
    damage(&path, "lost as well");

    let (db, report) = salvage_all(&path);
    assert!(db.get("deleted").unwrap().is_none(), "the deleted document is visible");
    assert_eq!(db.get("kept").unwrap().unwrap().value().unwrap(), value(r#"{"text":"third"}"#));
    let counts = ["deleted", "kept", "unclear", "far", "conflict"].map(|id| leaf_count(&db, id));
    assert_eq!(counts, [1, 1, 3, 2, 2]);
    assert_eq!((report.reattached_count, report.ambiguous_count), (2, 2), "{report:#?}");
    assert_sound(&db);
}

/// The same for a document for which compaction dropped the records of its ancestors: salvage must use the snapshot
/// record written instead.
#[test]
fn snapshot_records_are_salvaged() {
    for moves_leaf in [false, true] {
        salvage_with_snapshot_record(moves_leaf);
    }
}

fn salvage_with_snapshot_record(moves_leaf: bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, options().revs_limit(3)).unwrap();
    for edit in [["2-b", "1-a"], ["3-c", "2-b"], ["4-d", "3-c"], ["3-x", "2-b"]] {
        db.edit(foreign("a", &edit, r#"{"n":1}"#)).unwrap();
    }
    roll(&db);
    let kept = db.insert("keeps", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
    db.edit(foreign("a", &["5-e", "4-d"], r#"{"n":5}"#)).unwrap();
    roll(&db);
    assert!(db.maintenance().compact().unwrap() > 0);
    if moves_leaf {
        // The segment of the snapshot record stays, that of the leaf is retired.
        db.insert("keeps too", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
        db.delete("keeps", &kept).unwrap();
        roll(&db);
        assert!(db.maintenance().compact().unwrap() > 0);
    }
    let before = db.revisions("a").unwrap();
    assert_eq!(before.iter().map(|branch| branch.revisions.len()).collect::<Vec<_>>(), [3, 2]);
    db.close().unwrap();
    let (db, _) = salvage_all(&path);
    assert_eq!(db.revisions("a").unwrap(), before);
}
