//! Live queries: how long from a write to the reader who waits for it, and what watchers cost a write that concerns none of them.
//!
//! A write does not wait for the disk. *Write to …* counts from the call of the write, *commit to …* from its return, and is
//! nothing if the reader was faster than that. `bare-wake` is what it takes on this machine to wake a thread that waits on a
//! condition: a reader who waits can't hear of anything sooner, unless it never sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use stemmadb::{Database, Durability, Options, Selector, Value, Watch, field};

use super::{Bench, SEED};
use crate::Result;
use crate::harness::{Contender, Row, Samples, Stopwatch, Unit, alternate};
use crate::workload::{Corpus, OF_A_THOUSAND, OF_TEN, Records, UNIQUE};

const DELTA: &str = "delta";
const NOTICE: &str = "notice";
const COST: &str = "write beside 10,000 watchers";

const WATCHER_COUNT: usize = 10_000;
/// Turns in a repetition of writes beside watchers.
const TURNS: usize = 10;
/// A delta should take no longer, nor a notice.
const DELTA_NS: f64 = 20_000.0;
const NOTICE_NS: f64 = 10_000.0;
/// A write beside watchers may take a tenth longer than one without.
const COST_TARGET: f64 = 0.909;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for (what, bound_ns) in [(DELTA, DELTA_NS), (NOTICE, NOTICE_NS)] {
        for waits in [false, true] {
            let row = format!("{what}, {}", if waits { "a thread that waits" } else { "the same thread" });
            if bench.wants(&row) {
                latency(bench, &row, what == DELTA, waits, bound_ns)?;
            }
        }
    }
    for (what, watch) in WATCHERS {
        let row = format!("{COST}: {what}");
        if bench.wants(&row) {
            cost(bench, &row, watch)?;
        }
    }
    Ok(())
}

fn open(bench: &Bench, name: &str) -> Result<Database> {
    let path = bench.place.fresh(name)?;
    Ok(Database::open_with(path, Options::new().durability(Durability::None))?)
}

fn bodies(corpus: &Corpus) -> Result<Vec<Value>> {
    (0..corpus.len()).map(|number| Ok(Value::parse(corpus.json(number).as_bytes())?)).collect()
}

/// One who hears of every write.
enum Hearer {
    Watch(Box<Watch>),
    Subscription(Box<stemmadb::Subscription>),
}

impl Hearer {
    fn new(db: &Database, is_watch: bool) -> Result<Self> {
        if !is_watch {
            return Ok(Hearer::Subscription(Box::new(db.subscribe(db.sequence()))));
        }
        let mut watch = db.watch(field(OF_TEN[0]).exists())?;
        watch.next_delta()?;
        Ok(Hearer::Watch(Box::new(watch)))
    }

    /// The next thing heard; false if there was none in time.
    fn hear(&mut self, patience: Duration) -> Result<bool> {
        Ok(match self {
            Hearer::Watch(watch) => match watch.next_within(patience)? {
                Some(delta) => delta.events().next().transpose()?.is_some(),
                None => false,
            },
            Hearer::Subscription(subscription) => subscription.next_within(patience)?.is_some(),
        })
    }
}

/// When a write was called, when it returned, and when it was heard of, in nanoseconds.
struct Heard {
    called: u64,
    returned: u64,
    heard: u64,
}

fn latency(bench: &mut Bench, row: &str, is_watch: bool, waits: bool, bound_ns: f64) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.unsynced_count as u64);
    let bodies = bodies(&corpus)?;
    let (mut from_call, mut from_return, mut bare) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..bench.scale.repetition_count {
        let db = open(bench, "live.stemma")?;
        [&mut from_call, &mut from_return, &mut bare].into_iter().for_each(Samples::begin_repetition);
        let hearer = Hearer::new(&db, is_watch)?;
        let all = match waits {
            false => heard_by_the_writer(&db, hearer, &corpus, &bodies)?,
            true => heard_by_another(&db, hearer, &corpus, &bodies)?,
        };
        for Heard { called, returned, heard } in all {
            from_call.push((heard - called) as f64);
            from_return.push(heard.saturating_sub(returned) as f64);
        }
        db.close()?;
        if waits {
            bare_wakes(bodies.len())?.into_iter().for_each(|wake| bare.push(wake));
        }
    }
    let bound = Samples::of([bound_ns]);
    for (from, samples, has_bound) in [("write", &from_call, false), ("commit", &from_return, true)] {
        let mut heading = bench.heading(&format!("{from} to {row}"), corpus.len() as u64, false, Unit::Microseconds);
        heading.experiment = "live";
        let mut peers = Vec::new();
        if has_bound {
            heading.targets = vec![("bound", 1.0)];
            peers.push(("bound", &bound));
        }
        if waits {
            peers.push(("bare-wake", &bare));
        }
        bench.push(Row::new(heading, samples, &peers))?;
    }
    Ok(())
}

fn since(base: Instant) -> u64 {
    base.elapsed().as_nanos() as u64
}

fn heard_by_the_writer(db: &Database, mut hearer: Hearer, corpus: &Corpus, bodies: &[Value]) -> Result<Vec<Heard>> {
    let base = Instant::now();
    let mut all = Vec::with_capacity(bodies.len());
    for (number, body) in bodies.iter().enumerate() {
        let called = since(base);
        db.insert(corpus.id(number), body)?;
        let returned = since(base);
        let is_heard = hearer.hear(Duration::ZERO)?;
        all.push(Heard { called, returned, heard: since(base) });
        if !is_heard {
            return Err("a write was not heard of".into());
        }
    }
    Ok(all)
}

fn heard_by_another(db: &Database, mut hearer: Hearer, corpus: &Corpus, bodies: &[Value]) -> Result<Vec<Heard>> {
    let base = Instant::now();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let count = &count;
        let listening = scope.spawn(move || -> Result<Vec<u64>> {
            let mut all = Vec::new();
            while all.len() < bodies.len() {
                if !hearer.hear(Duration::from_secs(60))? {
                    return Err("a write was not heard of".into());
                }
                all.push(since(base));
                count.store(all.len(), Ordering::Release);
            }
            Ok(all)
        });
        let mut writes = Vec::with_capacity(bodies.len());
        for (number, body) in bodies.iter().enumerate() {
            let called = since(base);
            db.insert(corpus.id(number), body)?;
            writes.push((called, since(base)));
            let_sleep(|| count.load(Ordering::Acquire) > number || listening.is_finished());
        }
        let heard = listening.join().map_err(|_| "the reader panicked")??;
        let all = writes.into_iter().zip(heard);
        Ok(all.map(|((called, returned), heard)| Heard { called, returned, heard }).collect())
    })
}

/// Waits until the reader has heard, and is asleep again: one who is awake anyway is told sooner.
fn let_sleep(has_heard: impl Fn() -> bool) {
    while !has_heard() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_micros(50));
}

/// Nanoseconds from a change to the thread that waits for it on a condition.
fn bare_wakes(count: usize) -> Result<Vec<f64>> {
    let base = Instant::now();
    let (told, condition, heard_count) = (Mutex::new(0_u64), Condvar::new(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (told, condition, heard_count) = (&told, &condition, &heard_count);
        let listening = scope.spawn(move || {
            let mut wakes = Vec::new();
            let mut last = 0;
            while wakes.len() < count {
                let mut now = told.lock().expect("nobody panics");
                while *now == last {
                    now = condition.wait(now).expect("nobody panics");
                }
                last = *now;
                drop(now);
                wakes.push((since(base) - last) as f64);
                heard_count.store(wakes.len(), Ordering::Release);
            }
            wakes
        });
        for number in 0..count {
            *told.lock().expect("nobody panics") = since(base);
            condition.notify_one();
            let_sleep(|| heard_count.load(Ordering::Acquire) > number || listening.is_finished());
        }
        listening.join().map_err(|_| "the listener panicked".into())
    })
}

/// Watchers that no document of the corpus concerns, each in its own way.
type MakeWatched = fn(usize) -> Selector;

const WATCHERS: [(&str, MakeWatched); 5] = [
    ("other values of a field", |number| field(UNIQUE[4]).eq(format!("customer-{number}"))),
    ("other values of five fields", |number| field(UNIQUE[number % 5]).eq(format!("customer-{number}"))),
    ("two conditions", |number| field(OF_TEN[0]).eq("active").and(field(UNIQUE[4]).eq(format!("customer-{number}")))),
    ("other ranges of a field", |number| {
        let price = 1_000 + number as i64;
        field(OF_A_THOUSAND[4]).ge(price).and(field(OF_A_THOUSAND[4]).lt(price + 10))
    }),
    ("fields it does not have", |number| field(format!("field-{number}")).exists()),
];

fn cost(bench: &mut Bench, row: &str, watched: MakeWatched) -> Result<()> {
    // Many short turns, so that both sides meet the same checkpoints and neighbours.
    let repetition_count = bench.scale.repetition_count * TURNS;
    let corpus =
        Corpus::generate(Records::new(SEED), (bench.scale.unsynced_count * bench.scale.repetition_count) as u64);
    let stopwatch = Stopwatch::new(bench.clock);
    let bodies = bodies(&corpus)?;
    let (beside, alone) = (open(bench, "beside.stemma")?, open(bench, "alone.stemma")?);
    let mut watches: Vec<Watch> =
        (0..WATCHER_COUNT).map(|number| beside.watch(watched(number))).collect::<stemmadb::Result<_>>()?;
    let insert = |db: &Database, repetition: usize, samples: &mut Samples| -> Result<()> {
        let count = bodies.len() / repetition_count;
        for (number, body) in bodies.iter().enumerate().skip(repetition * count).take(count) {
            samples.push(stopwatch.nanoseconds(1, || Ok(db.insert(corpus.id(number), body).map(|_| ())?))?);
        }
        Ok(())
    };
    let mut contenders = [
        Contender::new("10,000 watchers", |repetition, samples| insert(&beside, repetition, samples)),
        Contender::new("no-watchers", |repetition, samples| insert(&alone, repetition, samples)),
    ];
    let samples = alternate(repetition_count, &mut contenders)?;
    for watch in &mut watches {
        let first = watch.next_within(Duration::ZERO)?;
        if first.is_none_or(|first| !first.is_empty()) || watch.next_within(Duration::ZERO)?.is_some() {
            return Err("a watcher was told of a write that does not concern it".into());
        }
    }
    let mut heading = bench.heading(row, corpus.len() as u64, false, Unit::Microseconds);
    heading.experiment = "live";
    heading.targets = vec![("no-watchers", COST_TARGET)];
    bench.push(Row::new(heading, &samples[0], &[("no-watchers", &samples[1])]))
}
