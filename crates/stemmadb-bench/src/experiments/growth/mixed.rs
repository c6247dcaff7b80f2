//! Mixed load: 32 threads that insert, update, get and query, a quarter each, for a limited time.
//!
//! A snapshot of Stemma is held throughout, so that the tree keeps its files. SQLite has one connection
//! for writes, guarded by a lock, and a connection for reads per thread, so that threads do not compete for its write
//! lock by polling.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::SEED;
use super::reads::{devices, id};
use super::request::{EngineName, Figure, FigureUnit, Request};
use super::subject::{Subject, layout, tree_share};
use crate::Result;
use crate::engine::{Caching, DocumentForm, Engine, RowCounter, Sqlite, Stemma};
use crate::harness::Random;
use crate::workload::{Corpus, Events};

const THREAD_COUNT: u64 = 32;
/// Distance between a document's number and that of its new content.
const UPDATE_OFFSET: u64 = 1_000_000_000;
/// Interval at which the size of the tree is observed.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the load on a copy of a database, which it changes.
pub(super) fn run(request: &Request, seconds: u64) -> Result<Vec<Figure>> {
    match request.engine {
        EngineName::Stemma => run_stemma(request, seconds),
        EngineName::Sqlite => run_sqlite(request, seconds),
    }
}

fn run_stemma(request: &Request, seconds: u64) -> Result<Vec<Figure>> {
    let stemma = Stemma::open(&request.path, true, Caching::Default)?;
    let snapshot = stemma.database().snapshot()?;
    let mut peak = tree_share(&stemma)?;
    let load = Load::new(stemma.document_count()?, seconds);
    let mut states = Vec::new();
    let times = load.run(
        |thread| load.work(thread, &stemma, |id, json| stemma.upsert(id, json)),
        || {
            peak = f64::max(peak, tree_share(&stemma)?);
            states.push((load.start.elapsed(), stemma.database().info()?));
            Ok(())
        },
    )?;
    for (at, info) in states.iter().filter(|(at, _)| times.slowest.is_near(*at)) {
        eprintln!("mixed load, around its longest write: after {at:?} {info:?}");
    }
    let mut figures = times.figures(load.start.elapsed());
    figures.push(Figure::single("mixed load: peak of the tree beside its live bytes", FigureUnit::Times, peak));
    let stall_count = stemma.database().info()?.stall_count;
    figures.push(Figure::single("mixed load: stalls", FigureUnit::Count, stall_count as f64));
    super::inserts::memory("mixed load: memory", &mut figures)?;
    drop(snapshot);
    let subject = Subject::Stemma(stemma);
    let quiet = subject.settle()?.as_nanos() as f64;
    figures.push(Figure::single("mixed load: time until quiet", FigureUnit::Milliseconds, quiet));
    if let Subject::Stemma(stemma) = &subject {
        let rest = tree_share(stemma)?;
        figures.push(Figure::single("mixed load: tree beside its live bytes, afterwards", FigureUnit::Times, rest));
    }
    subject.close()?;
    Ok(figures)
}

fn run_sqlite(request: &Request, seconds: u64) -> Result<Vec<Figure>> {
    let writer = Sqlite::open(&request.path, &layout())?;
    let load = Load::new(writer.document_count()?, seconds);
    let writer = Mutex::new(writer);
    let write = |id: &str, json: &str| writer.lock().map_err(|_| "a writer panicked")?.upsert(id, json);
    let times = load.run(
        |thread| {
            let reader = Sqlite::open_reader(&request.path, &layout())?;
            let times = load.work(thread, &reader, write)?;
            reader.close()?;
            Ok(times)
        },
        || Ok(()),
    )?;
    let mut figures = times.figures(load.start.elapsed());
    super::inserts::memory("mixed load: memory", &mut figures)?;
    writer.into_inner().map_err(|_| "a writer panicked")?.close()?;
    Ok(figures)
}

/// The longest write of a thread, or of all.
#[derive(Clone, Copy, Default)]
struct SlowestWrite {
    elapsed_ns: u64,
    /// When it ended, since the start of the load.
    at: Duration,
    is_update: bool,
}

impl SlowestWrite {
    /// Returns whether the write ran within half a second of a time.
    fn is_near(self, time: Duration) -> bool {
        let start = self.at.saturating_sub(Duration::from_nanos(self.elapsed_ns));
        time + Duration::from_millis(500) > start && time < self.at + Duration::from_millis(500)
    }

    /// Says which write it was.
    fn note(self) -> String {
        let kind = if self.is_update { "an update" } else { "an insert" };
        format!("{kind}, {:.1} s after the start", self.at.as_secs_f64())
    }
}

/// What the threads share.
struct Load {
    loaded_count: u64,
    /// The number of the next inserted document.
    next: AtomicU64,
    start: Instant,
    end: Instant,
    write_count: AtomicU64,
    longest_write_us: AtomicU64,
}

/// Latencies in nanoseconds.
#[derive(Default)]
struct Times {
    writes: Vec<u64>,
    reads: Vec<u64>,
    slowest: SlowestWrite,
}

impl Load {
    fn new(loaded_count: u64, seconds: u64) -> Self {
        let start = Instant::now();
        Load {
            loaded_count,
            next: AtomicU64::new(loaded_count),
            start,
            end: start + Duration::from_secs(seconds),
            write_count: AtomicU64::new(0),
            longest_write_us: AtomicU64::new(0),
        }
    }

    /// Runs `work` in each thread, and `observe` from time to time.
    fn run(
        &self,
        work: impl Fn(u64) -> Result<Times> + Sync,
        mut observe: impl FnMut() -> Result<()>,
    ) -> Result<Times> {
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..THREAD_COUNT).map(|thread| scope.spawn(move || work(thread))).collect();
            let mut reported = Instant::now();
            while Instant::now() < self.end {
                std::thread::sleep(SAMPLE_INTERVAL);
                observe()?;
                if reported.elapsed() > PROGRESS_INTERVAL {
                    reported = Instant::now();
                    let longest_ms = self.longest_write_us.load(Ordering::Relaxed) / 1_000;
                    let write_count = self.write_count.load(Ordering::Relaxed);
                    eprintln!("mixed load: {write_count} writes, the longest took {longest_ms} ms");
                }
            }
            let mut all = Times::default();
            for thread in threads {
                let mut times = thread.join().map_err(|_| "a thread of the mixed load panicked")??;
                all.writes.append(&mut times.writes);
                all.reads.append(&mut times.reads);
                all.slowest = std::cmp::max_by_key(all.slowest, times.slowest, |write| write.elapsed_ns);
            }
            Ok(all)
        })
    }

    /// Does the work of one thread.
    fn work(&self, thread: u64, reader: &dyn Engine, write: impl Fn(&str, &str) -> Result<()>) -> Result<Times> {
        let mut random = Random::at(SEED, thread);
        let events = Events::new(SEED);
        let event = |number| Corpus::generate_range(events, number..number + 1);
        // Two queries, so that neither engine prepares a single one.
        let specs = [devices(&mut random), devices(&mut random)];
        let mut query = reader.query_runner(&specs)?;
        let mut get = reader.document_reader(DocumentForm::Document)?;
        let mut times = Times::default();
        while Instant::now() < self.end {
            let number = random.below(self.loaded_count);
            let mut counter = RowCounter::default();
            match random.below(4) {
                0 => {
                    let number = self.next.fetch_add(1, Ordering::Relaxed);
                    let event = event(number);
                    self.time_write(&mut times, false, || write(event.id(0), event.json(0)))?;
                }
                1 => {
                    let event = event(number + UPDATE_OFFSET);
                    self.time_write(&mut times, true, || write(&id(number), event.json(0)))?;
                }
                2 => times.reads.push(time(|| get(&id(number), &mut counter))?),
                _ => {
                    let spec = devices(&mut random);
                    times.reads.push(time(|| query(&spec, &mut counter))?);
                }
            }
        }
        Ok(times)
    }

    fn time_write(&self, times: &mut Times, is_update: bool, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let elapsed_ns = time(write)?;
        self.write_count.fetch_add(1, Ordering::Relaxed);
        self.longest_write_us.fetch_max(elapsed_ns / 1_000, Ordering::Relaxed);
        times.writes.push(elapsed_ns);
        if elapsed_ns > times.slowest.elapsed_ns {
            times.slowest = SlowestWrite { elapsed_ns, at: self.start.elapsed(), is_update };
        }
        Ok(())
    }
}

fn time(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as u64)
}

impl Times {
    fn figures(mut self, elapsed: Duration) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (name, times) in [("write", &mut self.writes), ("read", &mut self.reads)] {
            times.sort_unstable();
            let elapsed_ns = elapsed.as_nanos() as f64;
            let rate = elapsed_ns / times.len().max(1) as f64;
            figures.push(Figure::single(format!("mixed load: {name}s"), FigureUnit::OperationsPerSecond, rate));
            let parts = [("median", 0.5), ("99.9th percentile", 0.999), ("longest", 1.0)];
            for (part, share) in parts {
                let row = format!("mixed load: {name}, {part}");
                let figure = Figure::single(row, FigureUnit::Milliseconds, quantile(times, share) as f64);
                let is_slowest_write = name == "write" && share == 1.0;
                let note = is_slowest_write.then(|| self.slowest.note());
                figures.push(Figure { note, ..figure });
            }
        }
        figures
    }
}

/// Returns the nearest-rank quantile of sorted values.
fn quantile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_use_nearest_rank() {
        let sorted: Vec<u64> = (1..=2_000).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.999), quantile(&sorted, 1.0)), (1_000, 1_998, 2_000));
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
