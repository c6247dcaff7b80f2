//! Reading the past: random edits, compactions and reopenings, compared with copies taken at the time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb::past::{At, Difference, Retention};
use stemmadb::testing::Random;
use stemmadb::{Clock, Database, Durability, Edit, ErrorKind, Options, Sequence, Snapshot, field};

type Documents = BTreeMap<String, Value>;

fn options(clock: &Clock) -> Options {
    Options::new()
        .durability(Durability::None)
        .background(false)
        .memory_bytes(1 << 20)
        .segment_bytes(64 << 10)
        .clock(clock.clone())
}

fn body(random: &mut Random) -> Value {
    let tags: Vec<String> = (0..random.below(3)).map(|_| format!("t{}", random.below(4))).collect();
    json!({"n": random.below(20), "tags": tags, "pad": "x".repeat(random.below(900) as usize)})
}

/// One random write; returns what the database has afterwards.
fn write(db: &Database, random: &mut Random, documents: &mut Documents) {
    let id = format!("d{:02}", random.below(40));
    match (db.get(&id).unwrap(), random.below(5)) {
        (Some(document), 0) => {
            db.delete(&id, document.revision()).unwrap();
            documents.remove(&id);
        }
        _ => {
            let body = body(random);
            db.upsert(&id, &body).unwrap();
            documents.insert(id, body);
        }
    }
}

/// Compares everything that a snapshot answers with a copy of the documents.
fn compare(snapshot: &Snapshot, expected: &Documents, random: &mut Random) {
    let at = snapshot.sequence();
    for number in 0..40 {
        let id = format!("d{number:02}");
        let found = snapshot.get(&id).unwrap().map(|document| document.to::<Value>().unwrap());
        assert_eq!(found.as_ref(), expected.get(&id), "{id} as of {at}");
    }
    let below = random.below(20);
    let matching: Vec<&String> =
        expected.iter().filter(|(_, body)| body["n"].as_u64().unwrap() < below).map(|(id, _)| id).collect();
    let query = || snapshot.find(field("n").lt(below)).sort("_id");
    let ids: Vec<String> = query().ids().unwrap().map(|id| id.unwrap().to_string()).collect();
    assert!(ids.iter().eq(matching.iter().copied()), "n < {below} as of {at}: {ids:?}, not {matching:?}");
    assert_eq!(query().count().unwrap(), matching.len() as u64);
    let sum: u64 = matching.iter().map(|id| expected[*id]["n"].as_u64().unwrap()).sum();
    assert_eq!(query().sum("n").unwrap().to_string(), sum.to_string(), "sum as of {at}");
    let tag = format!("t{}", random.below(4));
    let tagged = expected.values().filter(|body| body["tags"].as_array().unwrap().contains(&json!(tag))).count();
    assert_eq!(snapshot.find(field("tags[]").eq(tag.as_str())).count().unwrap(), tagged as u64, "{tag} as of {at}");
    let listed: Vec<String> = snapshot.list().run().map(|row| row.unwrap().id.to_string()).collect();
    assert!(listed.iter().eq(expected.keys()), "list as of {at}");
}

fn run(seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let clock = Clock::fixed_at(1_790_000_000_000);
    let mut random = Random::new(seed);
    let mut db = Database::open_with(&path, options(&clock)).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    let (mut documents, mut copies) = (Documents::new(), Vec::<(Sequence, Documents)>::new());
    for step in 0..400_u64 {
        write(&db, &mut random, &mut documents);
        clock.set(1_790_000_000_000 + step as i64 * 1000);
        if step % 7 == 0 {
            copies.push((db.sequence(), documents.clone()));
        }
        match random.below(60) {
            0 => _ = db.maintenance().compact().unwrap(),
            1 | 2 => db.maintenance().checkpoint().unwrap(),
            3 => {
                db.close().unwrap();
                if random.below(2) == 0 {
                    std::fs::remove_dir_all(path.join("tree")).unwrap();
                }
                db = Database::open_with(&path, options(&clock)).unwrap();
            }
            _ => {}
        }
        if step % 40 == 39 {
            for (at, expected) in &copies {
                compare(&db.as_of(*at).unwrap(), expected, &mut random);
            }
        }
    }
    db.maintenance().compact().unwrap();
    assert!(db.history().byte_count() > 0, "compaction wrote history files");
    assert_eq!(db.history().oldest(), Sequence::ZERO);
    for (at, expected) in &copies {
        compare(&db.as_of(*at).unwrap(), expected, &mut random);
    }
    compare(&db.as_of(Sequence::ZERO).unwrap(), &Documents::new(), &mut random);
    assert!(db.maintenance().check().unwrap().is_sound());
    differences_lead_from_each_copy_to_the_next(&db, &copies);
}

fn differences_lead_from_each_copy_to_the_next(db: &Database, copies: &[(Sequence, Documents)]) {
    for pair in copies.windows(2) {
        let [(from, before), (to, after)] = pair else { unreachable!() };
        let mut reached = before.clone();
        for difference in db.history().differences(*from, *to, None).unwrap() {
            match difference.unwrap() {
                Difference::Added(document) => {
                    assert!(reached.insert(document.id().to_string(), document.to().unwrap()).is_none());
                }
                Difference::Changed { after, paths, before } => {
                    let old = reached.insert(after.id().to_string(), after.to().unwrap()).unwrap();
                    assert_eq!(old, before.to::<Value>().unwrap());
                    assert_eq!(paths.is_empty(), old == after.to::<Value>().unwrap());
                }
                Difference::Removed(document) => _ = reached.remove(document.id().as_str()).unwrap(),
                _ => unreachable!(),
            }
        }
        assert_eq!(&reached, after, "from {from} to {to}");
    }
}

#[test]
fn the_past_equals_copies_taken_then() {
    let cases = std::env::var("STEMMA_HISTORY_CASES").map_or(4, |count| count.parse().unwrap());
    let first = std::env::var("STEMMA_HISTORY_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + cases {
        println!("seed {seed}");
        run(seed);
    }
    println!("past: {cases} seeds of edits: each state equals the copy taken then");
}

/// A database whose log is compacted `count` times, with one document that changes.
fn churn(db: &Database, count: u64) {
    for _ in 0..count {
        for number in 0..300 {
            db.upsert("d", &json!({"n": number, "pad": "y".repeat(700)})).unwrap();
        }
        db.maintenance().compact().unwrap();
    }
}

#[test]
fn without_retention_compaction_ends_the_past() {
    let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
    db.upsert("d", &json!({"n": 1})).unwrap();
    let then = db.sequence();
    assert!(db.as_of(then).unwrap().get("d").unwrap().is_some());
    churn(&db, 1);
    let error = db.as_of(then).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains(&format!("from sequence {}", db.history().oldest())), "{error}");
    assert_eq!(db.history().byte_count(), 0);
    assert!(db.as_of(db.sequence()).is_ok());
    let future = db.as_of(Sequence::new(db.sequence().get() + 1)).unwrap_err();
    assert_eq!(future.kind(), ErrorKind::Invalid);
}

#[test]
fn history_is_removed_by_age_and_by_size_and_pins_keep_it() {
    let clock = Clock::fixed_at(1_790_000_000_000);
    let db = Database::in_memory_with(options(&clock)).unwrap();
    db.history().keep(Retention::For(Duration::from_secs(3600))).unwrap();
    db.upsert("d", &json!({"first": true})).unwrap();
    let pinned = db.history().pin("audit", db.sequence()).unwrap();
    assert_eq!(db.history().pin("audit", pinned).unwrap_err().kind(), ErrorKind::Conflict);
    churn(&db, 1);
    clock.set(1_790_000_000_000 + 7_200_000);
    churn(&db, 1);
    assert!(db.as_of(pinned).unwrap().get("d").unwrap().unwrap().to_json().unwrap().contains("first"));
    let held = db.as_of(pinned).unwrap();
    db.history().release("audit").unwrap();
    assert!(held.get("d").unwrap().is_some(), "a snapshot in use keeps what it reads");
    drop(held);
    churn(&db, 1);
    assert_eq!(db.as_of(pinned).unwrap_err().kind(), ErrorKind::NotFound);
    let recent = db.sequence();
    let bytes = db.history().byte_count();
    assert!(bytes > 0);
    db.history().keep(Retention::Bytes(bytes / 2)).unwrap();
    assert!(db.history().byte_count() <= bytes / 2);
    assert!(db.as_of(recent).is_ok());
    db.history().keep(Retention::Nothing).unwrap();
    assert_eq!(db.history().byte_count(), 0);
}

#[test]
fn a_past_whose_files_were_removed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open_with(&path, options(&Clock::fixed_at(0))).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    db.upsert("d", &json!({"n": "first"})).unwrap();
    churn(&db, 1);
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("history")).unwrap();
    for _ in 0..2 {
        let db = Database::open_with(&path, options(&Clock::fixed_at(0))).unwrap();
        assert_eq!(db.as_of(Sequence::new(1)).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(db.history().oldest(), db.sequence());
        assert!(db.maintenance().check().unwrap().is_sound());
        db.close().unwrap();
    }
}

#[test]
fn damage_of_a_history_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let db = Database::open_with(&path, options(&Clock::fixed_at(0))).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    db.upsert("d", &json!({"n": "first"})).unwrap();
    churn(&db, 1);
    assert!(db.maintenance().check().unwrap().is_sound());
    assert_eq!(db.info().unwrap().history_bytes, db.history().byte_count());
    let file = path.join("history").read_dir().unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let db = {
        db.close().unwrap();
        Database::open_with(&path, options(&Clock::fixed_at(0))).unwrap()
    };
    let report = db.maintenance().check().unwrap();
    let name = format!("history/{} is damaged", file.file_name().unwrap().to_string_lossy());
    assert!(report.damages[0].what.contains(&name), "{:?}", report.damages);
    let read = |sequence| db.as_of(Sequence::new(sequence)).and_then(|past| past.get("d")).err();
    let damage = (1..300).find_map(read).expect("a record is in the damaged block");
    assert_eq!(damage.kind(), ErrorKind::Corrupt);
    assert!(db.get("d").unwrap().is_some(), "the present does not need it");
}

#[test]
fn times_name_sequences_whatever_the_clock_does() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::fixed_at(1_790_000_000_000);
    let at = |ms: i64| {
        At::Time(std::time::UNIX_EPOCH + Duration::from_millis(1_790_000_000_000_u64.saturating_add_signed(ms)))
    };
    let db = Database::open_with(directory.path().join("db"), options(&clock)).unwrap();
    let mut sequences = Vec::new();
    for step in [0, 1000, 500, 2000] {
        clock.set(1_790_000_000_000 + step);
        db.upsert("d", &json!({"step": step})).unwrap();
        sequences.push(db.sequence());
    }
    let db = {
        db.close().unwrap();
        Database::open_with(directory.path().join("db"), options(&clock)).unwrap()
    };
    let history = db.history();
    assert_eq!(history.sequence_at(at(-1)).unwrap(), Sequence::ZERO);
    assert_eq!(history.sequence_at(at(999)).unwrap(), sequences[0]);
    // The third write came right after the second, since the clock was set back.
    assert_eq!(history.sequence_at(at(1001)).unwrap(), sequences[2]);
    assert_eq!(history.sequence_at(at(5000)).unwrap(), sequences[3]);
    clock.set(1_790_000_000_000 + 3000);
    assert_eq!(history.sequence_at(At::Ago(Duration::from_millis(1500))).unwrap(), sequences[2]);
    let revisions = history.revisions("d").unwrap();
    let times: Vec<u128> = revisions
        .iter()
        .map(|revision| revision.time.unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros())
        .map(|time_us| time_us - 1_790_000_000_000_000)
        .collect();
    // The frames of the creation of the database came first.
    assert!(times[..3] == [2_000_000, 1_000_001, 1_000_000] && times[3] < 10, "{times:?}");
    assert_eq!(revisions.iter().map(|revision| revision.sequence).rev().collect::<Vec<_>>(), sequences);
}

#[test]
fn deletions_and_changes_are_taken_back_with_attachments() {
    let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    for number in 0..10 {
        db.insert(&format!("d{number}"), &json!({"n": number})).unwrap();
    }
    let revision = *db.get("d3").unwrap().unwrap().revision();
    db.files().attach("d3", &revision, "photo", "image/png", &b"a photograph"[..]).unwrap();
    let then = db.sequence();
    assert_eq!(db.history().undelete("d3").unwrap_err().kind(), ErrorKind::Conflict);
    db.delete_where(field("n").lt(5)).unwrap();
    db.upsert("d7", &json!({"n": 70})).unwrap();
    db.insert("new", &json!({"n": 1})).unwrap();
    db.files().sweep().unwrap();
    churn(&db, 1);
    db.history().undelete("d3").unwrap();
    let content = |db: &Database| {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut db.files().open("d3", "photo").unwrap().unwrap(), &mut bytes).unwrap();
        bytes
    };
    assert_eq!(content(&db), b"a photograph");
    let document = db.get("d3").unwrap().unwrap();
    db.edit(Edit::Delete { id: document.id().clone(), revision: *document.revision() }).unwrap();
    assert_eq!(db.history().revert(field("n").exists(), then).unwrap(), 8);
    assert_eq!(db.history().revert(field("n").exists(), then).unwrap(), 0);
    assert_eq!(content(&db), b"a photograph");
    assert_eq!(db.get("d7").unwrap().unwrap().to_json().unwrap(), r#"{"n":7}"#);
    assert!(db.get("new").unwrap().is_none() && db.get("d").unwrap().is_none());
    assert_eq!(db.find(field("n").exists()).count().unwrap(), 10);
    assert_eq!(db.history().undelete("never").unwrap_err().kind(), ErrorKind::NotFound);
}

/// A database is set to the state of another one, such as a restored backup, by new revisions with all attachments.
#[test]
fn state_of_a_copy_is_written_as_new_revisions() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let db = Database::open_with(path("db"), options(&Clock::fixed_at(0))).unwrap();
    let mut random = Random::new(77);
    let mut documents = Documents::new();
    (0..150).for_each(|_| write(&db, &mut random, &mut documents));
    let revision = db.insert("album", &json!({"of": "photos"})).unwrap();
    let long = vec![9; 100_000];
    let revision = db.files().attach("album", &revision, "long", "text/plain", &long[..]).unwrap();
    db.files().attach("album", &revision, "short", "text/plain", &b"short"[..]).unwrap();
    db.maintenance().backup(path("backups")).unwrap();
    let then = documents.clone();
    (0..150).for_each(|_| write(&db, &mut random, &mut documents));
    db.delete("album", db.get("album").unwrap().unwrap().revision()).unwrap();
    db.maintenance().compact().unwrap();
    db.files().sweep().unwrap();

    let target = stemmadb::backup::DirectoryTarget::open(path("backups")).unwrap();
    stemmadb::backup::restore(&target, path("copy"), stemmadb::backup::RestoreOptions::new()).unwrap();
    let copy = Database::open(path("copy")).unwrap();
    let untouched = then.iter().find(|(id, body)| documents.get(*id) == Some(body)).unwrap().0;
    let revision_before = *db.get(untouched).unwrap().unwrap().revision();
    let everything = stemmadb::Selector::everything;
    let count = db.history().revert_to_copy(everything(), &copy).unwrap();
    assert!(count > 20);
    for number in 0..40 {
        let id = format!("d{number:02}");
        let found = db.get(&id).unwrap().map(|document| document.to::<Value>().unwrap());
        assert_eq!(found.as_ref(), then.get(&id), "{id}");
    }
    assert_eq!(*db.get(untouched).unwrap().unwrap().revision(), revision_before, "what is equal is not written");
    let mut found = Vec::new();
    let mut reader = db.files().open("album", "long").unwrap().unwrap();
    std::io::Read::read_to_end(&mut reader, &mut found).unwrap();
    assert!(found == long && db.files().open("album", "short").unwrap().is_some());
    assert_eq!(db.history().revert_to_copy(everything(), &copy).unwrap(), 0);
    assert!(db.maintenance().check().unwrap().is_sound());
    // Only what a query selects.
    let some = db.find(field("n").lt(5)).count().unwrap();
    copy.delete_where(field("n").lt(5)).unwrap();
    assert_eq!(db.history().revert_to_copy(field("n").lt(5), &copy).unwrap(), some);
}
