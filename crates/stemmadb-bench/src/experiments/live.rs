//! Live queries: notification latency, and the cost of watchers to writes that match none of them.
//!
//! Writes are not flushed. *Write to …* is measured from the call of the write, *commit to …* from its return (0 if the
//! reader was faster). `bare-wake` is the time to wake a thread that waits on a condition variable, a lower bound for a
//! reader that sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use stemmadb::{Database, Durability, Options, Selector, Value, Watch, field};

use super::{Bench, SEED};
use crate::Result;
use crate::harness::{Contender, ResultRow, Samples, Stopwatch, Unit, alternate};
use crate::workload::{Corpus, OF_A_THOUSAND, OF_TEN, Records, UNIQUE};

const DELTA: &str = "delta";
const NOTICE: &str = "notification";
const COST: &str = "write beside 10,000 watchers";

const WATCHER_COUNT: usize = 10_000;
/// Turns per repetition of writes beside watchers.
const TURNS: usize = 10;
/// Target latencies of a delta and of a change notification.
const DELTA_NS: f64 = 20_000.0;
const NOTICE_NS: f64 = 10_000.0;
/// A write beside watchers may take 10 % longer.
const COST_TARGET: f64 = 0.909;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for (what, bound_ns) in [(DELTA, DELTA_NS), (NOTICE, NOTICE_NS)] {
        for waits in [false, true] {
            let row = format!("{what}, {}", if waits { "waiting thread" } else { "same thread" });
            if bench.is_selected(&row) {
                latency(bench, &row, what == DELTA, waits, bound_ns)?;
            }
        }
    }
    for (what, watch) in WATCHERS {
        let row = format!("{COST}: {what}");
        if bench.is_selected(&row) {
            cost(bench, &row, watch)?;
        }
    }
    Ok(())
}

fn open(bench: &Bench, name: &str) -> Result<Database> {
    let path = bench.scratch.fresh_path(name)?;
    Ok(Database::open_with(path, Options::new().durability(Durability::None))?)
}

fn bodies(corpus: &Corpus) -> Result<Vec<Value>> {
    (0..corpus.len()).map(|number| Ok(Value::parse(corpus.json(number).as_bytes())?)).collect()
}

/// A reader notified of every write.
enum Listener {
    Watch(Box<Watch>),
    Subscription(Box<stemmadb::Subscription>),
}

impl Listener {
    fn new(db: &Database, is_watch: bool) -> Result<Self> {
        if !is_watch {
            return Ok(Listener::Subscription(Box::new(db.subscribe(db.sequence()))));
        }
        let mut watch = db.watch(field(OF_TEN[0]).exists())?;
        watch.next_delta()?;
        Ok(Listener::Watch(Box::new(watch)))
    }

    /// Waits for the next event; returns false on timeout.
    fn next_event(&mut self, timeout: Duration) -> Result<bool> {
        Ok(match self {
            Listener::Watch(watch) => match watch.next_within(timeout)? {
                Some(delta) => delta.events().next().transpose()?.is_some(),
                None => false,
            },
            Listener::Subscription(subscription) => subscription.next_within(timeout)?.is_some(),
        })
    }
}

/// Times of a write's call, its return, and its notification, in nanoseconds.
struct NotificationTimes {
    called: u64,
    returned: u64,
    notified: u64,
}

fn latency(bench: &mut Bench, row: &str, is_watch: bool, waits: bool, bound_ns: f64) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.unsynced_count as u64);
    let bodies = bodies(&corpus)?;
    let (mut from_call, mut from_return, mut bare) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..bench.scale.repetition_count {
        let db = open(bench, "live.stemma")?;
        [&mut from_call, &mut from_return, &mut bare].into_iter().for_each(Samples::begin_repetition);
        let listener = Listener::new(&db, is_watch)?;
        let all = match waits {
            false => notify_same_thread(&db, listener, &corpus, &bodies)?,
            true => notify_waiting_thread(&db, listener, &corpus, &bodies)?,
        };
        for NotificationTimes { called, returned, notified } in all {
            from_call.push((notified - called) as f64);
            from_return.push(notified.saturating_sub(returned) as f64);
        }
        db.close()?;
        if waits {
            bare_wakes(bodies.len())?.into_iter().for_each(|wake| bare.push(wake));
        }
    }
    let bound = Samples::from_costs([bound_ns]);
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
        bench.push(ResultRow::new(heading, samples, &peers))?;
    }
    Ok(())
}

fn since(base: Instant) -> u64 {
    base.elapsed().as_nanos() as u64
}

fn notify_same_thread(
    db: &Database,
    mut listener: Listener,
    corpus: &Corpus,
    bodies: &[Value],
) -> Result<Vec<NotificationTimes>> {
    let base = Instant::now();
    let mut all = Vec::with_capacity(bodies.len());
    for (number, body) in bodies.iter().enumerate() {
        let called = since(base);
        db.insert(corpus.id(number), body)?;
        let returned = since(base);
        let was_notified = listener.next_event(Duration::ZERO)?;
        all.push(NotificationTimes { called, returned, notified: since(base) });
        if !was_notified {
            return Err("a write was not notified".into());
        }
    }
    Ok(all)
}

fn notify_waiting_thread(
    db: &Database,
    mut listener: Listener,
    corpus: &Corpus,
    bodies: &[Value],
) -> Result<Vec<NotificationTimes>> {
    let base = Instant::now();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let count = &count;
        let listening = scope.spawn(move || -> Result<Vec<u64>> {
            let mut all = Vec::new();
            while all.len() < bodies.len() {
                if !listener.next_event(Duration::from_secs(60))? {
                    return Err("a write was not notified".into());
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
            wait_until_asleep(|| count.load(Ordering::Acquire) > number || listening.is_finished());
        }
        let notified = listening.join().map_err(|_| "the reader panicked")??;
        let all = writes.into_iter().zip(notified);
        Ok(all.map(|((called, returned), notified)| NotificationTimes { called, returned, notified }).collect())
    })
}

/// Waits until the reader was notified and is asleep again; an awake reader would be notified faster.
fn wait_until_asleep(was_notified: impl Fn() -> bool) {
    while !was_notified() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_micros(50));
}

/// Measures, in nanoseconds, how long a thread waiting on a condition variable takes to wake.
fn bare_wakes(count: usize) -> Result<Vec<f64>> {
    let base = Instant::now();
    let (changed_at, condition, wake_count) = (Mutex::new(0_u64), Condvar::new(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (changed_at, condition, wake_count) = (&changed_at, &condition, &wake_count);
        let listening = scope.spawn(move || {
            let mut wakes = Vec::new();
            let mut last = 0;
            while wakes.len() < count {
                let mut now = changed_at.lock().expect("no thread panics");
                while *now == last {
                    now = condition.wait(now).expect("no thread panics");
                }
                last = *now;
                drop(now);
                wakes.push((since(base) - last) as f64);
                wake_count.store(wakes.len(), Ordering::Release);
            }
            wakes
        });
        for number in 0..count {
            *changed_at.lock().expect("no thread panics") = since(base);
            condition.notify_one();
            wait_until_asleep(|| wake_count.load(Ordering::Acquire) > number || listening.is_finished());
        }
        listening.join().map_err(|_| "the listener panicked".into())
    })
}

/// Builds a selector that matches no document of the corpus.
type MakeSelector = fn(usize) -> Selector;

const WATCHERS: [(&str, MakeSelector); 5] = [
    ("other values of a field", |number| field(UNIQUE[4]).eq(format!("customer-{number}"))),
    ("other values of five fields", |number| field(UNIQUE[number % 5]).eq(format!("customer-{number}"))),
    ("two conditions", |number| field(OF_TEN[0]).eq("active").and(field(UNIQUE[4]).eq(format!("customer-{number}")))),
    ("other ranges of a field", |number| {
        let price = 1_000 + number as i64;
        field(OF_A_THOUSAND[4]).ge(price).and(field(OF_A_THOUSAND[4]).lt(price + 10))
    }),
    ("absent fields", |number| field(format!("field-{number}")).exists()),
];

fn cost(bench: &mut Bench, row: &str, make_selector: MakeSelector) -> Result<()> {
    // Many short turns, so that both sides meet the same checkpoints and background load.
    let repetition_count = bench.scale.repetition_count * TURNS;
    let corpus =
        Corpus::generate(Records::new(SEED), (bench.scale.unsynced_count * bench.scale.repetition_count) as u64);
    let stopwatch = Stopwatch::new(bench.clock);
    let bodies = bodies(&corpus)?;
    let (beside, alone) = (open(bench, "beside.stemma")?, open(bench, "alone.stemma")?);
    let mut watches: Vec<Watch> =
        (0..WATCHER_COUNT).map(|number| beside.watch(make_selector(number))).collect::<stemmadb::Result<_>>()?;
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
            return Err("a watcher was notified of a write that it does not match".into());
        }
    }
    let mut heading = bench.heading(row, corpus.len() as u64, false, Unit::Microseconds);
    heading.experiment = "live";
    heading.targets = vec![("no-watchers", COST_TARGET)];
    bench.push(ResultRow::new(heading, &samples[0], &[("no-watchers", &samples[1])]))
}
