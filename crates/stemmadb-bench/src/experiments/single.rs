//! Single inserts, each a transaction of its own: not waiting for the disk; waiting, alone; waiting, a hundred at once.
//!
//! Unsynced inserts are timed through the close, so that nobody leaves work for later; synced ones until the last is
//! acknowledged, since that is what whoever waits for the disk waits for.
//!
//! The reference for a synced insert is the disk's own rate: a write of about as many bytes into a file that was
//! preallocated, then `fdatasync`, one after the other. Nothing that commits one transaction at a time is faster.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use super::bulk::{check_sqlite, check_stemma, prepare};
use super::{Bench, SEED, all_indexed, two_indexed};
use crate::Result;
use crate::engine::{Caching, Layout, Sqlite, Stemma};
use crate::harness::{Row, Samples, Unit};
use crate::workload::{Corpus, Records};

const UNSYNCED: &str = "single insert, unsynced";
const ALONE: &str = "single insert, 1 writer";
const CROWD: &str = "single insert, 100 writers";
const WRITER_COUNT: usize = 100;

/// About what the frame of one document takes in our log.
const FLUSHED_BYTES: usize = 320;

const RATE: Unit = Unit::PerSecond("documents/s");

/// What a turn of inserts came to.
struct Inserted {
    /// Nanoseconds until the last was acknowledged, for each document.
    each: f64,
    /// The same until the database was closed, with everything merged.
    merged: f64,
    /// Nanoseconds that each insert took for whoever asked for it.
    latencies: Vec<f64>,
    /// Flushes of the log; zero for others than us.
    flush_count: u64,
}

/// What all turns of a contender came to.
#[derive(Default)]
struct Turns {
    throughput: Samples,
    merged: Samples,
    latency: Samples,
    documents_per_flush: Samples,
}

impl Inserted {
    /// Everything since `begin` is acknowledged now.
    fn new(begin: Instant, latencies: Vec<f64>) -> Self {
        let each = begin.elapsed().as_nanos() as f64 / latencies.len() as f64;
        Inserted { each, merged: each, latencies, flush_count: 0 }
    }

    /// Adds the time that closing takes.
    fn close(&mut self, corpus: &Corpus, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        close()?;
        self.merged += start.elapsed().as_nanos() as f64 / corpus.len() as f64;
        Ok(())
    }
}

impl Turns {
    fn add(&mut self, inserted: &Inserted) {
        self.throughput.push_repetition(inserted.each);
        self.merged.push_repetition(inserted.merged);
        self.latency.begin_repetition();
        inserted.latencies.iter().for_each(|latency| self.latency.push(*latency));
        let document_count = inserted.latencies.len() as f64;
        self.documents_per_flush.push_repetition(document_count / inserted.flush_count.max(1) as f64);
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if bench.wants(UNSYNCED) {
        unsynced(bench)?;
    }
    if bench.wants(ALONE) || bench.wants(CROWD) {
        synced(bench)?;
    }
    Ok(())
}

fn unsynced(bench: &mut Bench) -> Result<()> {
    let corpus = Corpus::generate(Records::new(SEED), bench.scale.unsynced_count as u64);
    let (stemma, sqlite) = (bench.place.fresh("single.stemma")?, bench.place.fresh("single.sqlite")?);
    let (fifteen, two) = (all_indexed(false), two_indexed(false));
    let [mut ours, mut theirs, mut theirs_with_two] = [(); 3].map(|()| Turns::default());
    for _ in 0..bench.scale.repetition_count {
        ours.add(&alone_into_stemma(&stemma, false, &corpus)?);
        theirs.add(&alone_into_sqlite(&sqlite, &fifteen, &corpus)?);
        theirs_with_two.add(&alone_into_sqlite(&sqlite, &two, &corpus)?);
    }
    let document_count = corpus.len() as u64;
    let heading = bench.heading(&format!("{UNSYNCED}, through close"), document_count, false, RATE);
    let peers = [(fifteen.name, &theirs.merged), (two.name, &theirs_with_two.merged)];
    bench.push(Row::new(heading, &ours.merged, &peers))?;
    let heading = bench.heading(&format!("{UNSYNCED}: latency"), document_count, false, Unit::Microseconds);
    let peers = [(fifteen.name, &theirs.latency), (two.name, &theirs_with_two.latency)];
    bench.push(Row::new(heading, &ours.latency, &peers))
}

fn synced(bench: &mut Bench) -> Result<()> {
    let one = Corpus::generate(Records::new(SEED), bench.scale.synced_count as u64);
    let many = Corpus::generate(Records::new(SEED), (WRITER_COUNT * bench.scale.each_writer_count) as u64);
    let (stemma, sqlite) = (bench.place.fresh("synced.stemma")?, bench.place.fresh("synced.sqlite")?);
    let file = bench.place.fresh("flushed")?;
    let layout = all_indexed(true);
    let [mut ours_alone, mut ours_crowd, mut theirs_alone, mut theirs_crowd, mut disk] =
        [(); 5].map(|()| Turns::default());
    for _ in 0..bench.scale.repetition_count {
        disk.add(&bare_flushes(&file, one.len())?);
        ours_alone.add(&alone_into_stemma(&stemma, true, &one)?);
        theirs_alone.add(&alone_into_sqlite(&sqlite, &layout, &one)?);
        ours_crowd.add(&crowd_into_stemma(&stemma, &many)?);
        theirs_crowd.add(&crowd_into_sqlite(&sqlite, &layout, &many)?);
    }
    let (one, many) = (one.len() as u64, many.len() as u64);

    let mut heading = bench.heading(ALONE, one, true, RATE);
    heading.targets = vec![("disk-flush", 0.9)];
    let peers = [("disk-flush", &disk.throughput), (layout.name, &theirs_alone.throughput)];
    bench.push(Row::new(heading, &ours_alone.throughput, &peers))?;
    let heading = bench.heading(&format!("{ALONE}: latency"), one, true, Unit::Microseconds);
    let peers = [("disk-flush", &disk.latency), (layout.name, &theirs_alone.latency)];
    bench.push(Row::new(heading, &ours_alone.latency, &peers))?;

    let mut heading = bench.heading(CROWD, many, true, RATE);
    heading.targets = vec![("one-writer", 30.0)];
    let peers = [("one-writer", &ours_alone.throughput), (layout.name, &theirs_crowd.throughput)];
    bench.push(Row::new(heading, &ours_crowd.throughput, &peers))?;
    let heading = bench.heading(&format!("{CROWD}: latency"), many, true, Unit::Microseconds);
    bench.push(Row::new(heading, &ours_crowd.latency, &[(layout.name, &theirs_crowd.latency)]))?;
    let unit = Unit::Share("documents/flush");
    let heading = bench.heading(&format!("{CROWD}: documents per flush"), many, true, unit);
    let peers = [("one-writer", &ours_alone.documents_per_flush)];
    bench.push(Row::new(heading, &ours_crowd.documents_per_flush, &peers))
}

fn alone_into_stemma(path: &Path, synced: bool, corpus: &Corpus) -> Result<Inserted> {
    prepare(path)?;
    let stemma = Stemma::open(path, synced, Caching::Default)?;
    let flushed_before = stemma.flush_count()?;
    let mut inserted = alone(corpus, |document| stemma.insert(&[document]))?;
    inserted.flush_count = stemma.flush_count()? - flushed_before;
    inserted.close(corpus, || stemma.close())?;
    check_stemma(path, corpus)?;
    Ok(inserted)
}

fn alone_into_sqlite(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<Inserted> {
    prepare(path)?;
    let sqlite = Sqlite::create(path, layout)?;
    let mut inserted = alone(corpus, |document| sqlite.insert(&[document]))?;
    inserted.close(corpus, || sqlite.close())?;
    check_sqlite(path, layout, corpus)?;
    Ok(inserted)
}

fn crowd_into_stemma(path: &Path, corpus: &Corpus) -> Result<Inserted> {
    prepare(path)?;
    let stemma = Stemma::open(path, true, Caching::Default)?;
    let flushed_before = stemma.flush_count()?;
    let mut inserted = crowd(corpus, |document| stemma.insert(&[document]))?;
    inserted.flush_count = stemma.flush_count()? - flushed_before;
    inserted.close(corpus, || stemma.close())?;
    check_stemma(path, corpus)?;
    Ok(inserted)
}

/// SQLite has one writer at a time: a hundred threads share a connection, which beats a hundred that wait for a file lock.
fn crowd_into_sqlite(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<Inserted> {
    prepare(path)?;
    let sqlite = Mutex::new(Sqlite::create(path, layout)?);
    let locked = || sqlite.lock().map_err(|_| crate::Failure::from("a writer failed"));
    let mut inserted = crowd(corpus, |document| locked()?.insert(&[document]))?;
    let sqlite = sqlite.into_inner().map_err(|_| "a writer failed")?;
    inserted.close(corpus, || sqlite.close())?;
    check_sqlite(path, layout, corpus)?;
    Ok(inserted)
}

fn alone(corpus: &Corpus, mut insert: impl FnMut((&str, &str)) -> Result<()>) -> Result<Inserted> {
    let begin = Instant::now();
    let latencies = insert_each(corpus.documents(0..corpus.len()), &mut insert)?;
    Ok(Inserted::new(begin, latencies))
}

fn crowd(corpus: &Corpus, insert: impl Fn((&str, &str)) -> Result<()> + Sync) -> Result<Inserted> {
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
    Ok(Inserted::new(begin, latencies))
}

/// Inserts each document in a transaction of its own; returns the nanoseconds each took.
fn insert_each(documents: Vec<(&str, &str)>, insert: &mut dyn FnMut((&str, &str)) -> Result<()>) -> Result<Vec<f64>> {
    let mut latencies = Vec::with_capacity(documents.len());
    for document in documents {
        let start = Instant::now();
        insert(document)?;
        latencies.push(start.elapsed().as_nanos() as f64);
    }
    Ok(latencies)
}

/// The disk's own rate: `count` writes into a preallocated file, each flushed.
fn bare_flushes(path: &Path, count: usize) -> Result<Inserted> {
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
    Ok(Inserted { flush_count: count as u64, ..Inserted::new(begin, latencies) })
}

/// What each of `count` writes takes that are flushed one after the other, in nanoseconds.
pub(super) fn flush_bare(path: &Path, count: usize) -> Result<Vec<f64>> {
    Ok(bare_flushes(path, count)?.latencies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Place;

    #[test]
    fn every_writer_inserts_its_own() {
        let corpus = Corpus::generate(Records::new(SEED), 300);
        let seen = Mutex::new(std::collections::BTreeSet::new());
        let inserted = crowd(&corpus, |(id, _)| {
            seen.lock().unwrap().insert(id.to_owned());
            Ok(())
        });
        assert_eq!(inserted.unwrap().latencies.len(), 300);
        assert_eq!(seen.into_inner().unwrap().len(), 300);
    }

    #[test]
    fn both_take_what_a_crowd_inserts() {
        let place = Place::new(None).unwrap();
        let corpus = Corpus::generate(Records::new(SEED), 200);
        let ours = crowd_into_stemma(&place.fresh("a").unwrap(), &corpus).unwrap();
        assert!(ours.flush_count > 0 && ours.flush_count <= 200, "{}", ours.flush_count);
        crowd_into_sqlite(&place.fresh("b").unwrap(), &all_indexed(true), &corpus).unwrap();
        assert_eq!(bare_flushes(&place.fresh("c").unwrap(), 3).unwrap().flush_count, 3);
    }
}
