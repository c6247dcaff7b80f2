//! Reading the past: random edits, compactions and reopenings, compared with copies taken at the time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb::past::{At, Difference, Retention, writing_as};
use stemmadb::testing::Random;
use stemmadb::{
    Clock, Database, Document, Durability, Edit, Emitter, ErrorKind, Options, Reduction, Sequence, Snapshot, View,
    field,
};

type Documents = BTreeMap<String, Value>;

/// `n` of each document by its first tag, with the sums.
struct ByTag;

impl View for ByTag {
    type Key = String;
    type Value = u64;
    type Reduced = u64;

    fn name(&self) -> &str {
        "by tag"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, String, u64>) -> stemmadb::Result<()> {
        let body = document.to::<Value>()?;
        if let (Some(tag), Some(n)) = (body["tags"].get(0), body["n"].as_u64()) {
            rows.emit(tag.as_str().unwrap().to_owned(), n);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Sum
    }
}

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
fn compare(db: &Database, at: impl Into<At>, expected: &Documents, random: &mut Random) {
    let snapshot = &db.as_of(at).unwrap();
    compare_view(db, snapshot, expected);
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

fn compare_view(db: &Database, past: &Snapshot, expected: &Documents) {
    let mut rows: Vec<(String, String, u64)> = Vec::new();
    for (id, body) in expected {
        if let Some(tag) = body["tags"].get(0) {
            rows.push((tag.as_str().unwrap().to_owned(), id.clone(), body["n"].as_u64().unwrap()));
        }
    }
    rows.sort();
    let query = || db.view(ByTag).unwrap().query().as_of(past);
    let mut found: Vec<(String, String, u64)> =
        query().rows().unwrap().map(|row| row.unwrap()).map(|row| (row.key, row.id.to_string(), row.value)).collect();
    found.sort();
    let at = past.sequence();
    assert_eq!(found, rows, "rows as of {at}");
    let sum = |tag: &str| rows.iter().filter(|row| row.0 == tag).map(|row| row.2).sum::<u64>();
    for group in query().group().unwrap() {
        let (tag, reduced) = group.unwrap();
        assert_eq!(reduced, sum(&tag), "the sum of {tag} as of {at}");
    }
    assert_eq!(query().reduce().unwrap().unwrap_or(0), rows.iter().map(|row| row.2).sum::<u64>(), "sum as of {at}");
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
            // The view of the present is ahead of the past.
            3 => db.view(ByTag).unwrap().update().unwrap(),
            4 => {
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
                compare(&db, *at, expected, &mut random);
            }
        }
    }
    db.maintenance().compact().unwrap();
    assert!(db.history().byte_count() > 0, "compaction wrote history files");
    assert_eq!(db.history().oldest(), Sequence::ZERO);
    for (at, expected) in &copies {
        compare(&db, *at, expected, &mut random);
    }
    compare(&db, Sequence::ZERO, &Documents::new(), &mut random);
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

/// Reads all pages of two rows, and writes in between.
fn paged(db: &Database) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let find = db.find(field("n").lt(100)).sort("n").limit(2);
        let mut page = match &after {
            Some(token) => find.after(token.clone()),
            None => find,
        }
        .ids()
        .unwrap();
        ids.extend(page.by_ref().map(|id| id.unwrap().to_string()));
        let Some(token) = page.token().unwrap() else { return ids };
        after = Some(token);
        db.delete_where(field("_id").eq(ids.last().unwrap().as_str())).unwrap();
        db.upsert(&format!("new{}", ids.len()), &json!({"n": 50 + ids.len()})).unwrap();
        db.maintenance().checkpoint().unwrap();
    }
}

#[test]
fn pages_agree_if_the_past_is_kept() {
    let expected: Vec<String> = (0..6).map(|number| format!("d{number}")).collect();
    for keeps in [true, false] {
        let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
        if keeps {
            db.history().keep(Retention::Everything).unwrap();
        }
        for number in 0..6 {
            db.insert(&format!("d{number}"), &json!({"n": number})).unwrap();
        }
        let ids = paged(&db);
        assert_eq!(ids == expected, keeps, "{ids:?}");
    }
}

#[test]
fn a_page_beyond_the_history_is_refused() {
    let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
    db.history().keep(Retention::Bytes(1)).unwrap();
    for number in 0..6 {
        db.insert(&format!("d{number}"), &json!({"n": number})).unwrap();
    }
    let find = || db.find(field("n").lt(100)).sort("_id").limit(2);
    let mut page = find().ids().unwrap();
    assert_eq!(page.by_ref().count(), 2);
    let token = page.token().unwrap().unwrap();
    churn(&db, 1);
    assert_eq!(find().after(token.clone()).ids().err().unwrap().kind(), ErrorKind::NotFound);
    // Nothing is kept any more, so pages show the newest state.
    db.history().keep(Retention::Nothing).unwrap();
    assert_eq!(find().after(token).ids().unwrap().count(), 2);
}

/// The values of `n` in the stored revisions of a document, the newest first.
fn stored(db: &Database, id: &str) -> Vec<Value> {
    let revisions = db.history().revisions(id).unwrap();
    revisions.into_iter().map(|revision| revision.document.to::<Value>().unwrap()["n"].clone()).collect()
}

/// Replaces each of these documents `count` times, and compacts.
fn replace_all(db: &Database, ids: &[&str], count: u64) {
    for number in 0..count {
        for id in ids {
            db.upsert(id, &json!({"n": number, "pad": "z".repeat(700)})).unwrap();
        }
    }
    db.maintenance().compact().unwrap();
}

#[test]
fn present_and_past_share_only_what_did_not_change() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Database::open(directory.path().join("library.stemma")).unwrap();
    let db = open();
    db.history().keep(Retention::Everything).unwrap();
    for id in ["same", "in tree", "in memory"] {
        db.insert(id, &json!({"n": 1})).unwrap();
    }
    let then = db.sequence();
    db.upsert("in tree", &json!({"n": 2})).unwrap();
    db.maintenance().checkpoint().unwrap();
    let before = db.sequence();
    db.upsert("in memory", &json!({"n": 2})).unwrap();
    let numbers = |snapshot: &Snapshot| {
        let by_id = ["same", "in tree", "in memory"].map(|id| snapshot.get(id).unwrap().unwrap().to_json().unwrap());
        let found = snapshot.find(field("n").exists()).sort("_id").run().unwrap();
        let mut found: Vec<_> = found.map(|document| document.unwrap().to_json().unwrap()).collect();
        found.reverse();
        assert_eq!(found, [by_id[0].clone(), by_id[1].clone(), by_id[2].clone()], "by id, and by a query");
        by_id.map(|json| json.contains(":2"))
    };
    let check = |db: &Database| {
        for _ in 0..2 {
            assert_eq!(numbers(&db.as_of(then).unwrap()), [false, false, false]);
            assert_eq!(numbers(&db.as_of(before).unwrap()), [false, true, false]);
            assert_eq!(numbers(&db.snapshot().unwrap()), [false, true, true]);
        }
    };
    check(&db);
    // Without what the process knows of earlier writes, and the past first.
    drop(db);
    let db = open();
    check(&db);
}

#[test]
fn authors_are_recorded_while_history_is_kept() {
    let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
    let authors = || {
        let revisions = db.history().revisions("emma").unwrap();
        revisions.into_iter().map(|revision| revision.author.unwrap_or_default()).collect::<Vec<_>>()
    };
    writing_as("nobody", || db.insert("emma", &json!({"n": 0}))).unwrap();
    assert_eq!(authors(), [""]);
    db.history().keep(Retention::Everything).unwrap();
    writing_as("jane", || {
        db.upsert("emma", &json!({"n": 1})).unwrap();
        let panicked = std::panic::catch_unwind(|| writing_as("mary", || panic!("an expected panic")));
        assert!(panicked.is_err());
        db.write(|transaction| transaction.upsert("emma", &json!({"n": 2}))).unwrap();
        std::thread::scope(|scope| scope.spawn(|| db.upsert("emma", &json!({"n": 3})).unwrap()).join().unwrap());
        writing_as("åsa", || db.bulk(vec![edit(&db, 4)])).unwrap();
        db.optimistic(|attempt| attempt.upsert("emma", &json!({"n": 5}))).unwrap();
    });
    db.upsert("emma", &json!({"n": 6})).unwrap();
    let expected = ["", "jane", "åsa", "", "jane", "jane", ""];
    assert_eq!(authors(), expected);
    // Also of a leaf that was moved, and in history files.
    churn(&db, 2);
    assert!(db.history().byte_count() > 0);
    assert_eq!(authors(), expected);
    let refused = writing_as(&"x".repeat(257), || db.upsert("emma", &json!({"n": 7})));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(authors(), expected);
}

fn edit(db: &Database, n: u64) -> Edit {
    let parent = Some(*db.get("emma").unwrap().unwrap().revision());
    let body = stemmadb::Value::parse(json!({"n": n}).to_string()).unwrap();
    Edit::Put { id: "emma".parse().unwrap(), parent, deleted: false, body, files: Vec::new() }
}

#[test]
fn a_number_of_revisions_is_kept_and_older_ones_are_reclaimed() {
    let db = Database::in_memory_with(options(&Clock::fixed_at(0))).unwrap();
    db.history().keep(Retention::Revisions(3)).unwrap();
    db.upsert("rare", &json!({"n": "first"})).unwrap();
    let then = db.sequence();
    db.upsert("rare", &json!({"n": "second"})).unwrap();
    let mut settled_bytes = 0;
    for round in 0..8 {
        replace_all(&db, &["often", "other"], 200);
        assert_eq!(stored(&db, "often"), [199, 198, 197, 196], "round {round}");
        assert_eq!(stored(&db, "rare"), ["second", "first"]);
        if round == 3 {
            settled_bytes = db.history().byte_count();
        }
    }
    let bytes = db.history().byte_count();
    assert!(bytes <= settled_bytes * 3 / 2, "history grows from {settled_bytes} to {bytes} bytes");
    // The database as a whole can't be read as of then, the document can.
    assert_eq!(db.as_of(then).unwrap_err().kind(), ErrorKind::NotFound);
    let history = db.history();
    assert_eq!(history.document_at("rare", then).unwrap().unwrap().to_json().unwrap(), r#"{"n":"first"}"#);
    assert!(history.document_at("rare", Sequence::ZERO).unwrap().is_none(), "it did not exist");
    assert_eq!(history.document_at("often", Sequence::new(10)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(history.document_at("never", then).unwrap().is_none());
    db.delete_where(field("_id").eq("rare")).unwrap();
    assert!(history.document_at("rare", db.sequence()).unwrap().is_none(), "it is deleted");
    assert!(db.maintenance().check().unwrap().is_sound());
    // Fewer are reclaimed at once.
    history.keep(Retention::Revisions(1)).unwrap();
    assert_eq!(stored(&db, "often"), [199, 198]);
}

#[test]
fn prefixes_have_retentions_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let clock = Clock::fixed_at(1_790_000_000_000);
    let mut db = Database::open_with(&path, options(&clock)).unwrap();
    db.history().keep(Retention::Everything).unwrap();
    db.history().keep_of_prefix("s:", Some(Retention::Nothing)).unwrap();
    db.history().keep_of_prefix("s:audit:", Some(Retention::Revisions(2))).unwrap();
    for refused in [
        db.history().keep_of_prefix("", Some(Retention::Nothing)),
        db.history().keep_of_prefix("x", Some(Retention::Bytes(1))),
        db.history().keep_of_prefix(&"x".repeat(201), None),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let ids = ["s:1", "s:audit:1", "other"];
    for id in ids {
        db.insert(id, &json!({"n": "first"})).unwrap();
    }
    let then = db.sequence();
    replace_all(&db, &ids, 100);
    for _ in 0..2 {
        assert_eq!(stored(&db, "s:1"), [99]);
        assert_eq!(stored(&db, "s:audit:1"), [99, 98, 97]);
        assert_eq!(stored(&db, "other").len(), 101);
        // The past has what is kept of it.
        let past = db.as_of(then).unwrap();
        assert_eq!(past.list().run().map(|row| row.unwrap().id.to_string()).collect::<Vec<_>>(), ["other"]);
        assert_eq!(past.find(field("n").eq("first")).count().unwrap(), 1);
        assert_eq!(db.history().oldest(), Sequence::ZERO);
        assert!(db.maintenance().check().unwrap().is_sound());
        db.close().unwrap();
        std::fs::remove_dir_all(path.join("tree")).unwrap();
        db = Database::open_with(&path, options(&clock)).unwrap();
        assert_eq!(db.history().prefixes().len(), 2);
    }
    // Without its own retention, a prefix has that of the database.
    db.history().keep(Retention::Nothing).unwrap();
    db.history().keep_of_prefix("other", Some(Retention::For(Duration::from_secs(60)))).unwrap();
    replace_all(&db, &ids, 100);
    assert!(stored(&db, "other").len() >= 100, "replaced a moment ago");
    clock.set(1_790_000_000_000 + 120_000);
    replace_all(&db, &["s:1"], 300);
    assert_eq!(stored(&db, "other"), [99], "replaced two minutes ago");
    for (prefix, _) in db.history().prefixes() {
        db.history().keep_of_prefix(&prefix, None).unwrap();
    }
    assert_eq!(db.history().byte_count(), 0);
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
    (0..60).for_each(|_| write(&db, &mut random, &mut documents));
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
