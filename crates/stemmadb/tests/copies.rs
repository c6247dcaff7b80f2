//! A copy put together of a database in use, as `cp -r` may: each file as it was at another moment, files that came later not at all. It
//! opens with what was there at one moment, or it is refused; it never answers from a tree that is ahead of its log.
//!
//! `STEMMA_COPIES` says how many copies are put together by chance (default 150), `STEMMA_COPY_SEED` which (default 1).

use std::collections::BTreeMap;
use std::path::Path;

use stemmadb::testing::{self, Random};
use stemmadb::{Database, Durability, Error, ErrorKind, Options, Result, Sequence, Value, field};

/// A multiple of [`BETWEEN`].
const STEPS: u64 = 96;

/// Every so many steps a moment is kept.
const BETWEEN: u64 = 6;

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    let options = Options::new().background(false).durability(Durability::Sync).cache_bytes(0);
    testing::small(options, 1 << 20, 4 << 10, 30)
}

type Files = BTreeMap<String, Vec<u8>>;

/// The files of a database at one moment, all of it flushed, and what it said.
struct Moment {
    log: Files,
    tree: Files,
    says: Vec<String>,
    /// How often it was compacted before.
    compactions: usize,
}

fn files(directory: &Path) -> Files {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// Everything a database says, of which some is read from the log, and some from the tree alone.
fn says(db: &Database) -> Result<Vec<String>> {
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

/// Moments of one database, and what it said at first and after each step.
fn moments(seed: u64) -> (Vec<Moment>, Vec<Vec<String>>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("source.stemma");
    let db = Database::open_with(&path, options()).unwrap();
    let mut random = Random::new(seed);
    let (mut moments, mut states, mut compactions) = (Vec::new(), vec![says(&db).unwrap()], 0);
    for number in 1..=STEPS {
        match number % 32 {
            20 => {
                db.maintenance().compact().unwrap();
                compactions += 1;
            }
            _ => step(&db, &mut random).unwrap(),
        }
        states.push(says(&db).unwrap());
        if number % BETWEEN == 0 {
            let (log, tree) = (files(&path.join("log")), files(&path.join("tree")));
            moments.push(Moment { log, tree, says: says(&db).unwrap(), compactions });
        }
    }
    let most = moments.iter().map(|moment| moment.log.len()).max();
    assert!(most > Some(3), "at most {most:?} segments are no row of them");
    (moments, states)
}

/// What became of a copy.
enum Outcome {
    Says(Vec<String>),
    /// It was not opened.
    Refused(Error),
    /// It was opened, and some of it can't be read.
    Opened(Error),
}

fn open_copy(log: &Files, tree: &Files) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("copy.stemma");
    for (name, files) in [("log", log), ("tree", tree)] {
        std::fs::create_dir_all(path.join(name)).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(path.join(name).join(file), bytes).unwrap());
    }
    match Database::open_with(&path, options()) {
        Err(error) => Outcome::Refused(error),
        Ok(db) => match says(&db) {
            Err(error) => Outcome::Opened(error),
            Ok(lines) => {
                let report = db.maintenance().check().unwrap();
                assert!(report.is_sound(), "what says everything agrees: {:#?}", report.damages);
                Outcome::Says(lines)
            }
        },
    }
}

fn expect_clear(what: &str, error: &Error) {
    let names_it = ["log", "segment", "tree"].iter().any(|place| error.message().contains(place));
    assert!(error.kind() == ErrorKind::Corrupt && names_it, "{what}: {error:?}");
}

#[test]
fn a_log_and_a_tree_of_different_moments_agree_or_are_refused() {
    let (moments, _) = moments(number_from("STEMMA_COPY_SEED", 1));
    let (mut opened, mut refused) = (0, 0);
    for (at, log) in moments.iter().enumerate() {
        for (with, tree) in moments.iter().enumerate() {
            let what = format!("the log of moment {at}, the tree of moment {with}");
            match open_copy(&log.log, &tree.tree) {
                Outcome::Says(says) => {
                    assert_eq!(says, log.says, "{what}: the log is the truth");
                    opened += 1;
                }
                Outcome::Refused(error) => {
                    expect_clear(&what, &error);
                    let is_left_behind = with <= at && tree.compactions == log.compactions;
                    assert!(!is_left_behind, "{what}: the log has all that the tree lacks: {error:?}");
                    refused += 1;
                }
                Outcome::Opened(error) => panic!("{what}: it is opened, and can't be read: {error:?}"),
            }
        }
    }
    println!("copies of two moments: {opened} opened, {refused} refused");
    assert!(opened > moments.len() && refused > 0, "{opened} opened, {refused} refused");
}

#[test]
fn files_of_many_moments_are_one_state_or_refused() {
    let seed = number_from("STEMMA_COPY_SEED", 1);
    let (moments, states) = moments(seed);
    let mut random = Random::new(seed ^ 0xc0);
    let (mut opened, mut refused) = (0, 0);
    let count = number_from("STEMMA_COPIES", 150);
    for number in 0..count {
        // Names are listed first; then each file is read, some later than others.
        let listed = random.below(moments.len() as u64);
        let last = listed + random.below(moments.len() as u64 - listed);
        let mut moment = || &moments[(listed + random.below(last - listed + 1)) as usize];
        let names = moments[listed as usize].log.keys();
        let log: Files = names.filter_map(|name| Some((name.clone(), moment().log.get(name)?.clone()))).collect();
        let tree = moment().tree.clone();
        // A segment that was given up before its turn came is missed by who copies; then there may be less.
        let is_whole = log.len() == moments[listed as usize].log.len();
        let earliest = if is_whole { (listed + 1) * BETWEEN } else { 0 };
        let there = &states[earliest as usize..=((last + 1) * BETWEEN) as usize];
        let what = format!("copy {number}, listed at moment {listed}, read until {last}");
        match open_copy(&log, &tree) {
            Outcome::Says(says) => {
                let nearest = there.iter().find(|state| state[0] == says[0]);
                let differs = nearest.map(|state| says.iter().zip(state).find(|(found, there)| found != there));
                assert!(there.contains(&says), "{what}: never was it so: {} {differs:#?}", says[0]);
                opened += 1;
            }
            Outcome::Refused(error) => {
                expect_clear(&what, &error);
                refused += 1;
            }
            Outcome::Opened(error) => panic!("{what}: it is opened, and can't be read: {error:?}"),
        }
    }
    println!("copies of many moments, seed {seed}: {count} copies, {opened} opened, {refused} refused");
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}
