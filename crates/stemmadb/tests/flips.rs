//! Bit flips: with one flipped bit anywhere, reads return the correct result or a clear error, never a wrong document,
//! and never silently omit one. The same for damaged pages of the tree.
//!
//! `STEMMA_FLIPS` sets the number of flips per test (default 400, and a quarter of that for pages; the long run makes
//! 50,000), `STEMMA_FLIP_SEED` the seed (default 1).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stemmadb::testing::{self, Random};
use stemmadb::{Compression, Database, Durability, Error, ErrorKind, Options, Result, Sequence, Value, field};

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
    let options = Options::new().durability(Durability::None).background(false);
    // Several segments, and a tree of merged and other runs, some of several files.
    testing::with_small_limits(options, 32 << 10, 64 << 10, 1_000)
}

fn body(number: u64, edit: u64) -> Value {
    let text =
        format!(r#"{{"number":{number},"edit":{edit},"group":"g{}","text":"{:050}"}}"#, number % 7, number * edit);
    Value::parse(text.as_bytes()).unwrap()
}

type Contents = BTreeMap<String, Value>;

/// Creates and closes a database with several segments, updates and deletions; returns its content.
fn original(directory: &Path, compression: Compression) -> (PathBuf, Contents) {
    let path = directory.join("original.stemma");
    let db = Database::open_with(&path, options().compression(compression)).unwrap();
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

/// Number of damaged copies with correct reads and with reported errors.
#[derive(Debug, Default)]
struct Tally {
    unharmed: u64,
    told: u64,
}

fn is_corrupt(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt
}

/// Checks that an error names the file, or segment and offset.
fn assert_clear(error: &Error, context: &str) {
    assert!(is_corrupt(error), "{context}: {error:?}");
    let message = error.message();
    assert!(message.contains("log") || message.contains("segment") || message.contains("tree"), "{context}: {error:?}");
}

/// Reads everything; each result must be correct or an error. Returns the number of errors.
fn read_everything(db: &Database, contents: &Contents, context: &str) -> u64 {
    let mut error_count = 0;
    for (id, expected) in contents {
        match db.get(id) {
            Ok(Some(found)) => assert_eq!(&found.value().unwrap(), expected, "{context}: `{id}` is wrong"),
            Ok(None) => panic!("{context}: `{id}` is silently missing"),
            Err(error) => {
                assert_clear(&error, context);
                error_count += 1;
            }
        }
    }
    error_count + check_feed(db, contents, context) + check_query(db, contents, context)
}

fn check_feed(db: &Database, contents: &Contents, context: &str) -> u64 {
    let changes = db.changes(Sequence::ZERO).unwrap().documents(true).run();
    match changes.collect::<Result<Vec<_>>>() {
        Ok(changes) => {
            let living = changes.into_iter().filter(|change| !change.deleted);
            let living: Contents =
                living.map(|change| (change.id.to_string(), change.document.unwrap().value().unwrap())).collect();
            assert!(living == *contents, "{context}: the feed has a wrong document, or silently misses one");
            0
        }
        Err(error) => {
            assert_clear(&error, context);
            1
        }
    }
}

fn check_query(db: &Database, contents: &Contents, context: &str) -> u64 {
    let mut error_count = 0;
    for group in 0..7 {
        let group_name = Value::from(format!("g{group}"));
        let is_in_group = |value: &Value| value.get("group") == Some(&group_name);
        let expected: BTreeSet<&str> =
            contents.iter().filter(|(_, value)| is_in_group(value)).map(|(id, _)| id.as_str()).collect();
        let found =
            db.find(field("group").eq(group_name.clone())).ids().and_then(|ids| ids.collect::<Result<Vec<_>>>());
        match found {
            Ok(ids) => {
                let ids: BTreeSet<&str> = ids.iter().map(|id| id.as_str()).collect();
                assert_eq!(ids, expected, "{context}: a query returned a wrong id, or silently misses one");
            }
            Err(error) => {
                assert_clear(&error, context);
                error_count += 1;
            }
        }
    }
    error_count
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension() == Some(extension.as_ref()));
    files.sort();
    files
}

#[test]
fn flipped_bit_in_the_log_is_reported_or_harmless() {
    check_flipped_logs(Compression::None);
}

#[test]
fn flipped_bit_in_a_compressed_log_is_reported_or_harmless() {
    check_flipped_logs(Compression::Zstd);
}

fn check_flipped_logs(compression: Compression) {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path(), compression);
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
        let context = format!("round {round}, {} bit {bit}, without tree: {without_tree}", file.display());
        match Database::open_with(&copy, options()) {
            Err(error) => {
                assert_clear(&error, &context);
                tally.told += 1;
            }
            Ok(db) => {
                if read_everything(&db, &contents, &context) > 0 {
                    let report = db.maintenance().check().unwrap();
                    assert!(!report.is_sound(), "{context}: check finds nothing");
                    tally.told += 1;
                } else {
                    tally.unharmed += 1;
                }
            }
        }
    }
    println!("log: {tally:?} of {} flips, none wrong, none silently missing", flip_count());
    assert!(tally.told > 0, "no flip was ever detected: the test has no effect");
}

/// Damages a tree repeatedly: reads are correct or fail, `check` finds the damage, and a rebuild repairs it.
fn check_damaged_trees(
    seed: u64,
    rounds: u64,
    compression: Compression,
    damage: impl Fn(&mut Random, &mut Vec<u8>) -> String,
) -> Tally {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path(), compression);
    let copy = directory.path().join("copy.stemma");
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for round in 0..rounds {
        std::fs::remove_dir_all(&copy).ok();
        testing::copy_directory(&path, &copy).unwrap();
        let mut names = files(&copy.join("tree"), "run");
        names.push(copy.join("tree/MANIFEST"));
        let file = &names[random.below(names.len() as u64) as usize];
        let original = std::fs::read(file).unwrap();
        let mut bytes = original.clone();
        let context = format!("round {round}, {} {}", file.display(), damage(&mut random, &mut bytes));
        // All bytes of a run count. Those of the manifest may be of an older list, or look like a list that a crash cut
        // off: then the one before is used, and the log is replayed from there.
        let must_be_found = file.extension().is_some() && bytes != original;
        std::fs::write(file, bytes).unwrap();
        match Database::open_with(&copy, options()) {
            Err(error) => {
                assert_clear(&error, &context);
                tally.told += 1;
            }
            Ok(db) => {
                let is_harmed = read_everything(&db, &contents, &context) > 0;
                let is_found = match db.maintenance().check() {
                    Ok(report) => !report.is_sound(),
                    Err(error) => is_corrupt(&error),
                };
                assert!(is_found || !is_harmed, "{context}: harmed, and check finds nothing");
                assert!(is_found || !must_be_found, "{context}: check finds nothing");
                tally.told += u64::from(is_harmed);
                tally.unharmed += u64::from(!is_harmed);
            }
        }
        if round % 20 == 0 {
            let db = Database::rebuild(&copy, options(), |_| ()).unwrap();
            assert_eq!(read_everything(&db, &contents, &context), 0, "{context}: a rebuild repairs it");
            assert!(db.maintenance().check().unwrap().is_sound());
        }
    }
    assert!(tally.told > 0, "no damage was ever detected: the test has no effect");
    tally
}

#[test]
fn flipped_bit_in_the_tree_is_reported_or_harmless_and_rebuild_repairs_it() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let rounds = flip_count().div_ceil(if compression == Compression::None { 1 } else { 4 });
        let tally = check_damaged_trees(seed() + 1, rounds, compression, |random, bytes| {
            let bit = random.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            format!("bit {bit}")
        });
        println!("tree ({compression}): {tally:?} of {rounds} flips, none wrong, none silently missing");
    }
}

/// Faults of a disk that misdirects or loses writes.
#[test]
fn damaged_page_of_the_tree_is_reported_or_harmless() {
    let rounds = flip_count().div_ceil(4);
    let tally = check_damaged_trees(seed() + 2, rounds, Compression::Lz4, |random, bytes| {
        // A sector, or what there is of a shorter file.
        let sector_bytes = bytes.len().min(512);
        let sector_count = (bytes.len() / sector_bytes) as u64;
        let mut sector = || random.below(sector_count) as usize * sector_bytes;
        let (from, to) = (sector(), sector());
        match random.below(5) {
            0 | 1 => {
                bytes[to..to + sector_bytes].fill(0);
                format!("zeros at {to}")
            }
            2 | 3 => {
                bytes.copy_within(from..from + sector_bytes, to);
                format!("what is at {from} also at {to}")
            }
            _ => {
                bytes.truncate(to + random.below(sector_bytes as u64) as usize);
                format!("cut to {} bytes", bytes.len())
            }
        }
    });
    println!("pages of the tree: {tally:?} of {rounds}, none wrong, none silently missing");
}

/// A rebuild that finds damage in the log must not remove the tree, through which everything else can still be read.
#[test]
fn failed_rebuild_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = original(directory.path(), Compression::None);
    let first = &files(&path.join("log"), "log")[0];
    flip(first, 8 * 5000);
    let error = Database::rebuild(&path, options(), |_| ()).unwrap_err();
    assert_clear(&error, "rebuild");
    let db = Database::open_with(&path, options()).unwrap();
    let error_count = read_everything(&db, &contents, "after the rebuild");
    assert!(error_count <= 2, "one record and the feed over it may be damaged: {error_count}");
}
