//! Thread interleavings: commits, checkpoints, compactions, snapshots and watchers of the real store under `shuttle`,
//! whose scheduler chooses at every lock, condition variable and atomic which thread continues, and which detects
//! deadlocks.
//!
//! The store runs on the fault-injecting disk of other tests. The background pool is not included, nor are memory
//! orderings weaker than those of locks. `STEMMA_SCHEDULES` sets the number of schedules per scenario (default
//! 500; the long run tries 20,000, half of them with few context switches, which finds other errors),
//! `STEMMA_SCHEDULE_SEED` the seed.
//!
//! Each scenario was seen to fail within 4,000 schedules with a defense removed: publishing as soon as a frame is
//! written (`commits`); waiting for publication after a check outside the lock (`commits`: deadlock); a snapshot that
//! takes the tree before the memtables, or a memtable dropped before it is merged (`checkpoints_and_snapshots`,
//! `commits`); reuse of a retired segment's file that a snapshot holds, or an id found in the tree and again in memory,
//! where its document was moved in the meantime (`compactions_and_snapshots`); a watcher that starts during
//! publication, or a transaction queued for watchers that are no longer there (`watchers`); a log that continues after
//! a failed flush, or a checkpoint that merges writes that are not visible yet (`a_failing_disk`: rejected writes are
//! read); files that are deleted when the list no longer names them, or retired files that `check` does not know of
//! (`merges_and_snapshots`); history that is removed although a past snapshot was begun in the meantime
//! (`removed_history_and_past_snapshots`); a pin that is checked before a running compaction ends
//! (`pins_and_compactions`).
//!
//! `cargo test -p stemmadb --features shuttle --test interleavings`

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use stemmadb::past::Retention;
use stemmadb::testing::{self, Call, Failure, TestStorage};
use stemmadb::{Database, DeltaEvent, Durability, ErrorKind, Options, Sequence, Snapshot, Value, field};

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a scenario under the requested number of schedules.
fn run_scenario(name: &str, scenario: impl Fn(u64) + Send + Sync + 'static) {
    let count = number_from("STEMMA_SCHEDULES", 500) as usize;
    let seed = number_from("STEMMA_SCHEDULE_SEED", 1);
    let scenario = Arc::new(scenario);
    let run_count = Arc::new(AtomicU64::new(0));
    abort_if_stuck(name.to_owned(), Arc::downgrade(&run_count));
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(3_000_000);
    let run = |scenario: Arc<dyn Fn(u64) + Send + Sync>, run_count: Arc<AtomicU64>| {
        move || scenario(seed << 32 | run_count.fetch_add(1, Ordering::Relaxed))
    };
    let random = RandomScheduler::new_from_seed(seed, count.div_ceil(2));
    Runner::new(random, config.clone()).run(run(scenario.clone(), run_count.clone()));
    let few_changes = PctScheduler::new_from_seed(seed, 3, count / 2);
    Runner::new(few_changes, config).run(run(scenario, run_count.clone()));
    println!("\n{name}: {} orders", run_count.load(Ordering::Relaxed));
    assert_eq!(run_count.load(Ordering::Relaxed), count as u64);
}

/// Ends the process if one schedule takes minutes: a thread that the scheduler does not run holds a lock of `std`, for
/// which the others wait outside of its control.
fn abort_if_stuck(name: String, run_count: Weak<AtomicU64>) {
    std::thread::spawn(move || {
        let mut seen = u64::MAX;
        while let Some(run_count) = run_count.upgrade().map(|count| count.load(Ordering::Relaxed)) {
            if run_count == seen {
                eprintln!(
                    "{name}: schedule {run_count} has not ended; does a lock of std enclose an instrumented one?"
                );
                std::process::abort();
            }
            seen = run_count;
            std::thread::sleep(Duration::from_mins(5));
        }
    });
}

/// Small limits, so that a few writes fill a memtable and start a segment.
fn options() -> Options {
    testing::with_small_limits(Options::new().background(false).cache_bytes(0), 3 << 10, 4 << 10, 5)
}

fn body(number: u64) -> serde_json::Value {
    serde_json::json!({"number": number, "kind": "k", "fill": "x".repeat(500)})
}

fn expect_sound(db: &Database) {
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:#?}", report.damages);
}

/// Threads commit with different durabilities while segments are started: a returned commit is visible, and a visible
/// one is as durable as requested.
#[test]
fn commits() {
    let is_sync = |number: u64| number.is_multiple_of(2);
    run_scenario("commits", move |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let db = db.clone();
                thread::spawn(move || {
                    for number in (0..3).map(|step| writer * 3 + step) {
                        let durability = if is_sync(number) { Durability::Sync } else { Durability::None };
                        let id = format!("{number}");
                        db.with_durability(durability).write(|tx| tx.insert(&id, &body(number))).unwrap();
                        assert!(db.get(&id).unwrap().is_some(), "a returned commit is visible");
                    }
                })
            })
            .collect();
        let mut seen_count = 0;
        while seen_count < 5 {
            thread::yield_now();
            let is_visible = |number: &u64| is_sync(*number) && db.get(&format!("{number}")).unwrap().is_some();
            let visible: Vec<u64> = (0..9).filter(is_visible).collect();
            if visible.len() > seen_count {
                seen_count = visible.len();
                let after = storage.crash_image(seed).open(options()).unwrap();
                for number in visible {
                    assert!(after.get(&format!("{number}")).unwrap().is_some(), "a visible synced commit is flushed");
                }
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(db.find(field("kind").eq("k")).count().unwrap(), 9);
        assert_eq!(db.sequence(), Sequence::new(9));
        expect_sound(&db);
        db.close().unwrap();
        assert_eq!(storage.open(options()).unwrap().sequence(), Sequence::new(9));
    });
}

/// A sum that every transaction preserves is the same in every snapshot, during merges and swaps.
#[test]
fn checkpoints_and_snapshots() {
    run_scenario("checkpoints and snapshots", |seed| {
        let db = TestStorage::new(seed).open(options()).unwrap();
        let at = |left: i64| serde_json::json!({"left": left, "fill": "x".repeat(300)});
        db.insert("a", &at(5)).unwrap();
        db.insert("b", &at(5)).unwrap();
        let writer = thread::spawn({
            let db = db.clone();
            move || {
                for step in 1..=4_i64 {
                    db.write(|tx| tx.upsert("a", &at(5 - step)).and_then(|_| tx.upsert("b", &at(5 + step)))).unwrap();
                }
            }
        });
        let merger = thread::spawn({
            let db = db.clone();
            move || (0..2).for_each(|_| db.maintenance().checkpoint().unwrap())
        });
        let mut seen = Sequence::ZERO;
        for _ in 0..3 {
            let snapshot = db.snapshot().unwrap();
            let left = |id: &str| snapshot.get(id).unwrap().unwrap().get("left").unwrap().unwrap().as_i64().unwrap();
            let first = left("a");
            assert_eq!(first + left("b"), 10, "a transaction is whole or absent");
            assert_eq!(snapshot.find(field("left").eq(first)).count().unwrap(), if first == 5 { 2 } else { 1 });
            assert_eq!(left("a"), first, "a snapshot does not change");
            let now = db.sequence();
            assert!(now >= seen, "the published sequence never goes back");
            seen = now;
        }
        writer.join().unwrap();
        merger.join().unwrap();
        assert_eq!(db.find(field("left").eq(1)).count().unwrap(), 1);
        expect_sound(&db);
    });
}

/// Segments are retired and their files reused while a snapshot reads from them and other threads write.
#[test]
fn compactions_and_snapshots() {
    run_scenario("compactions and snapshots", |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        // Two of three records are obsolete, so the third is moved.
        for number in 0..6 {
            for round in 0..3 {
                db.upsert(&format!("{number}"), &body(number + round * 50)).unwrap();
            }
        }
        // Forces the snapshot to read from the log.
        db.maintenance().checkpoint().unwrap();
        let before = db.snapshot().unwrap();
        let compactor = thread::spawn({
            let db = db.clone();
            move || assert!(db.maintenance().compact().is_ok())
        });
        let writer = thread::spawn({
            let db = db.clone();
            move || {
                for step in 0..12 {
                    db.upsert(&format!("{}", step % 4), &body(step % 4 + 200)).unwrap();
                }
            }
        });
        let read = || {
            for number in 0..6_u64 {
                let found = before.get(&format!("{number}")).unwrap().unwrap().get("number").unwrap().unwrap();
                assert_eq!(found.as_u64(), Some(number + 100), "a snapshot does not change");
            }
        };
        read();
        // A document moved during the scan is in the tree, and then in memory, too.
        for _ in 0..8 {
            assert_eq!(db.find(field("_id").ge("0")).count().unwrap(), 6, "each document once");
        }
        compactor.join().unwrap();
        writer.join().unwrap();
        read();
        drop(before);
        expect_sound(&db);
        db.close().unwrap();
        let db = storage.open(options()).unwrap();
        let numbers: Vec<_> =
            (0..6).map(|number| db.get(&format!("{number}")).unwrap().unwrap().get("number").unwrap()).collect();
        assert_eq!(numbers, [200, 201, 202, 203, 104, 105].map(|number: u64| Some(number.into())));
    });
}

/// A pin that is set beside a compaction keeps its state, or is refused.
#[test]
fn pins_and_compactions() {
    run_scenario("pins and compactions", |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        let then = write_twice(&db);
        let compactor = thread::spawn({
            let db = db.clone();
            move || assert!(db.maintenance().compact().is_ok())
        });
        let pinned = db.history().pin("then", then);
        compactor.join().unwrap();
        match pinned {
            Ok(_) => expect_first_state(&db.as_of(then).unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
        expect_sound(&db);
    });
}

/// Writes three documents in three rounds, and again; returns the sequence in between.
fn write_twice(db: &Database) -> Sequence {
    let write = |round: u64| {
        for number in 0..3 {
            db.upsert(&format!("{number}"), &body(number + round * 50)).unwrap();
        }
    };
    (0..3).for_each(write);
    let then = db.sequence();
    (3..6).for_each(write);
    then
}

/// That a snapshot shows the state before the second half of [`write_twice`].
fn expect_first_state(past: &Snapshot) {
    for number in 0..3_u64 {
        let found = past.get(&format!("{number}")).unwrap().unwrap().get("number").unwrap().unwrap();
        assert_eq!(found.as_u64(), Some(number + 100), "the state of then");
    }
}

/// A past snapshot shows the state of its sequence, or is refused, while the history that it needs is removed.
#[test]
fn removed_history_and_past_snapshots() {
    run_scenario("removed history and past snapshots", |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        db.history().keep(Retention::Everything).unwrap();
        let then = write_twice(&db);
        db.maintenance().compact().unwrap();
        assert!(db.history().byte_count() > 0, "what was replaced is in history files");
        let remover = thread::spawn({
            let db = db.clone();
            move || db.history().keep(Retention::Nothing).unwrap()
        });
        match db.as_of(then) {
            Ok(past) => expect_first_state(&past),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
        remover.join().unwrap();
        db.maintenance().compact().unwrap();
        assert_eq!(db.history().byte_count(), 0, "what nobody reads is removed");
        expect_sound(&db);
    });
}

/// Runs of the tree are merged beside commits and a check, while a snapshot that reads the old files is dropped: it
/// reads what it always did, and its files are deleted once, after it.
#[test]
fn merges_and_snapshots() {
    run_scenario("merges and snapshots", |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        for number in 0..4 {
            db.insert(&format!("{number}"), &body(number)).unwrap();
            db.maintenance().checkpoint().unwrap();
        }
        let held = db.snapshot().unwrap();
        let merger = thread::spawn({
            let db = db.clone();
            move || _ = db.maintenance().compact().unwrap()
        });
        let writer = thread::spawn({
            let db = db.clone();
            move || {
                for step in 0..2 {
                    db.upsert(&format!("{step}"), &body(step + 200)).unwrap();
                    db.maintenance().checkpoint().unwrap();
                }
            }
        });
        let reader = thread::spawn(move || {
            // Files are opened when they are first read.
            for number in (0..4_u64).rev() {
                let found = held.get(&format!("{number}")).unwrap().unwrap().get("number").unwrap().unwrap();
                assert_eq!(found.as_u64(), Some(number), "a snapshot does not change");
            }
            assert_eq!(held.find(field("kind").eq("k")).count().unwrap(), 4);
        });
        expect_sound(&db);
        [merger, writer, reader].into_iter().for_each(|thread| thread.join().unwrap());
        let info = db.info().unwrap();
        assert_eq!((info.tree_held_bytes, info.oldest_snapshot), (0, None), "the snapshot's files are deleted");
        assert_eq!(storage.disk().missed_remove_count(), 0, "a file is deleted once");
        assert_eq!(db.find(field("kind").eq("k")).count().unwrap(), 4);
        expect_sound(&db);
    });
}

/// A live query started during writes converges to the result of one started at the end.
#[test]
fn watchers() {
    run_scenario("watchers", |seed| {
        let db = TestStorage::new(seed).open(options()).unwrap();
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let db = db.clone();
                thread::spawn(move || {
                    for step in 0..2 {
                        db.upsert(&format!("{writer}"), &body(step)).unwrap();
                    }
                })
            })
            .collect();
        let passing = thread::spawn({
            let db = db.clone();
            move || drop(db.watch(field("number").eq(1)).unwrap())
        });
        let mut watch = db.watch(field("number").ge(0)).unwrap();
        let mut matching = BTreeMap::new();
        // A watcher that is not notified waits forever, which is detected.
        while matching.len() < 2 || matching.values().any(|number| *number != Some(Value::from(1_u64))) {
            let delta = watch.next_delta().unwrap().unwrap();
            for event in delta.events() {
                match event.unwrap() {
                    DeltaEvent::Removed { id, .. } => drop(matching.remove(id.as_str())),
                    DeltaEvent::Added(document) | DeltaEvent::Changed(document) => {
                        matching.insert(document.id().to_string(), document.get("number").unwrap());
                    }
                }
            }
        }
        let mut news = db.subscribe(Sequence::ZERO);
        let mut reached = BTreeMap::new();
        while reached.len() < 2 {
            let change = news.next_change().unwrap().unwrap();
            reached.insert(change.id.to_string(), change.sequence);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        passing.join().unwrap();
        assert_eq!(db.sequence(), Sequence::new(4));
    });
}

/// A write or flush fails while others wait: every acknowledged write survives, no rejected write is visible, and no
/// thread waits forever.
#[test]
fn a_failing_disk() {
    run_scenario("a failing disk", |seed| {
        let storage = TestStorage::new(seed);
        let db = storage.open(options()).unwrap();
        db.insert("first", &body(0)).unwrap();
        let call = if seed % 2 == 0 { Call::Sync } else { Call::AnyChange };
        storage.disk().fail(call, 1 + seed % 5, Failure::Broken, seed % 3 == 0);
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let db = db.clone();
                thread::spawn(move || {
                    let durability = if writer == 2 { Durability::Sync } else { Durability::None };
                    let ids: Vec<String> = (0..3).map(|step| format!("{writer}-{step}")).collect();
                    let written = |id: &String| match db
                        .with_durability(durability)
                        .write(|tx| tx.insert(id, &body(writer)))
                    {
                        Ok(_) => true,
                        Err(error) => {
                            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed), "{error:?}");
                            false
                        }
                    };
                    ids.into_iter().partition::<Vec<_>, _>(written)
                })
            })
            .collect();
        let ended = writers.into_iter().map(|writer| writer.join().unwrap());
        let (acknowledged, refused): (Vec<_>, Vec<_>) = ended.unzip();
        for id in refused.concat() {
            assert!(db.get(&id).unwrap().is_none(), "{id} was refused");
        }
        let acknowledged = acknowledged.concat();
        db.close().ok();
        storage.heal();
        let db = storage.open(options()).unwrap();
        for id in acknowledged.iter().map(String::as_str).chain(["first"]) {
            assert!(db.get(id).unwrap().is_some(), "{id} was acknowledged");
        }
        expect_sound(&db);
    });
}
