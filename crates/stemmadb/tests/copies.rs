//! Copies of a database in use, as `cp -r` makes them: each file from a different time, and later files missing. A copy
//! either opens with a state that existed, or is refused; it never reads from a tree that is ahead of its log.
//!
//! `STEMMA_COPIES` sets the number of random copies (default 150), `STEMMA_COPY_SEED` the seed (default 1).

use std::collections::BTreeMap;
use std::path::Path;

use stemmadb::testing::{self, Random};
use stemmadb::{Database, Durability, Error, ErrorKind, Options, Result, Sequence, Value, field};

/// A multiple of [`BETWEEN`].
const STEPS: u64 = 96;

/// Number of steps between two saved states.
const BETWEEN: u64 = 6;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    let options = Options::new().background(false).durability(Durability::Sync).cache_bytes(0);
    testing::with_small_limits(options, 1 << 20, 4 << 10, 30)
}

type Files = BTreeMap<String, Vec<u8>>;

/// The flushed files of a database at one time, and its contents.
struct SavedState {
    log: Files,
    tree: Files,
    /// The key file, if the database is encrypted.
    keys: Option<Vec<u8>>,
    content: Vec<String>,
    /// Number of compactions before.
    compactions: usize,
}

fn files(directory: &Path) -> Files {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// The whole content of a database, some of it read from the log and some from the tree alone.
fn content(db: &Database) -> Result<Vec<String>> {
    let mut lines = vec![format!("at {}", db.sequence())];
    for change in db.changes(Sequence::ZERO)?.documents(true).run() {
        let change = change?;
        lines.push(format!("{} {} {:?}", change.sequence, change.id, change.document));
    }
    for year in 0..3 {
        lines.push(format!("{} of {year}", db.find(field("year").eq(year)).count()?));
    }
    Ok(lines)
}

fn step(db: &Database, random: &mut Random) -> Result<()> {
    let id = format!("document-{}", random.below(12));
    match random.below(30) {
        0..=3 => db.maintenance().checkpoint()?,
        4 | 5 => {
            if let Some(found) = db.get(&id)? {
                db.delete(&id, found.revision())?;
            }
        }
        _ => {
            let fill = format!("{:0width$}", random.below(9), width = random.below(600) as usize);
            let body = format!(r#"{{"year":{},"fill":"{fill}"}}"#, random.below(3));
            db.upsert(&id, &Value::parse(body.as_bytes())?)?;
        }
    }
    Ok(())
}

/// Saved states of one database, and its contents initially and after each step.
fn saved_states(seed: u64) -> (Vec<SavedState>, Vec<Vec<String>>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let mut random = Random::new(seed);
    let (mut saved_states, mut states, mut compactions) = (Vec::new(), vec![content(&db).unwrap()], 0);
    for number in 1..=STEPS {
        match number % 32 {
            20 => {
                db.maintenance().compact().unwrap();
                compactions += 1;
            }
            _ => step(&db, &mut random).unwrap(),
        }
        states.push(content(&db).unwrap());
        if number % BETWEEN == 0 {
            let (log, tree) = (files(&path.join("log")), files(&path.join("tree")));
            let keys = std::fs::read(path.join("KEYS")).ok();
            saved_states.push(SavedState { log, tree, keys, content: content(&db).unwrap(), compactions });
        }
    }
    let most = saved_states.iter().map(|saved| saved.log.len()).max();
    assert!(most > Some(3), "at most {most:?} segments are too few");
    (saved_states, states)
}

/// The result of opening a copy.
enum Outcome {
    Readable(Vec<String>),
    /// Opening failed.
    Refused(Error),
    /// It was opened, but some of it can't be read.
    Unreadable(Error),
}

fn open_copy(log: &Files, tree: &Files, keys: Option<&[u8]>) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("copy.stemma");
    for (name, files) in [("log", log), ("tree", tree)] {
        std::fs::create_dir_all(path.join(name)).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(path.join(name).join(file), bytes).unwrap());
    }
    if let Some(keys) = keys {
        std::fs::write(path.join("KEYS"), keys).unwrap();
    }
    match Database::open_with(&path, options()) {
        Err(error) => Outcome::Refused(error),
        Ok(db) => match content(&db) {
            Err(error) => Outcome::Unreadable(error),
            Ok(lines) => {
                let report = db.maintenance().check().unwrap();
                assert!(report.is_sound(), "a readable copy is consistent: {:#?}", report.damages);
                Outcome::Readable(lines)
            }
        },
    }
}

fn expect_clear(what: &str, error: &Error) {
    let names_it = ["log", "segment", "tree"].iter().any(|part_name| error.message().contains(part_name));
    assert!(error.kind() == ErrorKind::Corrupt && names_it, "{what}: {error:?}");
}

#[test]
fn log_and_tree_of_different_times_agree_or_are_refused() {
    let (saved_states, _) = saved_states(number_from("STEMMA_COPY_SEED", 1));
    let (mut opened, mut refused) = (0, 0);
    for (at, log) in saved_states.iter().enumerate() {
        for (with, tree) in saved_states.iter().enumerate() {
            let what = format!("the log of state {at}, the tree of state {with}");
            match open_copy(&log.log, &tree.tree, log.keys.as_deref()) {
                Outcome::Readable(content) => {
                    assert_eq!(content, log.content, "{what}: the log determines the content");
                    opened += 1;
                }
                Outcome::Refused(error) => {
                    expect_clear(&what, &error);
                    let is_behind = with <= at && tree.compactions == log.compactions;
                    assert!(!is_behind, "{what}: the log has everything that the tree lacks: {error:?}");
                    refused += 1;
                }
                Outcome::Unreadable(error) => panic!("{what}: it opens but can't be read: {error:?}"),
            }
        }
    }
    println!("copies of two moments: {opened} opened, {refused} refused");
    assert!(opened > saved_states.len() && refused > 0, "{opened} opened, {refused} refused");
}

#[test]
fn files_of_different_times_are_one_state_or_refused() {
    let seed = number_from("STEMMA_COPY_SEED", 1);
    let (saved_states, states) = saved_states(seed);
    let mut random = Random::new(seed ^ 0xc0);
    let (mut opened, mut refused) = (0, 0);
    let count = number_from("STEMMA_COPIES", 150);
    for number in 0..count {
        // The directory is listed first; then each file is read, some later than others.
        let listed = random.below(saved_states.len() as u64);
        let last = listed + random.below(saved_states.len() as u64 - listed);
        let mut saved = || &saved_states[(listed + random.below(last - listed + 1)) as usize];
        let names = saved_states[listed as usize].log.keys();
        let log: Files = names.filter_map(|name| Some((name.clone(), saved().log.get(name)?.clone()))).collect();
        let tree = saved().tree.clone();
        // A segment retired before it was copied is missing; the copy may then contain less.
        let is_whole = log.len() == saved_states[listed as usize].log.len();
        let earliest = if is_whole { (listed + 1) * BETWEEN } else { 0 };
        let there = &states[earliest as usize..=((last + 1) * BETWEEN) as usize];
        let what = format!("copy {number}, listed at state {listed}, read until {last}");
        match open_copy(&log, &tree, saved_states[0].keys.as_deref()) {
            Outcome::Readable(content) => {
                let nearest = there.iter().find(|state| state[0] == content[0]);
                let differs = nearest.map(|state| content.iter().zip(state).find(|(found, there)| found != there));
                assert!(there.contains(&content), "{what}: not a state that existed: {} {differs:#?}", content[0]);
                opened += 1;
            }
            Outcome::Refused(error) => {
                expect_clear(&what, &error);
                refused += 1;
            }
            Outcome::Unreadable(error) => panic!("{what}: it opens but can't be read: {error:?}"),
        }
    }
    println!("copies of many moments, seed {seed}: {count} copies, {opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}
