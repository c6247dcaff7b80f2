//! History: the cost of keeping the past, reads of the past, backups, branches and restores; the cost of encryption.

use std::path::{Path, PathBuf};
use std::time::Instant;

use stemmadb::backup::{At, DirectoryTarget, RestoreOptions, restore};
use stemmadb::past::Retention;
use stemmadb::{Durability, Selector, Sequence, Snapshot, Value, field};

use super::{BATCH_COUNT, Bench, SEED, all_indexed};
use crate::Result;
use crate::engine::{Caching, Sqlite, Stemma};
use crate::harness::{
    Contender, Heading, Random, ResultRow, Samples, Stopwatch, Unit, alternate, remove, sync_file_system,
};
use crate::workload::{Corpus, OF_A_THOUSAND, Records};

/// The name of the same database without history.
const OFF: &str = "history-off";
/// The name of the newest state.
const PRESENT: &str = "present";
/// One document of so many is replaced after the sequence that is read.
const REPLACED_SHARE: u64 = 100;
/// Reads by id for one sample.
const GET_COUNT: usize = 1_000;
/// Two databases get this many batches each in turns: the target is a difference of 3 %, and whole inserts one after
/// the other differ by more, from run to run.
const TURN_BATCH_COUNT: usize = 5;
/// Repetitions of reads by id, beside those of other rows, for the same reason.
const PRECISE: usize = 4;
/// The present may be slower by 3 % if the past is kept.
const PRESENT_TARGET: f64 = 0.97;
/// A read by id as of the past may take three times as long, a query half as long again.
const PAST_GET_TARGET: f64 = 1.0 / 3.0;
const PAST_QUERY_TARGET: f64 = 1.0 / 1.5;
/// History may take this share of the bytes of the records that it keeps.
const HISTORY_SHARE_MAX: f64 = 0.35;
/// The name of the same database without encryption, and how fast an encrypted one must be beside it: when it is
/// written, read from files that the operating system caches, and read from its own cache.
const PLAIN: &str = "plain";
const ENCRYPTED_INSERT_TARGET: f64 = 0.97;
const ENCRYPTED_GET_TARGET: f64 = 0.9;
const ENCRYPTED_CACHED_GET_TARGET: f64 = 0.97;
/// Of the speed of `cp`.
const RESTORE_SPEED: f64 = 0.5;
const BRANCH_MS_MAX: f64 = 50.0;
const BACKUP_MS_MAX: f64 = 1_000.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.document_count);
    inserts(bench, &corpus)?;
    let path = bench.scratch.fresh_path("past.stemma")?;
    let then = make_past(&path, &corpus)?;
    reads(bench, &corpus, &path, then)?;
    copies(bench, &corpus, &path)?;
    size(bench, &corpus)?;
    encryption(bench, &corpus)
}

/// Opens a database, encrypted or not.
fn open_either(path: &Path, name: &str, caching: Caching) -> Result<Stemma> {
    match name {
        PLAIN => Stemma::open_durable(path, Durability::None, caching),
        _ => Stemma::open_encrypted(path, caching),
    }
}

/// Inserts and reads by id, of an encrypted database and of one that is not.
fn encryption(bench: &mut Bench, corpus: &Corpus) -> Result<()> {
    let mut paths = Vec::new();
    for name in ["encrypted", PLAIN] {
        paths.push(bench.scratch.fresh_path(&format!("{name}.stemma"))?);
    }
    let open = |path, name| open_either(path, name, Caching::Default);
    let databases = [open(&paths[0], "encrypted")?, open(&paths[1], PLAIN)?];
    insert_in_turns(bench, corpus, "encrypted: insert", databases, (PLAIN, ENCRYPTED_INSERT_TARGET))?;
    let rows = [
        ("encrypted: get by id, uncached", Caching::Off, corpus.len(), ENCRYPTED_GET_TARGET),
        // All of these documents fit in the cache.
        ("encrypted: get by id, cached", Caching::Default, corpus.len().min(10_000), ENCRYPTED_CACHED_GET_TARGET),
    ];
    for (row, caching, range, target) in rows {
        encrypted_gets(bench, corpus, &paths, (row, caching, range, target))?;
    }
    Ok(())
}

/// Reads documents among the first `range` by id.
fn encrypted_gets(
    bench: &mut Bench,
    corpus: &Corpus,
    paths: &[PathBuf],
    (row, caching, range, target): (&str, Caching, usize, f64),
) -> Result<()> {
    let stopwatch = Stopwatch::new(bench.clock);
    let mut contenders = Vec::new();
    for (name, path) in ["encrypted", PLAIN].into_iter().zip(paths) {
        let stemma = open_either(path, name, caching)?;
        for number in 0..range {
            stemma.database().get(corpus.id(number))?.ok_or("a document is missing")?;
        }
        let stopwatch = &stopwatch;
        contenders.push(Contender::new(name, move |repetition, samples: &mut Samples| {
            for turn in 0..10 {
                let mut random = Random::new((repetition * 10 + turn) as u64);
                samples.push(stopwatch.nanoseconds(GET_COUNT, || {
                    for _ in 0..GET_COUNT {
                        let id = corpus.id(random.below(range as u64) as usize);
                        stemma.database().get(id)?.ok_or_else(|| format!("{id} is missing"))?;
                    }
                    Ok(())
                })?);
            }
            Ok(())
        }));
    }
    let samples = alternate(bench.scale.repetition_count * PRECISE, &mut contenders)?;
    drop(contenders);
    let heading = heading(bench, row, Unit::Nanoseconds, Some((PLAIN, target)));
    bench.push(ResultRow::new(heading, &samples[0], &[(PLAIN, &samples[1])]))
}

fn heading(bench: &Bench, row: &str, unit: Unit, target: Option<(&'static str, f64)>) -> Heading {
    Heading {
        experiment: "history",
        targets: target.into_iter().collect(),
        ..bench.heading(row, bench.scale.document_count, false, unit)
    }
}

fn open(path: &Path, retention: Retention) -> Result<Stemma> {
    let stemma = Stemma::open_durable(path, Durability::None, Caching::Default)?;
    stemma.database().history().keep(retention)?;
    Ok(stemma)
}

/// Inserts, and inserts, replaces and compacts, with and without history.
fn inserts(bench: &mut Bench, corpus: &Corpus) -> Result<()> {
    let names = [("on", Retention::Everything), (OFF, Retention::Nothing)];
    let mut paths = Vec::new();
    for (name, _) in names {
        paths.push(bench.scratch.fresh_path(&format!("{name}.stemma"))?);
    }
    let databases = [open(&paths[0], names[0].1)?, open(&paths[1], names[1].1)?];
    insert_in_turns(bench, corpus, "insert", databases, (OFF, PRESENT_TARGET))?;

    let mut contenders = Vec::new();
    for ((name, retention), path) in names.into_iter().zip(&paths) {
        contenders.push(Contender::new(name, move |_, samples| {
            remove(path)?;
            let stemma = open(path, retention)?;
            let begun = Instant::now();
            corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.insert(&batch))?;
            corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.upsert_all(&batch))?;
            stemma.database().maintenance().compact()?;
            samples.push(begun.elapsed().as_nanos() as f64 / corpus.len() as f64);
            stemma.close()
        }));
    }
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let unit = Unit::PerSecond("documents/s");
    let heading = heading(bench, "insert, replace and compact", unit, Some((OFF, PRESENT_TARGET)));
    bench.push(ResultRow::new(heading, &samples[0], &[(OFF, &samples[1])]))
}

/// Inserts all documents into two databases, a few batches in turn (A B B A).
fn insert_in_turns(
    bench: &mut Bench,
    corpus: &Corpus,
    row: &str,
    databases: [Stemma; 2],
    (peer, target): (&'static str, f64),
) -> Result<()> {
    let mut samples = [Samples::default(), Samples::default()];
    let batches: Vec<_> = corpus.batches(BATCH_COUNT).collect();
    let turns: Vec<_> = batches.chunks(TURN_BATCH_COUNT).collect();
    for repetition in turns.chunks(turns.len().div_ceil(bench.scale.repetition_count)) {
        samples.iter_mut().for_each(Samples::begin_repetition);
        for (number, turn) in repetition.iter().enumerate() {
            let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let begun = Instant::now();
                turn.iter().try_for_each(|batch| databases[which].insert(batch))?;
                let count: usize = turn.iter().map(Vec::len).sum();
                samples[which].push(begun.elapsed().as_nanos() as f64 / count as f64);
            }
        }
    }
    for database in databases {
        database.close()?;
    }
    let heading = heading(bench, row, Unit::PerSecond("documents/s"), Some((peer, target)));
    bench.push(ResultRow::new(heading, &samples[0], &[(peer, &samples[1])]))
}

/// A database that keeps its past, with a hundredth of the documents replaced since the returned sequence.
fn make_past(path: &Path, corpus: &Corpus) -> Result<Sequence> {
    let stemma = open(path, Retention::Everything)?;
    corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.insert(&batch))?;
    let then = stemma.database().sequence();
    let replaced = corpus.documents(0..corpus.len() / REPLACED_SHARE as usize);
    let changed: Vec<(&str, String)> =
        replaced.iter().map(|(id, json)| (*id, json.replacen('{', "{\"replaced\":true,", 1))).collect();
    let changed: Vec<(&str, &str)> = changed.iter().map(|(id, json)| (*id, json.as_str())).collect();
    changed.chunks(BATCH_COUNT).try_for_each(|batch| stemma.upsert_all(batch))?;
    stemma.database().maintenance().compact()?;
    stemma.close()?;
    Ok(then)
}

/// Reads of the past beside the same reads of the present.
fn reads(bench: &mut Bench, corpus: &Corpus, path: &Path, then: Sequence) -> Result<()> {
    let stemma = Stemma::open(path, false, Caching::Default)?;
    let db = stemma.database();
    let (past, present) = (db.as_of(then)?, db.snapshot()?);
    let last: Value = Value::parse(corpus.json(corpus.len() - 1).as_bytes())?;
    let city = last.get(OF_A_THOUSAND[0]).ok_or("a document has no city")?;
    let condition = field(OF_A_THOUSAND[0]).eq(city.clone());
    let (count, replaced) = (past.find(condition.clone()).count()?, past.find(field("replaced").exists()).count()?);
    if count == 0 || (count, replaced) != (present.find(condition.clone()).count()?, 0) {
        return Err(format!("the past has {count} documents of a condition, and {replaced} that are newer").into());
    }
    let stopwatch = Stopwatch::new(bench.clock);
    let gets = |snapshot: &Snapshot, repetition: usize| -> Result<()> {
        let mut random = Random::new(repetition as u64);
        for _ in 0..GET_COUNT {
            let id = corpus.id(random.below(corpus.len() as u64) as usize);
            snapshot.get(id)?.ok_or_else(|| format!("{id} is missing"))?;
        }
        Ok(())
    };
    let query = |snapshot: &Snapshot, _: usize| -> Result<()> {
        let found = snapshot.find(condition.clone()).documents()?.len() as u64;
        if found == count { Ok(()) } else { Err(format!("{found} documents instead of {count}").into()) }
    };
    type Read<'r> = &'r dyn Fn(&Snapshot, usize) -> Result<()>;
    let rows: [(&str, Read<'_>, usize, Unit, f64); 2] = [
        ("get by id", &gets, GET_COUNT, Unit::Nanoseconds, PAST_GET_TARGET),
        ("equality, 1 of 1,000: documents", &query, 1, Unit::Microseconds, PAST_QUERY_TARGET),
    ];
    for (row, read, per_sample, unit, target) in rows {
        let mut contenders = Vec::new();
        for (number, (name, snapshot)) in [("past", &past), (PRESENT, &present)].into_iter().enumerate() {
            let stopwatch = &stopwatch;
            contenders.push(Contender::new(name, move |repetition, samples: &mut Samples| {
                for turn in 0..10 {
                    // Other documents than the other contender reads: both have the same cache.
                    let seed = (repetition * 10 + turn) * 2 + number;
                    samples.push(stopwatch.nanoseconds(per_sample, || read(snapshot, seed))?);
                }
                Ok(())
            }));
        }
        let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
        drop(contenders);
        let heading = heading(bench, &format!("as of the past: {row}"), unit, Some((PRESENT, target)));
        bench.push(ResultRow::new(heading, &samples[0], &[(PRESENT, &samples[1])]))?;
    }
    drop((past, present));
    let mut opened = Samples::default();
    for _ in 0..bench.scale.repetition_count {
        opened.push_repetition(stopwatch.nanoseconds(1, || {
            db.as_of(then)?.find(Selector::everything()).count()?;
            Ok(())
        })?);
    }
    let heading = heading(bench, "as of the past: snapshot and count of everything", Unit::Microseconds, None);
    bench.push(ResultRow::new(heading, &opened, &[]))?;
    stemma.close()
}

/// Branches, backups and restores beside copies of the files and SQLite's.
fn copies(bench: &mut Bench, corpus: &Corpus, path: &Path) -> Result<()> {
    let layout = all_indexed(false);
    let sqlite_path = bench.scratch.fresh_path("past.sqlite")?;
    let sqlite = Sqlite::create(&sqlite_path, &layout)?;
    corpus.batches(BATCH_COUNT).try_for_each(|batch| sqlite.insert(&batch))?;
    let stemma = Stemma::open(path, false, Caching::Default)?;
    let db = stemma.database();
    let fresh = |name: &str| bench.scratch.fresh_path(name);
    let (mut branch, mut backup, mut vacuum, mut restored, mut checked, mut copied) = <[Samples; 6]>::default().into();
    for _ in 0..bench.scale.repetition_count {
        let branch_path = fresh("branch.stemma")?;
        timed(bench, &mut branch, || Ok(db.maintenance().branch(&branch_path, At::Latest)?))?;
        let backup_path = fresh("backup")?;
        timed(bench, &mut backup, || {
            db.maintenance().backup(&backup_path)?;
            Ok(())
        })?;
        let vacuum_path = fresh("vacuum.sqlite")?;
        timed(bench, &mut vacuum, || sqlite.vacuum_into(&vacuum_path))?;
        // Until the database answers.
        let restored_path = fresh("restored.stemma")?;
        timed(bench, &mut restored, || {
            restore(&DirectoryTarget::open(&backup_path)?, &restored_path, RestoreOptions::new().check(false))?;
            Stemma::open(&restored_path, false, Caching::Default)?.close()
        })?;
        let checked_path = fresh("checked.stemma")?;
        timed(bench, &mut checked, || {
            restore(&DirectoryTarget::open(&backup_path)?, &checked_path, RestoreOptions::new())?;
            Ok(())
        })?;
        let copied_path = fresh("copied.stemma")?;
        timed(bench, &mut copied, || copy_directory(&restored_path, &copied_path))?;
    }
    let bound = |ms: f64| Samples::from_costs([ms * 1e6]);
    push_copy(bench, "branch", &branch, &[("cp", &copied), ("bound", &bound(BRANCH_MS_MAX))])?;
    let peers = [("cp", &copied), ("sqlite-vacuum-into", &vacuum), ("bound", &bound(BACKUP_MS_MAX))];
    push_copy(bench, "hot backup", &backup, &peers)?;
    push_restore(bench, "restore", &restored, &copied, Some(RESTORE_SPEED))?;
    push_restore(bench, "restore and check", &checked, &copied, None)?;
    stemma.close()?;
    sqlite.close()
}

fn push_copy(bench: &mut Bench, row: &str, ours: &Samples, peers: &[(&'static str, &Samples)]) -> Result<()> {
    let bound = peers.iter().find(|(name, _)| *name == "bound").map(|(name, _)| (*name, 1.0));
    let heading = heading(bench, row, Unit::Milliseconds, bound);
    bench.push(ResultRow::new(heading, ours, peers))
}

fn push_restore(bench: &mut Bench, row: &str, ours: &Samples, copied: &Samples, speed: Option<f64>) -> Result<()> {
    let heading = heading(bench, row, Unit::Milliseconds, speed.map(|speed| ("cp", speed)));
    bench.push(ResultRow::new(heading, ours, &[("cp", copied)]))
}

fn timed(bench: &Bench, samples: &mut Samples, work: impl FnOnce() -> Result<()>) -> Result<()> {
    sync_file_system(bench.scratch.path());
    let begun = Instant::now();
    work()?;
    samples.push_repetition(begun.elapsed().as_nanos() as f64);
    Ok(())
}

/// Copies a directory byte by byte, and flushes the copy.
fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_directory(&entry.path(), &target)?,
            false => {
                std::fs::copy(entry.path(), &target)?;
                std::fs::File::open(&target)?.sync_all()?;
            }
        }
    }
    Ok(())
}

/// The bytes of history beside those of the records that it keeps.
fn size(bench: &mut Bench, corpus: &Corpus) -> Result<()> {
    let path = bench.scratch.fresh_path("size.stemma")?;
    let stemma = open(&path, Retention::Everything)?;
    corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.insert(&batch))?;
    let raw_bytes = stemma.database().info()?.log_bytes;
    corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.upsert_all(&batch))?;
    stemma.database().maintenance().compact()?;
    let share = stemma.database().history().byte_count() as f64 / raw_bytes as f64;
    let bound = Samples::from_costs([HISTORY_SHARE_MAX]);
    let heading =
        heading(bench, "history beside the records that it keeps", Unit::Amount("times"), Some(("bound", 1.0)));
    bench.push(ResultRow::new(heading, &Samples::from_costs([share]), &[("bound", &bound)]))?;
    stemma.close()
}
