//! The n-th call to the disk fails, for every n, once or from then on, broken or full: whatever was acknowledged stays, the error is
//! clear, nothing more is taken until the database is reopened, and then everything agrees.
//!
//! A script runs once on a disk that never fails; what the database says after each step is the truth. Then it runs again for
//! each call, and each failure. After a failure the database may say what it said after one of the steps from the last
//! acknowledged to the one that failed, and nothing else: at once, after reopening, and after a loss of power. A run that does not end
//! is a failure too.
//!
//! `STEMMA_FAULT_SEEDS` says how many scripts are run through (default 1), `STEMMA_FAULT_STRIDE` to try only every so many calls
//! (default 5; 1 for all). Every fifth meets call 156, whose write was refused, and
//! made visible by the checkpoint that failed after it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use stemmadb::testing::{self, Call, Failure, Place, Random};
use stemmadb::{Database, DocumentId, Durability, Edit, Error, ErrorKind, Options, Result, Sequence, Value};

const STEPS: usize = 60;

/// A run takes some milliseconds. Whoever waits for a disk that will not answer any more would wait for ever.
const PATIENCE: Duration = Duration::from_secs(90);

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn options() -> Options {
    testing::small(Options::new().background(false).cache_bytes(0), 10 << 10, 4 << 10, 30)
}

/// How safe a step that succeeded is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safe {
    Written,
    Flushed,
}

/// How a step went.
struct Done {
    result: Result<Safe>,
    /// It wrote no document, and may fail without keeping others from being written.
    is_upkeep: bool,
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

/// Step `number` of the script `seed`; the same in every run. `in_one`: what may fail in parts is done as a whole.
fn step(db: &Database, seed: u64, number: usize, in_one: bool) -> Done {
    let mut random = Random::new(seed << 32 | number as u64);
    let durability = if random.chance(500) { Durability::Sync } else { Durability::None };
    let safe = if durability == Durability::Sync { Safe::Flushed } else { Safe::Written };
    let result = match random.below(20) {
        0..=8 => db.with_durability(durability).edit(upsert(&mut random)).map(|_| safe),
        9 | 10 => {
            let edits: Vec<_> = (0..5).map(|_| upsert(&mut random)).collect();
            if in_one {
                db.with_durability(durability)
                    .write(|transaction| edits.into_iter().try_for_each(|edit| transaction.edit(edit).map(|_| ())))
                    .map(|()| safe)
            } else {
                let results = db.with_durability(durability).bulk(edits);
                results.and_then(|results| results.into_iter().collect::<Result<Vec<_>>>()).map(|_| safe)
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
            Ok(safe)
        }),
        13 => db
            .local_documents()
            .put(&format!("_local/{}", random.below(3)), None, &body(&mut random))
            .map(|_| Safe::Flushed),
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
            db.with_durability(durability).edit(edit).map(|_| safe)
        }
        15 => db.flush().map(|()| Safe::Flushed),
        16 | 17 => return Done { result: db.maintenance().checkpoint().map(|()| Safe::Written), is_upkeep: true },
        _ => return Done { result: db.maintenance().compact().map(|_| Safe::Written), is_upkeep: true },
    };
    Done { result, is_upkeep: false }
}

/// Everything the database says.
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

/// What one run is made to suffer.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Disk { call: Call, nth: u64, failure: Failure, is_sticky: bool },
    Tree { nth: u64, failure: Failure, is_sticky: bool },
}

impl Fault {
    fn plan(self, place: &Place) {
        match self {
            Fault::Disk { call, nth, failure, is_sticky } => place.disk().fail(call, nth, failure, is_sticky),
            Fault::Tree { nth, failure, is_sticky } => place.fail_commit(nth, failure, is_sticky),
        }
    }
}

/// What the database said after each step on a good disk, and how many calls that took.
struct Truth {
    states: Vec<Vec<String>>,
    changes: u64,
    reads: u64,
    commits: u64,
}

fn truth(seed: u64) -> Truth {
    let place = Place::new(seed);
    let db = place.open(options()).expect("a good disk");
    let mut states = vec![contents(&db).expect("a good disk")];
    for number in 1..=STEPS {
        step(&db, seed, number, false).result.expect("a good disk");
        states.push(contents(&db).expect("a good disk"));
    }
    db.close().expect("a good disk");
    let disk = place.disk();
    Truth { states, changes: disk.count(Call::AnyChange), reads: disk.count(Call::Read), commits: place.commit_count() }
}

/// What is known while a script runs.
struct Run<'t> {
    truth: &'t Truth,
    /// The state of this step is flushed, so that not even a loss of power takes it.
    flushed: usize,
    /// The state of this step was acknowledged.
    acknowledged: usize,
    /// The newest state there may be.
    begun: usize,
    refused: bool,
}

impl Run<'_> {
    /// Whether `found` is a state from `oldest` to the newest there may be.
    fn is_one_of(&self, found: &[String], oldest: usize) -> bool {
        self.truth.states[oldest..=self.begun].iter().any(|state| state == found)
    }

    fn expect_one_of(&self, what: &str, db: &Database, oldest: usize) -> Result<Vec<String>, String> {
        let found = contents(db).map_err(|error| format!("{what}: {error:?}"))?;
        if self.is_one_of(&found, oldest) {
            return Ok(found);
        }
        let nearest = self.truth.states.iter().enumerate().rev().find(|(_, state)| state[0] == found[0]);
        let nearest = nearest.map(|(number, state)| {
            let differs = found.iter().zip(state).find(|(found, state)| found != state);
            format!("most like step {number} but for {differs:?}, {} lines of {}", found.len(), state.len())
        });
        Err(format!("{what}: not a state from step {oldest} to {}: {}, {nearest:?}", self.begun, found[0]))
    }

    fn run(&mut self, db: &Database, seed: u64, fault: Fault) -> Result<(), String> {
        let reads_fail = matches!(fault, Fault::Disk { call: Call::Read, .. });
        for number in 1..=STEPS {
            let done = step(db, seed, number, reads_fail);
            match done.result {
                Ok(safe) if !self.refused => {
                    self.acknowledged = number;
                    self.begun = number;
                    if safe == Safe::Flushed {
                        self.flushed = number;
                    }
                }
                Ok(_) if self.truth.states[number] == self.truth.states[number - 1] => {}
                Ok(_) => return Err(format!("step {number} was taken after one was refused")),
                Err(error) => {
                    is_clear(&error).map_err(|what| format!("step {number}: {what}"))?;
                    if reads_fail {
                        // What could not be read was not written either; the script can't go on as it did.
                        break;
                    }
                    if !done.is_upkeep && !self.refused {
                        self.refused = true;
                        self.begun = number;
                    }
                }
            }
            if self.refused {
                let found = contents(db).map_err(|error| format!("reading after step {number}: {error:?}"))?;
                if found != self.truth.states[self.acknowledged] {
                    return Err(format!("after step {number} readers see what was not acknowledged: {}", found[0]));
                }
            }
        }
        Ok(())
    }
}

fn is_clear(error: &Error) -> Result<(), String> {
    let expected = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed);
    if expected && error.message().len() > 10 { Ok(()) } else { Err(format!("an error that says nothing: {error:?}")) }
}

fn sound(what: &str, db: &Database) -> Result<(), String> {
    let report = db.maintenance().check().map_err(|error| format!("{what}: {error:?}"))?;
    if report.is_sound() { Ok(()) } else { Err(format!("{what}: {:#?}", report.damages)) }
}

/// Opens a healed place: it holds an allowed state, all of it agrees, it takes writes, and what it said is there to stay.
fn reopen(what: &str, place: &Place, run: &Run<'_>, oldest: usize, random: &mut Random) -> Result<(), String> {
    let db = place.open(options()).map_err(|error| format!("{what}: {error:?}"))?;
    let found = run.expect_one_of(what, &db, oldest)?;
    sound(what, &db)?;
    let again = place.crash_image(random.number());
    db.insert("afterwards", &Value::Object(Default::default())).map_err(|error| format!("{what}: {error:?}"))?;
    sound(what, &db)?;
    db.close().map_err(|error| format!("{what}: {error:?}"))?;
    let db = again.open(options()).map_err(|error| format!("{what}, power lost: {error:?}"))?;
    let kept = contents(&db).map_err(|error| format!("{what}, power lost: {error:?}"))?;
    if kept == found {
        sound(what, &db)
    } else {
        Err(format!("{what}: power lost after opening: {}, had been {}", kept[0], found[0]))
    }
}

fn suffer(seed: u64, truth: &Truth, fault: Fault) -> Result<(), String> {
    let place = Place::new(seed);
    fault.plan(&place);
    let mut run = Run { truth, flushed: 0, acknowledged: 0, begun: 0, refused: false };
    match place.open(options()) {
        Ok(db) => {
            run.run(&db, seed, fault)?;
            if let Err(error) = db.close() {
                is_clear(&error)?;
            }
        }
        Err(error) => is_clear(&error)?,
    }
    let mut random = Random::new(seed ^ 0xfa);
    for _ in 0..2 {
        let image = place.crash_image(random.number());
        reopen("after a loss of power", &image, &run, run.flushed, &mut random)?;
    }
    place.heal();
    reopen("after reopening", &place, &run, run.acknowledged, &mut random)
}

/// What is tried, for a script, a failure, and whether it is sticky.
type Faults = fn(&Truth, Failure, bool) -> Vec<Fault>;

/// Tries every fault of every script; `begun` hears of each before it is tried. Returns how many there were, and what was wrong.
fn try_all(faults: Faults, begun: &Sender<String>) -> (usize, Vec<String>) {
    let (mut runs, mut wrong) = (0, Vec::new());
    for seed in 1..=number_from("STEMMA_FAULT_SEEDS", 1) {
        let truth = truth(seed);
        for failure in [Failure::Broken, Failure::Full] {
            for is_sticky in [false, true] {
                for fault in faults(&truth, failure, is_sticky) {
                    runs += 1;
                    let name = format!("seed {seed}, {fault:?}");
                    begun.send(name.clone()).expect("somebody listens");
                    if let Err(what) = suffer(seed, &truth, fault) {
                        wrong.push(format!("{name}: {what}"));
                    }
                }
            }
        }
    }
    (runs, wrong)
}

fn run_through(faults: Faults) {
    let (sender, begun) = channel();
    let trying = std::thread::spawn(move || try_all(faults, &sender));
    let mut last = "nothing yet".to_owned();
    loop {
        match begun.recv_timeout(PATIENCE) {
            Ok(name) => last = name,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("somebody waits for ever: {last} has no end after {PATIENCE:?}"),
        }
    }
    let (runs, wrong) = trying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    println!("{runs} runs, {} wrong", wrong.len());
    let first: Vec<_> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} of {runs} runs, the first: {first:#?}", wrong.len());
    assert!(runs > 0, "nothing was tried");
}

/// The calls to try, of `count`.
fn calls(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).step_by(number_from("STEMMA_FAULT_STRIDE", 5) as usize)
}

#[test]
fn a_write_that_fails_loses_nothing_acknowledged() {
    run_through(|truth, failure, is_sticky| {
        let fault = |nth| Fault::Disk { call: Call::AnyChange, nth, failure, is_sticky };
        calls(truth.changes).map(fault).collect()
    });
}

#[test]
fn a_read_that_fails_is_told() {
    run_through(|truth, failure, is_sticky| {
        let fault = |nth| Fault::Disk { call: Call::Read, nth, failure, is_sticky };
        calls(truth.reads).map(fault).collect()
    });
}

#[test]
fn a_tree_that_fails_loses_nothing_acknowledged() {
    run_through(|truth, failure, is_sticky| {
        calls(truth.commits).map(|nth| Fault::Tree { nth, failure, is_sticky }).collect()
    });
}
