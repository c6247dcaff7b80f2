//! Tests of the store's guarantees, on disk and in memory.

mod lineage;
mod past;
mod power_cut;
mod rebuild;

use crate::engine::compact::RELOCATION_BYTES;
use crate::index::DocumentNumber;
use crate::layout::record::{Record, records};
use crate::log::Frame;
use crate::revision::{Revision, Sequence};
use crate::value::Value;
use crate::{Database, Durability, Edit, ErrorKind, Options, Result};

fn value(json: &str) -> Value {
    Value::parse(json.as_bytes()).unwrap()
}

fn book(number: usize) -> Value {
    value(&format!(
        r#"{{"title":"Book {number}","year":{},"tags":["t{}","t{}"],"shelf":{{"room":{},"place":"p{}"}}}}"#,
        1900 + number % 120,
        number % 7,
        number % 11,
        number % 3,
        number % 50
    ))
}

fn options() -> Options {
    Options::new().segment_bytes(64 << 10).durability(Durability::None)
}

/// Ends every test: the database must be consistent.
fn assert_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

fn on_disk_and_in_memory(test: impl Fn(&dyn Fn() -> Database)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    test(&|| Database::open_with(&path, options()).unwrap());
    let db = Database::in_memory_with(options()).unwrap();
    test(&|| db.clone());
}

#[test]
fn a_document_is_inserted_replaced_deleted_and_recreated() {
    on_disk_and_in_memory(|open| {
        let db = open();
        let first = db.insert("a", &book(1)).unwrap();
        assert_eq!(first.generation(), 1);
        assert_eq!(db.insert("a", &book(2)).unwrap_err().kind(), ErrorKind::Conflict);
        let second = db.replace("a", &first, &book(2)).unwrap();
        assert_eq!(db.replace("a", &first, &book(3)).unwrap_err().kind(), ErrorKind::Conflict);
        let found = db.get("a").unwrap().unwrap();
        assert_eq!((found.revision(), found.value().unwrap()), (&second, book(2)));
        let deletion = db.delete("a", &second).unwrap();
        assert_eq!(db.get("a").unwrap(), None);
        assert!(db.get_revision("a", &deletion).unwrap().unwrap().is_deleted());
        assert_eq!(db.delete("a", &deletion).unwrap_err().kind(), ErrorKind::NotFound);
        let again = db.insert("a", &book(1)).unwrap();
        assert_eq!(again.generation(), 4, "a recreated document descends from its deletion");
        assert_eq!(db.revisions("a").unwrap()[0].revisions, vec![again, deletion, second, first]);
        assert_sound(&db);
    });
}

#[test]
fn reopening_restores_everything_with_and_without_a_tree() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let mut revisions = fill(&db, 500);
    churn(&db, &mut revisions);
    let expected = contents(&db);
    assert_sound(&db);
    drop(db);
    for round in 0..3 {
        if round == 1 {
            std::fs::remove_dir_all(path.join("tree")).unwrap();
        }
        let db = Database::open_with(&path, options()).unwrap();
        assert_eq!(contents(&db), expected, "round {round}");
        assert_sound(&db);
    }
}

#[test]
fn compaction_frees_space_and_preserves_everything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let db = Database::open_with(&path, options().background(false)).unwrap();
    let mut revisions = fill(&db, 300);
    db.local_documents().put("_local/a", None, &book(1)).unwrap();
    for _ in 0..8 {
        churn(&db, &mut revisions);
    }
    let expected = contents(&db);
    let held = db.snapshot().unwrap();
    let before = db.info().unwrap();
    let given_back = db.maintenance().compact().unwrap();
    let after = db.info().unwrap();
    assert!(after.log_bytes < before.log_bytes / 2, "{before:?} {after:?}");
    assert_eq!(given_back, 0, "the snapshot keeps the files");
    assert_sound(&db);
    assert_eq!(contents(&db), expected);
    for id in revisions.keys() {
        assert!(held.get(id).unwrap().is_some(), "a snapshot from before reads on");
    }
    drop((db, held));
    std::fs::remove_dir_all(path.join("tree")).unwrap();
    let db = Database::open_with(&path, options()).unwrap();
    assert_eq!(contents(&db), expected);
    assert_sound(&db);
}

/// A record that prunes ancestors, or a snapshot record, is in another frame of the segment than the leaf. An earlier
/// version wrote a snapshot record for both, so half of what one compaction wrote was dead.
#[test]
fn compaction_writes_one_snapshot_record_for_each_document_of_a_segment() {
    let db = Database::in_memory_with(options().revs_limit(1).background(false)).unwrap();
    let mut revisions = fill(&db, 20);
    for round in 1..=2 {
        for (id, revision) in &mut revisions {
            *revision = db.replace(id, revision, &book(round)).unwrap();
        }
        db.store().parts.log.roll().unwrap();
        db.insert(&format!("in the next segment {round}"), &book(0)).unwrap();
        assert!(db.maintenance().compact().unwrap() > 0);
        assert_eq!(snapshot_record_count(&db), revisions.len(), "round {round}");
    }
    assert_sound(&db);
}

/// The live records of one frame, with the snapshot records they need, may exceed the maximum size of a frame.
#[test]
fn compaction_splits_a_large_frame() {
    let db = Database::in_memory_with(options().background(false)).unwrap();
    let body = value(&format!(r#"{{"text":"{}"}}"#, "x".repeat(64 << 10)));
    let insert = |n: usize| Edit::Insert { id: format!("{n:03}").parse().unwrap(), body: body.clone() };
    let revisions = db.bulk((0..400).map(insert).collect()).unwrap();
    for (n, revision) in revisions.into_iter().enumerate().step_by(3) {
        db.delete(&format!("{n:03}"), &revision.unwrap()).unwrap();
    }
    db.store().parts.log.roll().unwrap();
    db.insert("in the next segment", &book(0)).unwrap();
    assert!(db.maintenance().compact().unwrap() > 0);
    let (most, total) = largest_frame(&db);
    assert!(most <= RELOCATION_BYTES + (70 << 10) && total > 2 * RELOCATION_BYTES, "{most} of {total}");
    assert_sound(&db);
}

/// The sizes in bytes of the largest frame and of all frames.
fn largest_frame(db: &Database) -> (usize, usize) {
    let log = &db.store().parts.log;
    let (mut most, mut total) = (0, 0);
    for segment in log.segments() {
        let look = &mut |frame: Frame<'_>| {
            most = most.max(frame.payload.len());
            total += frame.payload.len();
            Ok(())
        };
        log.frames(segment.number, look).unwrap();
    }
    (most, total)
}

/// The number of snapshot records in the log.
fn snapshot_record_count(db: &Database) -> usize {
    let log = &db.store().parts.log;
    let mut count = 0;
    for segment in log.segments() {
        let look = &mut |frame: Frame<'_>| {
            count += records(&frame).filter(|record| matches!(record, Ok((_, Record::Snapshot { .. })))).count();
            Ok(())
        };
        log.frames(segment.number, look).unwrap();
    }
    count
}

#[test]
fn a_transaction_is_atomic_and_reads_its_own_writes() {
    on_disk_and_in_memory(|open| {
        let db = open();
        db.insert("a", &book(1)).unwrap();
        let failed: Result<()> = db.write(|tx| {
            tx.insert("b", &book(2))?;
            let a = tx.get("a")?.unwrap();
            tx.delete("a", a.revision())?;
            assert_eq!(tx.get("a")?, None);
            assert!(tx.get("b")?.is_some());
            tx.insert("b", &book(3)).map(|_| ())
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Conflict);
        assert!(db.get("a").unwrap().is_some() && db.get("b").unwrap().is_none());
        db.write(|tx| {
            let revision = tx.insert("c", &book(1))?;
            let revision = tx.replace("c", &revision, &book(2))?;
            tx.delete("c", &revision)?;
            tx.insert("c", &book(5))
        })
        .unwrap();
        assert_eq!(db.get("c").unwrap().unwrap().value().unwrap(), book(5));
        assert_sound(&db);
    });
}

#[test]
fn branches_have_one_winner_and_deleting_it_promotes_the_other() {
    on_disk_and_in_memory(|open| {
        let db = open();
        let revision = |text: &str| text.parse::<Revision>().unwrap();
        let id = crate::DocumentId::new("a").unwrap();
        let foreign = |path: &[&str], body: Value| Edit::Foreign {
            id: id.clone(),
            revisions: path.iter().map(|text| revision(text)).collect(),
            deleted: false,
            body,
            files: Vec::new(),
        };
        db.edit(foreign(&["1-a"], book(1))).unwrap();
        db.edit(foreign(&["2-b", "1-a"], book(2))).unwrap();
        db.edit(foreign(&["2-c", "1-a"], book(3))).unwrap();
        db.edit(foreign(&["2-b", "1-a"], book(2))).unwrap();
        assert_eq!(db.sequence(), Sequence::new(3), "what is known already is no event");
        assert_eq!(db.get("a").unwrap().unwrap().revision(), &revision("2-c"));
        assert_sound(&db);
        db.maintenance().checkpoint().unwrap();
        db.delete("a", &revision("2-c")).unwrap();
        assert_eq!(db.get("a").unwrap().unwrap().value().unwrap(), book(2));
        assert_sound(&db);
    });
}

#[test]
fn a_snapshot_never_changes() {
    on_disk_and_in_memory(|open| {
        let db = open();
        let mut revisions = fill(&db, 100);
        let snapshot = db.snapshot().unwrap();
        let before = changes(&snapshot);
        churn(&db, &mut revisions);
        db.maintenance().checkpoint().unwrap();
        churn(&db, &mut revisions);
        assert_eq!(changes(&snapshot), before);
        assert_sound(&db);
    });
}

fn changes(snapshot: &crate::Snapshot) -> Vec<(Sequence, String)> {
    let run = crate::changes::Changes::new(snapshot.clone(), Sequence::ZERO).run();
    run.map(|change| change.map(|change| (change.sequence, change.id.to_string()))).collect::<Result<_>>().unwrap()
}

#[test]
fn count_up_to_matches_the_changes_listed() {
    let db = Database::in_memory();
    for number in 0..700 {
        db.upsert(&format!("{}", number % 600), &book(number)).unwrap();
        if number == 300 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    for since in [0, 1, 99, 100, 650, 700, 900] {
        let changes = || db.changes(crate::Sequence::new(since)).unwrap();
        let listed_count = changes().run().count() as u64;
        assert_eq!(changes().count_up_to(u64::MAX).unwrap(), listed_count, "since {since}");
        assert_eq!(changes().count_up_to(10).unwrap(), listed_count.min(10));
    }
}

#[test]
fn a_subscriber_receives_every_document_in_order() {
    let db = Database::in_memory();
    let mut subscription = db.subscribe(Sequence::ZERO);
    let writer = db.clone();
    let thread = std::thread::spawn(move || {
        let mut revisions = fill(&writer, 200);
        churn(&writer, &mut revisions);
        writer.insert("end", &book(1)).unwrap();
    });
    let mut last = Sequence::ZERO;
    while let Some(change) = subscription.next_change().unwrap() {
        assert!(change.sequence > last);
        last = change.sequence;
        if change.id == "end" {
            break;
        }
    }
    thread.join().unwrap();
    assert_eq!(last, db.sequence());
}

#[test]
fn other_directories_are_refused_and_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("novel.txt"), "chapter one").unwrap();
    let error = Database::open(directory.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    let missing = Database::open_with(directory.path().join("none"), Options::new().create(false));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_second_handle_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.stemma");
    let _db = Database::open(&path).unwrap();
    assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::Locked);
}

type Revisions = std::collections::BTreeMap<String, Revision>;

fn fill(db: &Database, count: usize) -> Revisions {
    (0..count)
        .map(|number| (format!("book-{number}"), db.insert(&format!("book-{number}"), &book(number)).unwrap()))
        .collect()
}

/// Replaces two thirds of the documents, deletes some and recreates them.
fn churn(db: &Database, revisions: &mut Revisions) {
    for (number, (id, revision)) in revisions.iter_mut().enumerate() {
        if number % 3 != 0 {
            *revision = db.replace(id, revision, &book(number * 31 + revision.generation() as usize)).unwrap();
        }
        if number % 10 == 1 {
            db.delete(id, revision).unwrap();
            *revision = db.insert(id, &book(number)).unwrap();
        }
    }
}

/// Everything visible to a reader: the documents with their full ancestry, and the feed.
fn contents(db: &Database) -> Vec<String> {
    let changes = db.changes(Sequence::ZERO).unwrap().documents(true).run();
    let lines = changes.map(|change| {
        let change = change?;
        let branches = db.revisions(change.id.as_str())?;
        Ok(format!("{} {} {:?} {branches:?}", change.sequence, change.id, change.document))
    });
    lines.collect::<Result<_>>().unwrap()
}

/// The document cache holds published documents; a transaction's own snapshot must neither read from it nor fill it.
#[test]
fn a_transactions_snapshot_bypasses_the_document_cache() {
    let db = Database::in_memory();
    let first = db.insert("a", &book(1)).unwrap();
    assert!(db.get("a").unwrap().is_some(), "now it is cached");
    let failed: Result<()> = db.write(|tx| {
        tx.replace("a", &first, &book(2))?;
        assert_eq!(tx.snapshot()?.get("a")?.unwrap().value()?, book(2));
        Err(crate::Error::invalid("given up"))
    });
    assert!(failed.is_err());
    assert_eq!(db.get("a").unwrap().unwrap().value().unwrap(), book(1));
}

/// A write with interval durability is flushed within its interval, whatever the database's default durability is.
#[test]
fn a_write_with_interval_durability_is_flushed_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(directory.path().join("test.stemma"), options()).unwrap();
    let before = db.info().unwrap().flush_count;
    let edit = Edit::Insert { id: crate::DocumentId::new("a").unwrap(), body: book(1) };
    db.with_durability(Durability::Interval(std::time::Duration::from_millis(5))).edit(edit).unwrap();
    while db.info().unwrap().flush_count == before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A deleted log file is reported, both with a tree that refers to it and without a tree.
#[test]
fn a_missing_segment_is_reported() {
    for (with_tree, victim) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.stemma");
        let db = Database::open_with(&path, options()).unwrap();
        fill(&db, 2000);
        drop(db);
        let mut files: Vec<_> = path.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension() == Some("log".as_ref()));
        files.sort();
        assert!(files.len() > 2);
        std::fs::remove_file(&files[victim]).unwrap();
        if !with_tree {
            std::fs::remove_dir_all(path.join("tree")).unwrap();
        }
        let error = Database::open_with(&path, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        assert!(error.message().contains("missing"), "{error:?}");
    }
}

/// Memory accounting includes the ancestry of each version of a document. An earlier version did not count it:
/// replacing a counter 24,000 times took 480 MiB of which 9 MiB were counted.
#[test]
fn memory_accounting_includes_ancestry() {
    let db = Database::in_memory_with(options().background(false)).unwrap();
    let mut revision = db.insert("counter", &value("{}")).unwrap();
    for _ in 0..1_000 {
        revision = db.replace("counter", &revision, &value("{}")).unwrap();
    }
    let hashes = (1..=1_000).sum::<u64>();
    assert!(db.info().unwrap().memory_bytes > hashes * 16, "{}", db.info().unwrap().memory_bytes);
}

/// Found by a fuzzer: a log with valid checksums named document 10,000,000, and `check` looked up every lower number.
/// The largest number overflowed when it was incremented.
#[test]
fn check_reports_an_outlying_document_number_without_counting_up_to_it() {
    let db = Database::in_memory_with(options()).unwrap();
    db.insert("a", &book(1)).unwrap();
    db.store().writer.lock().next_number = DocumentNumber(1 << 60);
    db.insert("b", &book(2)).unwrap();
    let report = db.maintenance().check().unwrap();
    assert!(report.damages.iter().any(|damage| damage.what.contains("document number 2 is missing")), "{report:?}");
}
