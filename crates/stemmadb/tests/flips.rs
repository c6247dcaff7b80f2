//! One flipped bit, anywhere: the right answer or a clear error, never a wrong or silently missing document. The same of a page of the tree.
//!
//! `STEMMA_FLIPS` says how many flips each test makes (default 400, and a fourth of that of pages; the long run makes 50,000),
//! `STEMMA_FLIP_SEED` which (default 1).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stemmadb::testing::{self, Random};
use stemmadb::{Database, Durability, Error, ErrorKind, Options, Result, Sequence, Value, field};

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn flip_count() -> u64 {
    number_from("STEMMA_FLIPS", 400)
}

fn seed() -> u64 {
    number_from("STEMMA_FLIP_SEED", 1)
}

fn options() -> Options {
    Options::new().segment_bytes(64 << 10).durability(Durability::None).background(false)
}

fn body(number: u64, edit: u64) -> Value {
    let text =
        format!(r#"{{"number":{number},"edit":{edit},"group":"g{}","text":"{:050}"}}"#, number % 7, number * edit);
    Value::parse(text.as_bytes()).unwrap()
}

type Contents = BTreeMap<String, Value>;

/// A closed database with several segments, updates and deletions, and what is in it.
fn original(directory: &Path) -> (PathBuf, Contents) {
    let path = directory.join("original.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let mut contents = Contents::new();
    for number in 0..500 {
        let id = format!("document-{number}");
        let mut revision = db.insert(&id, &body(number, 1)).unwrap();
        contents.insert(id.clone(), body(number, 1));
        if number % 3 == 0 {
            revision = db.replace(&id, &revision, &body(number, 2)).unwrap();
            contents.insert(id.clone(), body(number, 2));
        }
        if number % 10 == 4 {
            db.delete(&id, &revision).unwrap();
            contents.remove(&id);
        }
        if number == 250 {
            db.maintenance().checkpoint().unwrap();
        }
    }
    db.close().unwrap();
    (path, contents)
}

fn flip(file: &Path, bit: u64) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    std::fs::write(file, bytes).unwrap();
}

/// What one damaged copy did.
#[derive(Debug, Default)]
struct Tally {
    unharmed: u64,
    told: u64,
}

fn is_told(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt
}

/// Damage to the log names the file, or segment and offset.
fn assert_clear(error: &Error, place: &str) {
    assert!(is_told(error), "{place}: {error:?}");
    let message = error.message();
    assert!(message.contains("log") || message.contains("segment") || message.contains("tree"), "{place}: {error:?}");
}

/// Reads everything, which is right or told; how often it was told.
fn read_everything(db: &Database, contents: &Contents, place: &str) -> u64 {
    let mut told = 0;
    for (id, expected) in contents {
        match db.get(id) {
            Ok(Some(found)) => assert_eq!(&found.value().unwrap(), expected, "{place}: `{id}` is wrong"),
            Ok(None) => panic!("{place}: `{id}` is silently missing"),
            Err(error) => {
                assert_clear(&error, place);
                told += 1;
            }
        }
    }
    told + check_feed(db, contents, place) + check_query(db, contents, place)
}

fn check_feed(db: &Database, contents: &Contents, place: &str) -> u64 {
    let changes = db.changes(Sequence::ZERO).unwrap().documents(true).run();
    match changes.collect::<Result<Vec<_>>>() {
        Ok(changes) => {
            let living = changes.into_iter().filter(|change| !change.deleted);
            let living: Contents =
                living.map(|change| (change.id.to_string(), change.document.unwrap().value().unwrap())).collect();
            assert!(living == *contents, "{place}: the feed has a wrong document, or silently misses one");
            0
        }
        Err(error) => {
            assert_clear(&error, place);
            1
        }
    }
}

fn check_query(db: &Database, contents: &Contents, place: &str) -> u64 {
    let mut told = 0;
    for group in 0..7 {
        let wanted = Value::from(format!("g{group}"));
        let is_wanted = |value: &Value| value.get("group") == Some(&wanted);
        let expected: BTreeSet<&str> =
            contents.iter().filter(|(_, value)| is_wanted(value)).map(|(id, _)| id.as_str()).collect();
        let found = db.find(field("group").eq(wanted.clone())).ids().and_then(|ids| ids.collect::<Result<Vec<_>>>());
        match found {
            Ok(ids) => {
                let ids: BTreeSet<&str> = ids.iter().map(|id| id.as_str()).collect();
                assert_eq!(ids, expected, "{place}: a query returned a wrong id, or silently misses one");
            }
            Err(error) => {
                assert_clear(&error, place);
                told += 1;
            }
        }
    }
    told
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension() == Some(extension.as_ref()));
    files.sort();
    files
}

#[test]
fn a_flipped_bit_in_the_log_is_told_or_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path());
    let copy = directory.path().join("copy.stemma");
    let mut random = Random::new(seed());
    let mut tally = Tally::default();
    for round in 0..flip_count() {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        let logs = files(&copy.join("log"), "log");
        assert!(logs.len() > 1, "several segments");
        let file = &logs[random.below(logs.len() as u64) as usize];
        let bit = random.below(std::fs::metadata(file).unwrap().len() * 8);
        flip(file, bit);
        let without_tree = round % 2 == 1;
        if without_tree {
            std::fs::remove_dir_all(copy.join("tree")).unwrap();
        }
        let place = format!("round {round}, {} bit {bit}, without tree: {without_tree}", file.display());
        match Database::open_with(&copy, options()) {
            Err(error) => {
                assert_clear(&error, &place);
                tally.told += 1;
            }
            Ok(db) => {
                if read_everything(&db, &contents, &place) > 0 {
                    let report = db.maintenance().check().unwrap();
                    assert!(!report.is_sound(), "{place}: check finds nothing");
                    tally.told += 1;
                } else {
                    tally.unharmed += 1;
                }
            }
        }
    }
    println!("log: {tally:?} of {} flips, none wrong, none silently missing", flip_count());
    assert!(tally.told > 0, "no flip was ever noticed: the test is blind");
}

/// Damages a tree again and again: what is read then is right or told, `check` finds it, and a rebuild repairs it.
fn damage_the_tree(seed: u64, rounds: u64, damage: impl Fn(&mut Random, &mut Vec<u8>) -> String) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path());
    let copy = directory.path().join("copy.stemma");
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for round in 0..rounds {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        let file = copy.join("tree/data.mdb");
        let mut bytes = std::fs::read(&file).unwrap();
        let place = format!("round {round}, data.mdb {}", damage(&mut random, &mut bytes));
        std::fs::write(file, bytes).unwrap();
        match Database::open_with(&copy, options()) {
            Err(error) => {
                assert_clear(&error, &place);
                tally.told += 1;
            }
            Ok(db) => {
                let is_harmed = read_everything(&db, &contents, &place) > 0;
                let is_found = match db.maintenance().check() {
                    Ok(report) => !report.is_sound(),
                    Err(error) => is_told(&error),
                };
                assert!(is_found || !is_harmed, "{place}: harmed, and check finds nothing");
                tally.told += u64::from(is_harmed);
                tally.unharmed += u64::from(!is_harmed);
            }
        }
        if round % 20 == 0 {
            let db = Database::rebuild(&copy, options(), |_| ()).unwrap();
            assert_eq!(read_everything(&db, &contents, &place), 0, "{place}: a rebuild repairs it");
            assert!(db.maintenance().check().unwrap().is_sound());
        }
    }
    assert!(tally.told > 0, "no damage was ever noticed: the test is blind");
    tally
}

#[test]
fn a_flipped_bit_in_the_tree_is_told_or_harmless_and_a_rebuild_repairs_it() {
    let tally = damage_the_tree(seed() + 1, flip_count(), |random, bytes| {
        let bit = random.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        format!("bit {bit}")
    });
    println!("tree: {tally:?} of {} flips, none wrong, none silently missing", flip_count());
}

/// What a disk does that takes a page to the wrong place, or loses what it had.
#[test]
fn a_page_of_the_tree_that_is_zeroed_misplaced_or_cut_off_is_told_or_harmless() {
    let rounds = flip_count().div_ceil(4);
    let tally = damage_the_tree(seed() + 2, rounds, |random, bytes| {
        let page_count = bytes.len() as u64 / 4096;
        let (from, to) = (random.below(page_count) as usize * 4096, random.below(page_count) as usize * 4096);
        match random.below(5) {
            0 | 1 => {
                bytes[to..to + 4096].fill(0);
                format!("zeros at {to}")
            }
            2 | 3 => {
                bytes.copy_within(from..from + 4096, to);
                format!("what is at {from} also at {to}")
            }
            _ => {
                bytes.truncate(to + random.below(4096) as usize);
                format!("cut to {} bytes", bytes.len())
            }
        }
    });
    println!("pages of the tree: {tally:?} of {rounds}, none wrong, none silently missing");
}

/// A rebuild that meets damage in the log must not take away the tree through which everything else can still be read.
#[test]
fn a_rebuild_that_fails_leaves_everything_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path());
    let first = &files(&path.join("log"), "log")[0];
    flip(first, 8 * 5000);
    let error = Database::rebuild(&path, options(), |_| ()).unwrap_err();
    assert_clear(&error, "rebuild");
    let db = Database::open_with(&path, options()).unwrap();
    let told = read_everything(&db, &contents, "after the rebuild");
    assert!(told <= 2, "one record and the feed over it may be damaged: {told}");
}
