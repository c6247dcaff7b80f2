//! I/O errors: the n-th disk call fails, for every n, once or permanently, with EIO or ENOSPC. Acknowledged writes
//! survive, the error is clear, no write is accepted until the database is reopened, and the reopened database is
//! consistent. Except: if a full disk fails a checkpoint, the write that needed its memory can be repeated.
//!
//! A script first runs on a disk without failures; the content after each step is the reference. It then runs again for
//! each call and failure. After a failure, the content may equal that after any step from the last acknowledged to the
//! failed one, and nothing else: directly, after reopening, and after a power loss. A run that does not end is a
//! failure, too.
//!
//! `STEMMA_FAULT_SEEDS` sets the number of scripts (default 1), `STEMMA_FAULT_STRIDE` tests only every n-th call
//! (default 5; 1 for all). A stride of 5 includes call 156, whose write was rejected and then made visible by the
//! checkpoint that failed after it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use stemmadb::testing::{self, Call, Failure, Random, TestStorage};
use stemmadb::{Database, DocumentId, Durability, Edit, Error, ErrorKind, Options, Result, Sequence, Value};

const STEPS: usize = 60;

/// Timeout of one run, which takes milliseconds unless a thread waits forever for the failed disk.
const RUN_TIMEOUT: Duration = Duration::from_secs(90);

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    testing::with_small_limits(Options::new().background(false).cache_bytes(0), 10 << 10, 4 << 10, 30)
}

/// How durable a successful step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DurabilityReached {
    Written,
    Flushed,
}

/// Result of a step.
struct StepResult {
    result: Result<DurabilityReached>,
    /// Maintenance: it wrote no document and may fail without blocking other writes.
    is_maintenance: bool,
}

fn body(random: &mut Random) -> Value {
    let text = "x".repeat(random.below(300) as usize);
    let json = format!(
        r#"{{"year":{},"tags":["a","b{}"],"f{}":{{"deep":{}}},"text":"{text}"}}"#,
        random.below(5),
        random.below(3),
        random.below(40),
        random.below(9)
    );
    Value::parse(json.as_bytes()).expect("it is JSON")
}

fn upsert(random: &mut Random) -> Edit {
    let id = DocumentId::new(format!("document-{}", random.below(12))).expect("a good id");
    Edit::Upsert { id, body: body(random) }
}

/// Performs step `number` of the script `seed`, identical in every run. `in_one`: operations that can fail partially
/// are done atomically.
fn step(db: &Database, seed: u64, number: usize, in_one: bool) -> StepResult {
    let mut random = Random::new(seed << 32 | number as u64);
    let durability = if random.chance(500) { Durability::Sync } else { Durability::None };
    let reached = if durability == Durability::Sync { DurabilityReached::Flushed } else { DurabilityReached::Written };
    let result = match random.below(20) {
        0..=8 => db.with_durability(durability).edit(upsert(&mut random)).map(|_| reached),
        9 | 10 => {
            let edits: Vec<_> = (0..5).map(|_| upsert(&mut random)).collect();
            if in_one {
                db.with_durability(durability)
                    .write(|transaction| edits.into_iter().try_for_each(|edit| transaction.edit(edit).map(|_| ())))
                    .map(|()| reached)
            } else {
                let results = db.with_durability(durability).bulk(edits);
                results.and_then(|results| results.into_iter().collect::<Result<Vec<_>>>()).map(|_| reached)
            }
        }
        11 | 12 => db.with_durability(durability).write(|transaction| {
            for _ in 0..3 {
                transaction.edit(upsert(&mut random))?;
            }
            let id = format!("document-{}", random.below(12));
            if let Some(found) = transaction.get(&id)? {
                transaction.delete(&id, found.revision())?;
            }
            Ok(reached)
        }),
        13 => db
            .local_documents()
            .put(&format!("_local/{}", random.below(3)), None, &body(&mut random))
            .map(|_| DurabilityReached::Flushed),
        14 => {
            let id = DocumentId::new(format!("document-{}", random.below(12))).expect("a good id");
            let revisions = vec![format!("{}-foreign", 1 + random.below(3)).parse().expect("a revision")];
            let edit = Edit::Foreign {
                id,
                revisions,
                deleted: random.chance(300),
                body: body(&mut random),
                files: Vec::new(),
            };
            db.with_durability(durability).edit(edit).map(|_| reached)
        }
        15 => db.flush().map(|()| DurabilityReached::Flushed),
        16 | 17 => {
            return StepResult {
                result: db.maintenance().checkpoint().map(|()| DurabilityReached::Written),
                is_maintenance: true,
            };
        }
        _ => {
            return StepResult {
                result: db.maintenance().compact().map(|_| DurabilityReached::Written),
                is_maintenance: true,
            };
        }
    };
    StepResult { result, is_maintenance: false }
}

/// The whole content of the database.
fn contents(db: &Database) -> Result<Vec<String>> {
    let mut lines = vec![format!("at {}", db.sequence())];
    for change in db.changes(Sequence::ZERO)?.documents(true).run() {
        let change = change?;
        let branches = db.revisions(change.id.as_str())?;
        lines.push(format!("{} {} {:?} {branches:?}", change.sequence, change.id, change.document));
    }
    for number in 0..3 {
        lines.push(format!("{:?}", db.local_documents().get(&format!("_local/{number}"))?));
    }
    Ok(lines)
}

/// The failure injected into one run.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Disk { call: Call, nth: u64, failure: Failure, is_sticky: bool },
    Tree { nth: u64, failure: Failure, is_sticky: bool },
}

impl Fault {
    fn is_full(self) -> bool {
        matches!(self, Fault::Disk { failure: Failure::Full, .. } | Fault::Tree { failure: Failure::Full, .. })
    }

    fn plan(self, storage: &TestStorage) {
        match self {
            Fault::Disk { call, nth, failure, is_sticky } => storage.disk().fail(call, nth, failure, is_sticky),
            Fault::Tree { nth, failure, is_sticky } => storage.fail_commit(nth, failure, is_sticky),
        }
    }
}

/// The content after each step without failures, and the number of calls made.
struct Reference {
    states: Vec<Vec<String>>,
    changes: u64,
    reads: u64,
    commits: u64,
}

fn reference(seed: u64) -> Reference {
    let storage = TestStorage::new(seed);
    let db = storage.open(options()).expect("a good disk");
    let mut states = vec![contents(&db).expect("a good disk")];
    for number in 1..=STEPS {
        step(&db, seed, number, false).result.expect("a good disk");
        states.push(contents(&db).expect("a good disk"));
    }
    db.close().expect("a good disk");
    let disk = storage.disk();
    Reference {
        states,
        changes: disk.count(Call::AnyChange),
        reads: disk.count(Call::Read),
        commits: storage.commit_count(),
    }
}

/// The state of a run with failures.
struct Run<'t> {
    reference: &'t Reference,
    /// The state after this step is flushed and survives a power loss.
    flushed: usize,
    /// The state after this step was acknowledged.
    acknowledged: usize,
    /// The newest state that may exist.
    started: usize,
    rejected: bool,
}

impl Run<'_> {
    /// Whether `found` is a state from `oldest` to the newest possible one.
    fn is_one_of(&self, found: &[String], oldest: usize) -> bool {
        self.reference.states[oldest..=self.started].iter().any(|state| state == found)
    }

    fn expect_one_of(&self, what: &str, db: &Database, oldest: usize) -> Result<Vec<String>, String> {
        let found = contents(db).map_err(|error| format!("{what}: {error:?}"))?;
        if self.is_one_of(&found, oldest) {
            return Ok(found);
        }
        let nearest = self.reference.states.iter().enumerate().rev().find(|(_, state)| state[0] == found[0]);
        let nearest = nearest.map(|(number, state)| {
            let differs = found.iter().zip(state).find(|(found, state)| found != state);
            format!("closest to step {number}, which differs in {differs:?}, {} lines of {}", found.len(), state.len())
        });
        Err(format!("{what}: not a state from step {oldest} to {}: {}, {nearest:?}", self.started, found[0]))
    }

    fn run(&mut self, db: &Database, seed: u64, fault: Fault) -> Result<(), String> {
        let reads_fail = matches!(fault, Fault::Disk { call: Call::Read, .. });
        for number in 1..=STEPS {
            let mut outcome = step(db, seed, number, reads_fail);
            if outcome.result.is_err() && fault.is_full() && !outcome.is_maintenance && !self.rejected {
                // Without memory it was not begun, unless the log itself failed, which accepts nothing more.
                outcome = step(db, seed, number, reads_fail);
            }
            match outcome.result {
                Ok(reached) if !self.rejected => {
                    self.acknowledged = number;
                    self.started = number;
                    if reached == DurabilityReached::Flushed {
                        self.flushed = number;
                    }
                }
                Ok(_) if self.reference.states[number] == self.reference.states[number - 1] => {}
                Ok(_) => return Err(format!("step {number} was accepted after one was rejected")),
                Err(error) => {
                    check_is_clear(&error).map_err(|what| format!("step {number}: {what}"))?;
                    if reads_fail {
                        // A failed read also prevented the write; the script can't continue as in the reference run.
                        break;
                    }
                    if !outcome.is_maintenance && !self.rejected {
                        self.rejected = true;
                        self.started = number;
                    }
                }
            }
            if self.rejected {
                let found = contents(db).map_err(|error| format!("reading after step {number}: {error:?}"))?;
                if found != self.reference.states[self.acknowledged] {
                    return Err(format!("after step {number} readers see unacknowledged writes: {}", found[0]));
                }
            }
        }
        Ok(())
    }
}

fn check_is_clear(error: &Error) -> Result<(), String> {
    let expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
    if expected && error.message().len() > 10 { Ok(()) } else { Err(format!("an uninformative error: {error:?}")) }
}

fn check_sound(what: &str, db: &Database) -> Result<(), String> {
    let report = db.maintenance().check().map_err(|error| format!("{what}: {error:?}"))?;
    if report.is_sound() { Ok(()) } else { Err(format!("{what}: {:#?}", report.damages)) }
}

/// Opens repaired storage: it has an allowed state, is consistent, accepts writes, and its content is durable.
fn reopen(what: &str, storage: &TestStorage, run: &Run<'_>, oldest: usize, random: &mut Random) -> Result<(), String> {
    let db = storage.open(options()).map_err(|error| format!("{what}: {error:?}"))?;
    let found = run.expect_one_of(what, &db, oldest)?;
    check_sound(what, &db)?;
    let again = storage.crash_image(random.number());
    db.insert("afterwards", &Value::Object(Default::default())).map_err(|error| format!("{what}: {error:?}"))?;
    check_sound(what, &db)?;
    db.close().map_err(|error| format!("{what}: {error:?}"))?;
    let db = again.open(options()).map_err(|error| format!("{what}, power lost: {error:?}"))?;
    let recovered = contents(&db).map_err(|error| format!("{what}, power lost: {error:?}"))?;
    if recovered == found {
        check_sound(what, &db)
    } else {
        Err(format!("{what}: power lost after opening: {}, had been {}", recovered[0], found[0]))
    }
}

fn run_with_fault(seed: u64, reference: &Reference, fault: Fault) -> Result<(), String> {
    let storage = TestStorage::new(seed);
    fault.plan(&storage);
    let mut run = Run { reference, flushed: 0, acknowledged: 0, started: 0, rejected: false };
    match storage.open(options()) {
        Ok(db) => {
            run.run(&db, seed, fault)?;
            if let Err(error) = db.close() {
                check_is_clear(&error)?;
            }
        }
        Err(error) => check_is_clear(&error)?,
    }
    let mut random = Random::new(seed ^ 0xfa);
    for _ in 0..2 {
        let image = storage.crash_image(random.number());
        reopen("after a loss of power", &image, &run, run.flushed, &mut random)?;
    }
    storage.heal();
    reopen("after reopening", &storage, &run, run.acknowledged, &mut random)
}

/// The faults to test, for a script, a failure, and whether it is permanent.
type Faults = fn(&Reference, Failure, bool) -> Vec<Fault>;

/// Tests every fault of every script, sending the name of each to `begun` before it starts. Returns the number of runs
/// and the errors.
fn test_all(faults: Faults, started: &Sender<String>) -> (usize, Vec<String>) {
    let (mut runs, mut wrong) = (0, Vec::new());
    for seed in 1..=number_from("STEMMA_FAULT_SEEDS", 1) {
        let reference = reference(seed);
        for failure in [Failure::Broken, Failure::Full] {
            for is_sticky in [false, true] {
                for fault in faults(&reference, failure, is_sticky) {
                    runs += 1;
                    let name = format!("seed {seed}, {fault:?}");
                    started.send(name.clone()).expect("the receiver is alive");
                    if let Err(what) = run_with_fault(seed, &reference, fault) {
                        wrong.push(format!("{name}: {what}"));
                    }
                }
            }
        }
    }
    (runs, wrong)
}

fn run_through(faults: Faults) {
    let (sender, started) = channel();
    let trying = std::thread::spawn(move || test_all(faults, &sender));
    let mut last = "the first run".to_owned();
    loop {
        match started.recv_timeout(RUN_TIMEOUT) {
            Ok(name) => last = name,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                panic!("a thread waits forever: {last} did not end within {RUN_TIMEOUT:?}")
            }
        }
    }
    let (runs, wrong) = trying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!("{runs} runs, {} wrong", wrong.len());
    let first: Vec<_> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} of {runs} runs, the first: {first:#?}", wrong.len());
    assert!(runs > 0, "no fault was tested");
}

/// The calls to test, out of `count`.
fn calls(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).step_by(number_from("STEMMA_FAULT_STRIDE", 5) as usize)
}

#[test]
fn failed_write_loses_nothing_acknowledged() {
    run_through(|reference, failure, is_sticky| {
        let fault = |nth| Fault::Disk { call: Call::AnyChange, nth, failure, is_sticky };
        calls(reference.changes).map(fault).collect()
    });
}

#[test]
fn failed_read_is_reported() {
    run_through(|reference, failure, is_sticky| {
        let fault = |nth| Fault::Disk { call: Call::Read, nth, failure, is_sticky };
        calls(reference.reads).map(fault).collect()
    });
}

#[test]
fn failed_tree_commit_loses_nothing_acknowledged() {
    run_through(|reference, failure, is_sticky| {
        calls(reference.commits).map(|nth| Fault::Tree { nth, failure, is_sticky }).collect()
    });
}
