//! A document was written, replaced, and deleted. The record in the middle was damaged; what was salvaged of the others had the first
//! content beside a deletion that seemed to have nothing to do with it, and the document was back. Found by 2,000 damaged logs; now the
//! deletion is joined to what came before the lost revision, and where that is not clear it is told.

use stemmadb::{SalvageReport, Salvaged};

use super::*;

/// Flips a bit within every place of the log where `text` stands.
fn damage(path: &std::path::Path, text: &str) {
    let mut count = 0;
    for entry in path.join("log").read_dir().unwrap() {
        let file = entry.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
        for &at in &places {
            bytes[at] ^= 1;
        }
        count += places.len();
        std::fs::write(&file, bytes).unwrap();
    }
    assert_eq!(count, 1, "`{text}` is in the log");
}

/// Puts what is left of a database into a new one.
fn salvaged(path: &std::path::Path) -> (Database, SalvageReport) {
    let db = Database::in_memory();
    let report = Database::salvage(path, |found| {
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

fn leaves(db: &Database, id: &str) -> usize {
    db.revisions(id).unwrap().len()
}

#[test]
fn a_deletion_whose_parent_is_lost_stays_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("library.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let first = db.insert("deleted", &value(r#"{"text":"the first content"}"#)).unwrap();
    let second = db.replace("deleted", &first, &value(r#"{"text":"the middle content"}"#)).unwrap();
    db.delete("deleted", &second).unwrap();
    let first = db.insert("kept", &value(r#"{"text":"first"}"#)).unwrap();
    let second = db.replace("kept", &first, &value(r#"{"text":"lost as well"}"#)).unwrap();
    db.replace("kept", &second, &value(r#"{"text":"third"}"#)).unwrap();
    // Two that can have been the parent of the lost one, and one that is older by two generations.
    let edits = [
        foreign("unclear", &["1-aa"], r#"{"text":"one"}"#),
        foreign("unclear", &["1-bb"], r#"{"text":"another"}"#),
        foreign("unclear", &["3-cc", "2-cc"], r#"{"text":"of one of them"}"#),
        foreign("far", &["1-aa"], r#"{"text":"long ago"}"#),
        foreign("far", &["4-cc", "3-cc"], r#"{"text":"much later"}"#),
        // Brought without a parent: it says of none that it is lost.
        foreign("conflict", &["2-aa"], r#"{"text":"one"}"#),
        foreign("conflict", &["3-bb"], r#"{"text":"another"}"#),
    ];
    for edit in edits {
        db.bulk(vec![edit]).unwrap().remove(0).unwrap();
    }
    db.close().unwrap();
    damage(&path, "the middle content");
    damage(&path, "lost as well");

    let (db, report) = salvaged(&path);
    assert!(db.get("deleted").unwrap().is_none(), "it is back");
    assert_eq!(db.get("kept").unwrap().unwrap().value().unwrap(), value(r#"{"text":"third"}"#));
    let counts = ["deleted", "kept", "unclear", "far", "conflict"].map(|id| leaves(&db, id));
    assert_eq!(counts, [1, 1, 3, 2, 2]);
    assert_eq!((report.joined_count, report.parted_count), (2, 2), "{report:#?}");
    assert_sound(&db);
}

/// The same of a document of which compaction gave up the records that told of its ancestors: what it stated instead is heeded.
#[test]
fn what_compaction_stated_is_salvaged() {
    for moves_a_stated_leaf in [false, true] {
        salvage_what_is_stated(moves_a_stated_leaf);
    }
}

fn salvage_what_is_stated(moves_a_stated_leaf: bool) {
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
    if moves_a_stated_leaf {
        // The segment of the statement stays, that of the leaf goes.
        db.insert("keeps too", &value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(60 << 10)))).unwrap();
        db.delete("keeps", &kept).unwrap();
        roll(&db);
        assert!(db.maintenance().compact().unwrap() > 0);
    }
    let before = db.revisions("a").unwrap();
    assert_eq!(before.iter().map(|branch| branch.revisions.len()).collect::<Vec<_>>(), [3, 2]);
    db.close().unwrap();
    let (db, _) = salvaged(&path);
    assert_eq!(db.revisions("a").unwrap(), before);
}
