//! The store's promises, one by one, on the real disk and in memory.

mod power_cut;

use crate::engine::compact::MOVED_BYTES;
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

/// Every test ends here: whatever it did, everything agrees.
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
fn a_document_lives_through_insert_replace_delete_and_recreation() {
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
fn everything_is_there_after_reopening_with_and_without_a_tree() {
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
fn compaction_gives_space_back_and_loses_nothing() {
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
    assert!(given_back > 0 && after.log_bytes < before.log_bytes / 2, "{before:?} {after:?}");
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

/// The record that forgets, or the statement, lies in another frame of the segment than the leaf. Each was stated for both: half of what one
/// compaction left was not needed.
#[test]
fn a_compaction_states_each_document_of_a_segment_once() {
    let db = Database::in_memory_with(options().revs_limit(1).background(false)).unwrap();
    let mut revisions = fill(&db, 20);
    for round in 1..=2 {
        for (id, revision) in &mut revisions {
            *revision = db.replace(id, revision, &book(round)).unwrap();
        }
        db.store().parts.log.roll().unwrap();
        db.insert(&format!("in the next segment {round}"), &book(0)).unwrap();
        assert!(db.maintenance().compact().unwrap() > 0);
        assert_eq!(statement_count(&db), revisions.len(), "round {round}");
    }
    assert_sound(&db);
}

/// What is needed of one frame may be more than another may take, with what is stated for it.
#[test]
fn a_compaction_appends_a_part_of_a_large_frame_at_a_time() {
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
    assert!(most <= MOVED_BYTES + (70 << 10) && total > 2 * MOVED_BYTES, "{most} of {total}");
    assert_sound(&db);
}

/// The bytes of the largest frame, and of all.
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

/// How many records of the log state what is known of a document.
fn statement_count(db: &Database) -> usize {
    let log = &db.store().parts.log;
    let mut count = 0;
    for segment in log.segments() {
        let look = &mut |frame: Frame<'_>| {
            count += records(&frame).filter(|record| matches!(record, Ok((_, Record::Statement { .. })))).count();
            Ok(())
        };
        log.frames(segment.number, look).unwrap();
    }
    count
}

#[test]
fn a_transaction_is_all_or_nothing_and_reads_its_own_writes() {
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
fn branches_have_one_winner_and_deleting_it_brings_the_other_back() {
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
fn changes_are_counted_as_they_are_told() {
    let db = Database::in_memory();
    for number in 0..700 {
        db.upsert(&format!("{}", number % 600), &book(number)).unwrap();
        if number == 300 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    for since in [0, 1, 99, 100, 650, 700, 900] {
        let changes = || db.changes(crate::Sequence::new(since)).unwrap();
        let told = changes().run().count() as u64;
        assert_eq!(changes().count_up_to(u64::MAX).unwrap(), told, "since {since}");
        assert_eq!(changes().count_up_to(10).unwrap(), told.min(10));
    }
}

#[test]
fn a_subscriber_hears_every_document_in_order() {
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
fn other_directories_are_refused_and_left_alone() {
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

/// Replaces two thirds of the documents, deletes some and brings them back.
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

/// Everything a reader can see: documents with their whole ancestry, and the feed.
fn contents(db: &Database) -> Vec<String> {
    let changes = db.changes(Sequence::ZERO).unwrap().documents(true).run();
    let lines = changes.map(|change| {
        let change = change?;
        let branches = db.revisions(change.id.as_str())?;
        Ok(format!("{} {} {:?} {branches:?}", change.sequence, change.id, change.document))
    });
    lines.collect::<Result<_>>().unwrap()
}

/// The document cache answers for what is published; a transaction's own snapshot must not be answered from it, nor fill it.
#[test]
fn a_transactions_snapshot_and_the_document_cache_leave_each_other_alone() {
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

/// An interval asked for by one write holds, whatever the database's own durability is.
#[test]
fn a_write_at_an_interval_is_flushed_by_then() {
    let directory = tempfile::tempdir().unwrap();
    let db = Database::open_with(directory.path().join("test.stemma"), options()).unwrap();
    let before = db.info().unwrap().flush_count;
    let edit = Edit::Insert { id: crate::DocumentId::new("a").unwrap(), body: book(1) };
    db.with_durability(Durability::Interval(std::time::Duration::from_millis(5))).edit(edit).unwrap();
    while db.info().unwrap().flush_count == before {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A file of the log that somebody removed is missed, with a tree that needs it and without one.
#[test]
fn a_missing_segment_is_told() {
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

/// Each version of a document has its whole history in memory. It was not counted: a counter that was replaced 24,000 times took 480 MiB of
/// which 9 were known, and the memory of a server under load rose with the revisions of its documents.
#[test]
fn what_memory_holds_of_histories_is_counted() {
    let db = Database::in_memory_with(options().background(false)).unwrap();
    let mut revision = db.insert("counter", &value("{}")).unwrap();
    for _ in 0..1_000 {
        revision = db.replace("counter", &revision, &value("{}")).unwrap();
    }
    let hashes = (1..=1_000).sum::<u64>();
    assert!(db.info().unwrap().memory_bytes > hashes * 16, "{}", db.info().unwrap().memory_bytes);
}

/// A fuzzer found it: a log whose checksums are right named document 10,000,000, and `check` looked for all those before it; the last
/// number of all was added one to.
#[test]
fn a_number_far_beyond_all_others_is_told_and_not_counted_up_to() {
    let db = Database::in_memory_with(options()).unwrap();
    db.insert("a", &book(1)).unwrap();
    db.store().writer.lock().next_number = DocumentNumber(1 << 60);
    db.insert("b", &book(2)).unwrap();
    let report = db.maintenance().check().unwrap();
    assert!(report.damages.iter().any(|damage| damage.what.contains("document number 2 is missing")), "{report:?}");
}
