//! Process kills: a process killed at any time loses no acknowledged write and leaves no partial transaction.
//!
//! A child process writes with several threads and reports acknowledgments on a pipe; this process kills it with
//! SIGKILL after a random time, opens the database and compares. `STEMMA_KILLS` sets the number of kills (default 20;
//! the long run does 2,000). Negative control: seen to fail if writes reach the system some milliseconds after they are
//! acknowledged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stemmadb::backup::{self, At, BackupOptions, DirectoryTarget, FollowOptions, RestoreOptions};
use stemmadb::testing::LOG_STORAGE_VARIABLE;
use stemmadb::{Database, Durability, Options, Value, field};

const CHILD: &str = "STEMMA_KILL_CHILD";
const THREADS: u64 = 4;
/// Documents inserted per transaction.
const PARTS: u64 = 3;
/// A transaction deletes the documents inserted by the one this many before it.
const LIFE: u64 = 8;
/// Cycles per database.
const CYCLES_PER_DATABASE: u64 = 20;

fn options(durability: Durability) -> Options {
    Options::new().segment_bytes(256 << 10).memory_bytes(1 << 20).durability(durability)
}

fn part_id(thread: u64, number: u64, part: u64) -> String {
    format!("{thread}-{number}-{part}")
}

fn part(thread: u64, number: u64, part: u64) -> Value {
    let text = format!(
        r#"{{"thread":{thread},"number":{number},"part":{part},"fill":"{}"}}"#,
        "x".repeat(1 + (number * 37 % 400) as usize)
    );
    Value::parse(text.as_bytes()).unwrap()
}

/// The last transaction of a thread, according to its counter document.
fn reached(db: &Database, thread: u64) -> u64 {
    let counter = db.get(&format!("counter-{thread}")).unwrap();
    counter.map_or(0, |counter| counter.get("number").unwrap().unwrap().as_u64().unwrap())
}

fn transact(db: &Database, thread: u64, number: u64) {
    db.write(|tx| {
        for at in 0..PARTS {
            tx.insert(&part_id(thread, number, at), &part(thread, number, at))?;
        }
        if number > LIFE {
            for at in 0..PARTS {
                let id = part_id(thread, number - LIFE, at);
                let old = tx.get(&id)?.expect("it was inserted eight transactions ago");
                tx.delete(&id, old.revision())?;
            }
        }
        let counter = Value::parse(format!(r#"{{"number":{number}}}"#).as_bytes())?;
        tx.upsert(&format!("counter-{thread}"), &counter)
    })
    .unwrap();
}

/// The child: writes until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let durability = if path.contains("sync") { Durability::Sync } else { Durability::None };
    let db = Database::open_with(&path, options(durability)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = db.clone();
            scope.spawn(move || {
                for number in reached(&db, thread) + 1.. {
                    transact(&db, thread, number);
                    // One write call, so that lines of several threads are not interleaved.
                    std::io::stdout().write_all(format!("ack {thread} {number}\n").as_bytes()).unwrap();
                }
            });
        }
    });
}

/// Runs the child for a while, kills it, and returns the newest transaction that each thread reported as acknowledged.
fn run_and_kill(path: &Path, duration: Duration) -> BTreeMap<u64, u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut acknowledged = BTreeMap::new();
        for line in lines.lines().map_while(Result::ok) {
            // The first line may follow output of the test runner.
            let Some(at) = line.find("ack ") else { continue };
            let numbers: Vec<u64> = line[at + 4..].split(' ').filter_map(|word| word.parse().ok()).collect();
            if let [thread, number] = numbers[..] {
                acknowledged.insert(thread, number);
            }
        }
        acknowledged
    });
    std::thread::sleep(duration);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// Checks that no acknowledged write is lost, no transaction is partial, and the database is consistent. Returns the
/// number of transactions.
fn verify(path: &Path, acknowledged: &BTreeMap<u64, u64>, floor: &mut BTreeMap<u64, u64>) -> u64 {
    let db = Database::open_with(path, options(Durability::Sync)).unwrap();
    let mut transactions = 0;
    for thread in 0..THREADS {
        let reached = reached(&db, thread);
        let promised = acknowledged.get(&thread).copied().unwrap_or(0).max(floor.get(&thread).copied().unwrap_or(0));
        assert!(reached >= promised, "thread {thread}: {promised} was acknowledged, {reached} is there");
        for number in reached.saturating_sub(LIFE + 3).max(1)..=reached + 2 {
            let should_live = number <= reached && number + LIFE > reached;
            for at in 0..PARTS {
                let found = db.get(&part_id(thread, number, at)).unwrap().map(|found| found.value().unwrap());
                assert_eq!(found, should_live.then(|| part(thread, number, at)), "{thread}-{number}-{at} of {reached}");
            }
        }
        let indexed = db.find(field("thread").eq(thread)).count().unwrap();
        assert_eq!(indexed, reached.min(LIFE) * PARTS, "the index matches the writes of thread {thread}");
        floor.insert(thread, reached);
        transactions += reached;
    }
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
    transactions
}

#[test]
fn killed_process_loses_nothing_acknowledged() {
    let cycles = std::env::var("STEMMA_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let directory = tempfile::tempdir().unwrap();
    let mut transactions = 0;
    // With its log in a store, a process has what is not flushed in its memory only.
    let kinds = if std::env::var_os(LOG_STORAGE_VARIABLE).is_some() { ["sync", "sync"] } else { ["sync", "none"] };
    let mut acknowledged_by_kind = BTreeMap::from(kinds.map(|kind| (kind, 0)));
    let mut floor = BTreeMap::new();
    let (mut kind, mut path) = ("none", directory.path().join("none"));
    for cycle in 0..cycles {
        if cycle % CYCLES_PER_DATABASE == 0 || cycle % (CYCLES_PER_DATABASE / 2) == 0 {
            std::fs::remove_dir_all(&path).ok();
            floor.clear();
            kind = if cycle % CYCLES_PER_DATABASE == 0 { kinds[0] } else { kinds[1] };
            path = directory.path().join(format!("{kind}-{cycle}"));
        }
        let acknowledged = run_and_kill(&path, Duration::from_millis(60 + cycle * 7919 % 400));
        *acknowledged_by_kind.entry(kind).or_default() += acknowledged.values().sum::<u64>();
        if cycle % 3 == 2 {
            std::fs::remove_dir_all(path.join("tree")).ok();
        }
        let count = verify(&path, &acknowledged, &mut floor);
        transactions = transactions.max(count);
    }
    println!(
        "{cycles} kills, up to {transactions} transactions in one database: 0 lost, 0 partial, index and feed sound"
    );
    let is_acknowledged = acknowledged_by_kind.values().all(|count| *count > 0);
    assert!(is_acknowledged, "the children never wrote: give them more time: {acknowledged_by_kind:?}");
}

const COPYING_CHILD: &str = "STEMMA_KILL_COPYING_CHILD";

/// Documents in the database after so many rounds: all of a round are written by one transaction.
const ROUND_DOCUMENTS: u64 = 20;

/// The child: writes, ships, branches and restores until it is killed.
#[test]
fn copying_child() {
    let Ok(directory) = std::env::var(COPYING_CHILD) else { return };
    let path = |name: &str| Path::new(&directory).join(name);
    let db = Database::open_with(path("db"), options(Durability::None)).unwrap();
    let interval = Duration::from_millis(1);
    let shipped = Arc::new(DirectoryTarget::create(path("shipped")).unwrap());
    let _follower = db.maintenance().follow(shipped, FollowOptions::new().interval(interval)).unwrap();
    let target = DirectoryTarget::create(path("backups")).unwrap();
    for round in db.sequence().get() / ROUND_DOCUMENTS.. {
        db.write(|tx| {
            (0..ROUND_DOCUMENTS).try_for_each(|number| {
                let body = Value::parse(format!(r#"{{"round":{round},"fill":"{}"}}"#, "x".repeat(300)).as_bytes())?;
                tx.insert(&format!("{round}-{number}"), &body).map(|_| ())
            })
        })
        .unwrap();
        db.maintenance().backup_with(&target, &BackupOptions::new().keep(3), |_| ()).unwrap();
        std::io::stdout().write_all(b"made\n").unwrap();
        for name in ["branch", "restored"] {
            // Moved first: a kill during the removal would leave a part of it.
            std::fs::remove_dir_all(path("removed")).ok();
            std::fs::rename(path(name), path("removed")).ok();
        }
        db.maintenance().branch(path("branch"), At::Latest).unwrap();
        backup::restore(&target, path("restored"), RestoreOptions::new()).unwrap();
        backup::restore(&target, path("replaced"), RestoreOptions::new().force(true)).unwrap();
    }
}

/// A kill during a shipment, a backup, a restore or a branch leaves each complete or absent.
#[test]
fn killed_copies_are_complete_or_absent() {
    let cycles: u64 = std::env::var("STEMMA_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut found_count = 0;
    for cycle in 0..cycles {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "copying_child", "--nocapture"])
            .env(COPYING_CHILD, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Each cycle makes at least one backup, so that the test does not depend on speed.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("made")), "the child ended");
        std::thread::sleep(Duration::from_millis(cycle * 7919 % 150));
        child.kill().unwrap();
        child.wait().unwrap();

        let check = |db: &Database| {
            let count = db.info().unwrap().document_count;
            assert_eq!((count % ROUND_DOCUMENTS, db.sequence().get()), (0, count), "only whole transactions");
            let report = db.maintenance().check().unwrap();
            assert!(report.is_sound(), "{:#?}", report.damages);
        };
        for name in ["shipped", "backups"] {
            let target = DirectoryTarget::open(path(name)).unwrap();
            if backup::list(&target).unwrap().is_empty() {
                assert_eq!(name, "shipped", "a backup was reported");
                continue;
            }
            let report = backup::verify(&target).unwrap();
            assert!(report.is_sound(), "{name}: {:#?}", report.damages);
            let restored = path("verified");
            backup::restore(&target, &restored, RestoreOptions::new().force(true)).unwrap();
            check(&Database::open_with(&restored, options(Durability::None)).unwrap());
        }
        for name in ["branch", "restored", "replaced"] {
            if path(name).exists() {
                found_count += 1;
                check(&Database::open_with(path(name), options(Durability::None)).unwrap());
            }
        }
        check(&Database::open_with(path("db"), options(Durability::None)).unwrap());
    }
    println!("{cycles} kills, {found_count} branches and restored databases: all complete, all backups sound");
}
