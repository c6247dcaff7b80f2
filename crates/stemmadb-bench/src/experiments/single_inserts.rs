//! Single inserts, one document per transaction: unflushed, flushed with one writer, and flushed with 100 writers.
//!
//! Unflushed inserts are timed until the database is closed, so that no work is deferred; flushed ones until the last
//! one is acknowledged.
//!
//! The reference for flushed inserts is the disk's own rate: writes of similar size into a preallocated file, each
//! followed by `fdatasync`. No engine that commits one transaction at a time can be faster.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use super::bulk_inserts::{check_sqlite, check_stemma, prepare};
use super::{Bench, SEED, all_indexed, two_indexed};
use crate::Result;
use crate::engine::{Caching, Layout, Sqlite, Stemma};
use crate::harness::{ResultRow, Samples, Unit};
use crate::workload::{Corpus, Records};

const UNSYNCED: &str = "single insert, unsynced";
const ONE_WRITER: &str = "single insert, 1 writer";
const MANY_WRITERS: &str = "single insert, 100 writers";
const WRITER_COUNT: usize = 100;

/// Approximate size of one document's log frame.
const FLUSHED_BYTES: usize = 320;

const RATE: Unit = Unit::PerSecond("documents/s");

/// Result of one turn of inserts.
struct InsertRun {
    /// Nanoseconds per document until the last one was acknowledged.
    each: f64,
    /// Nanoseconds per document until the database was closed and merged.
    merged: f64,
    /// Latency of each insert in nanoseconds.
    latencies: Vec<f64>,
    /// Log flushes; zero for peers.
    flush_count: u64,
}

/// Samples of all turns of a contender.
#[derive(Default)]
struct InsertSamples {
    throughput: Samples,
    merged: Samples,
    latency: Samples,
    documents_per_flush: Samples,
}

impl InsertRun {
    /// Ends the measurement started at `begin`.
    fn new(begin: Instant, latencies: Vec<f64>) -> Self {
        let each = begin.elapsed().as_nanos() as f64 / latencies.len() as f64;
        InsertRun { each, merged: each, latencies, flush_count: 0 }
    }

    /// Closes the database and adds its time.
    fn close(&mut self, corpus: &Corpus, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        close()?;
        self.merged += start.elapsed().as_nanos() as f64 / corpus.len() as f64;
        Ok(())
    }
}

impl InsertSamples {
    fn add(&mut self, run: &InsertRun) {
        self.throughput.push_repetition(run.each);
        self.merged.push_repetition(run.merged);
        self.latency.begin_repetition();
        run.latencies.iter().for_each(|latency| self.latency.push(*latency));
        let document_count = run.latencies.len() as f64;
        self.documents_per_flush.push_repetition(document_count / run.flush_count.max(1) as f64);
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if bench.is_selected(UNSYNCED) {
        unsynced(bench)?;
    }
    if bench.is_selected(ONE_WRITER) || bench.is_selected(MANY_WRITERS) {
        synced(bench)?;
    }
    Ok(())
}

fn unsynced(bench: &mut Bench) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.unsynced_count as u64);
    let (stemma, sqlite) = (bench.scratch.fresh_path("single.stemma")?, bench.scratch.fresh_path("single.sqlite")?);
    let (fifteen, two) = (all_indexed(false), two_indexed(false));
    let [mut ours, mut theirs, mut theirs_with_two] = [(); 3].map(|()| InsertSamples::default());
    for _ in 0..bench.scale.repetition_count {
        ours.add(&stemma_with_one_writer(&stemma, false, &corpus)?);
        theirs.add(&sqlite_with_one_writer(&sqlite, &fifteen, &corpus)?);
        theirs_with_two.add(&sqlite_with_one_writer(&sqlite, &two, &corpus)?);
    }
    let document_count = corpus.len() as u64;
    let heading = bench.heading(&format!("{UNSYNCED}, through close"), document_count, false, RATE);
    let peers = [(fifteen.name, &theirs.merged), (two.name, &theirs_with_two.merged)];
    bench.push(ResultRow::new(heading, &ours.merged, &peers))?;
    let heading = bench.heading(&format!("{UNSYNCED}: latency"), document_count, false, Unit::Microseconds);
    let peers = [(fifteen.name, &theirs.latency), (two.name, &theirs_with_two.latency)];
    bench.push(ResultRow::new(heading, &ours.latency, &peers))
}

fn synced(bench: &mut Bench) -> Result<()> {
    let one = Corpus::generate(Records::new(SEED), bench.scale.synced_count as u64);
    let many = Corpus::generate(Records::new(SEED), (WRITER_COUNT * bench.scale.each_writer_count) as u64);
    let (stemma, sqlite) = (bench.scratch.fresh_path("synced.stemma")?, bench.scratch.fresh_path("synced.sqlite")?);
    let file = bench.scratch.fresh_path("flushed")?;
    let layout = all_indexed(true);
    let [mut ours_one, mut ours_many, mut theirs_one, mut theirs_many, mut disk] =
        [(); 5].map(|()| InsertSamples::default());
    for _ in 0..bench.scale.repetition_count {
        disk.add(&bare_flushes(&file, one.len())?);
        ours_one.add(&stemma_with_one_writer(&stemma, true, &one)?);
        theirs_one.add(&sqlite_with_one_writer(&sqlite, &layout, &one)?);
        ours_many.add(&stemma_with_many_writers(&stemma, &many)?);
        theirs_many.add(&sqlite_with_many_writers(&sqlite, &layout, &many)?);
    }
    let (one, many) = (one.len() as u64, many.len() as u64);

    let mut heading = bench.heading(ONE_WRITER, one, true, RATE);
    heading.targets = vec![("disk-flush", 0.9)];
    let peers = [("disk-flush", &disk.throughput), (layout.name, &theirs_one.throughput)];
    bench.push(ResultRow::new(heading, &ours_one.throughput, &peers))?;
    let heading = bench.heading(&format!("{ONE_WRITER}: latency"), one, true, Unit::Microseconds);
    let peers = [("disk-flush", &disk.latency), (layout.name, &theirs_one.latency)];
    bench.push(ResultRow::new(heading, &ours_one.latency, &peers))?;

    let mut heading = bench.heading(MANY_WRITERS, many, true, RATE);
    heading.targets = vec![("one-writer", 30.0)];
    let peers = [("one-writer", &ours_one.throughput), (layout.name, &theirs_many.throughput)];
    bench.push(ResultRow::new(heading, &ours_many.throughput, &peers))?;
    let heading = bench.heading(&format!("{MANY_WRITERS}: latency"), many, true, Unit::Microseconds);
    bench.push(ResultRow::new(heading, &ours_many.latency, &[(layout.name, &theirs_many.latency)]))?;
    let unit = Unit::Share("documents/flush");
    let heading = bench.heading(&format!("{MANY_WRITERS}: documents per flush"), many, true, unit);
    let peers = [("one-writer", &ours_one.documents_per_flush)];
    bench.push(ResultRow::new(heading, &ours_many.documents_per_flush, &peers))
}

fn stemma_with_one_writer(path: &Path, synced: bool, corpus: &Corpus) -> Result<InsertRun> {
    prepare(path)?;
    let stemma = Stemma::open(path, synced, Caching::Default)?;
    let flushed_before = stemma.flush_count()?;
    let mut run = insert_with_one_writer(corpus, |document| stemma.insert(&[document]))?;
    run.flush_count = stemma.flush_count()? - flushed_before;
    run.close(corpus, || stemma.close())?;
    check_stemma(path, corpus)?;
    Ok(run)
}

fn sqlite_with_one_writer(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<InsertRun> {
    prepare(path)?;
    let sqlite = Sqlite::create(path, layout)?;
    let mut run = insert_with_one_writer(corpus, |document| sqlite.insert(&[document]))?;
    run.close(corpus, || sqlite.close())?;
    check_sqlite(path, layout, corpus)?;
    Ok(run)
}

fn stemma_with_many_writers(path: &Path, corpus: &Corpus) -> Result<InsertRun> {
    prepare(path)?;
    let stemma = Stemma::open(path, true, Caching::Default)?;
    let flushed_before = stemma.flush_count()?;
    let mut run = insert_with_many_writers(corpus, |document| stemma.insert(&[document]))?;
    run.flush_count = stemma.flush_count()? - flushed_before;
    run.close(corpus, || stemma.close())?;
    check_stemma(path, corpus)?;
    Ok(run)
}

/// SQLite has one writer at a time: 100 threads share a connection, which is faster than waiting for a file lock.
fn sqlite_with_many_writers(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<InsertRun> {
    prepare(path)?;
    let sqlite = Mutex::new(Sqlite::create(path, layout)?);
    let locked = || sqlite.lock().map_err(|_| crate::Failure::from("a writer failed"));
    let mut run = insert_with_many_writers(corpus, |document| locked()?.insert(&[document]))?;
    let sqlite = sqlite.into_inner().map_err(|_| "a writer failed")?;
    run.close(corpus, || sqlite.close())?;
    check_sqlite(path, layout, corpus)?;
    Ok(run)
}

fn insert_with_one_writer(corpus: &Corpus, mut insert: impl FnMut((&str, &str)) -> Result<()>) -> Result<InsertRun> {
    let begin = Instant::now();
    let latencies = insert_each(corpus.documents(0..corpus.len()), &mut insert)?;
    Ok(InsertRun::new(begin, latencies))
}

fn insert_with_many_writers(corpus: &Corpus, insert: impl Fn((&str, &str)) -> Result<()> + Sync) -> Result<InsertRun> {
    let batches: Vec<_> = corpus.batches(corpus.len() / WRITER_COUNT).collect();
    let begin = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let insert = &insert;
        let writers: Vec<_> =
            batches.into_iter().map(|batch| scope.spawn(move || insert_each(batch, &mut |one| insert(one)))).collect();
        let mut latencies = Vec::with_capacity(corpus.len());
        for writer in writers {
            latencies.extend(writer.join().map_err(|_| "a writer failed")??);
        }
        Ok::<_, crate::Failure>(latencies)
    })?;
    Ok(InsertRun::new(begin, latencies))
}

/// Inserts each document in its own transaction; returns the latencies in nanoseconds.
fn insert_each(documents: Vec<(&str, &str)>, insert: &mut dyn FnMut((&str, &str)) -> Result<()>) -> Result<Vec<f64>> {
    let mut latencies = Vec::with_capacity(documents.len());
    for document in documents {
        let start = Instant::now();
        insert(document)?;
        latencies.push(start.elapsed().as_nanos() as f64);
    }
    Ok(latencies)
}

/// Writes and flushes `count` records in a preallocated file: the disk's own rate.
fn bare_flushes(path: &Path, count: usize) -> Result<InsertRun> {
    prepare(path)?;
    let file = File::create(path)?;
    file.write_all_at(&vec![0; count * FLUSHED_BYTES], 0)?;
    file.sync_all()?;
    let record = [0x5a; FLUSHED_BYTES];
    let mut latencies = Vec::with_capacity(count);
    let begin = Instant::now();
    for position in 0..count {
        let start = Instant::now();
        file.write_all_at(&record, (position * FLUSHED_BYTES) as u64)?;
        file.sync_data()?;
        latencies.push(start.elapsed().as_nanos() as f64);
    }
    Ok(InsertRun { flush_count: count as u64, ..InsertRun::new(begin, latencies) })
}

/// Returns the latencies of `count` consecutive flushes, in nanoseconds.
pub(super) fn flush_latencies(path: &Path, count: usize) -> Result<Vec<f64>> {
    Ok(bare_flushes(path, count)?.latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ScratchDirectory;

    #[test]
    fn every_writer_inserts_its_own_documents() {
        let corpus = Corpus::generate(Records::new(SEED), 300);
        let seen = Mutex::new(std::collections::BTreeSet::new());
        let run = insert_with_many_writers(&corpus, |(id, _)| {
            seen.lock().unwrap().insert(id.to_owned());
            Ok(())
        });
        assert_eq!(run.unwrap().latencies.len(), 300);
        assert_eq!(seen.into_inner().unwrap().len(), 300);
    }

    #[test]
    fn concurrent_inserts_reach_both_engines() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let corpus = Corpus::generate(Records::new(SEED), 200);
        let ours = stemma_with_many_writers(&scratch.fresh_path("a").unwrap(), &corpus).unwrap();
        assert!(ours.flush_count > 0 && ours.flush_count <= 200, "{}", ours.flush_count);
        sqlite_with_many_writers(&scratch.fresh_path("b").unwrap(), &all_indexed(true), &corpus).unwrap();
        assert_eq!(bare_flushes(&scratch.fresh_path("c").unwrap(), 3).unwrap().flush_count, 3);
    }
}
