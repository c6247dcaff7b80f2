//! Batch writes (after CouchDB issue COUCHDB-1023): transactions of many documents against single-document
//! transactions, group commit against exclusive writers, delayed commits, writes of the tree per checkpoint, and system
//! calls per document.

mod calls;
mod checkpoint;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use stemmadb::Durability;

use super::{Bench, SEED};
use crate::Result;
use crate::engine::{Caching, Stemma};
use crate::harness::{Contender, Heading, Random, ResultRow, Samples, Unit, measure_row};

pub(crate) use calls::run_child;

/// Pairs of document count and document size in bytes: the original's first, then a sweep.
const BATCHES: [(usize, usize); 6] = [(30, 1_000), (30, 4_000), (10, 1_000), (100, 1_000), (1_000, 1_000), (30, 100)];
const WRITER_COUNTS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 100, 128, 256];
/// Numbers of writers whose commits are delayed.
const DELAYED_WRITER_COUNTS: [usize; 4] = [1, 16, 100, 256];
/// As long as CouchDB delayed commits.
const DELAY: Duration = Duration::from_secs(1);
/// Size of the documents that concurrent writers insert.
const DOCUMENT_BYTES: usize = 1_000;
/// Log record overhead per document, in bytes.
const FRAME_BYTES: usize = 60;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for (count, bytes) in BATCHES {
        for synced in [true, false] {
            batch(bench, count, bytes, synced)?;
        }
    }
    for writer_count in WRITER_COUNTS {
        writers(bench, writer_count)?;
    }
    for writer_count in DELAYED_WRITER_COUNTS {
        delayed_writers(bench, writer_count)?;
    }
    checkpoint::run(bench)?;
    calls::run(bench)
}

/// Documents of a given JSON size, with their ids.
struct Documents(Vec<(String, String)>);

impl Documents {
    fn make(count: usize, bytes: usize) -> Self {
        let document = |number: usize| {
            let mut random = Random::at(SEED, number as u64);
            let head = format!(r#"{{"number":{number},"text":""#);
            let letter = |_| char::from(b'a' + random.below(26) as u8);
            let text: String = (head.len() + 2..bytes).map(letter).collect();
            (format!("{number:08}"), format!("{head}{text}\"}}"))
        };
        Documents((0..count).map(document).collect())
    }

    fn all(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(id, json)| (id.as_str(), json.as_str())).collect()
    }
}

fn heading(bench: &Bench, row: &str, documents: usize, synced: bool, unit: Unit) -> Heading {
    Heading { experiment: "batches", ..bench.heading(row, documents as u64, synced, unit) }
}

/// Measures one transaction of `count` documents against single-document transactions and against plain file writes.
fn batch(bench: &mut Bench, count: usize, bytes: usize, synced: bool) -> Result<()> {
    let name = format!("{count} documents of {bytes} bytes at once");
    if !bench.is_selected(&name) {
        return Ok(());
    }
    let documents = Documents::make(count, bytes);
    let document_count = documents.0.len();
    let scratch = &bench.scratch;
    // Each turn writes to a new database and checks that all documents are stored.
    let stemma = |at_once: bool, samples: &mut Samples| -> Result<()> {
        let stemma = Stemma::open(&scratch.fresh_path("batch.stemma")?, synced, Caching::Default)?;
        let documents = documents.all();
        let start = Instant::now();
        match at_once {
            true => stemma.insert(&documents)?,
            false => documents.iter().try_for_each(|one| stemma.insert(&[*one]))?,
        }
        samples.push(start.elapsed().as_nanos() as f64);
        check(&stemma, document_count)?;
        stemma.close()
    };
    let file = |at_once: bool, samples: &mut Samples| {
        let path = scratch.fresh_path("batch.file")?;
        samples.push(write_file(&path, &documents, at_once, synced)?);
        Ok(())
    };
    let contenders = vec![
        Contender::new("stemma", |_, samples| stemma(true, samples)),
        Contender::new("one-by-one", |_, samples| stemma(false, samples)),
        Contender::new("file", |_, samples| file(true, samples)),
        Contender::new("file-one-by-one", |_, samples| file(false, samples)),
    ];
    let heading = heading(bench, &name, document_count, synced, Unit::Microseconds);
    let row = measure_row(heading, bench.scale.repetition_count, contenders)?;
    bench.push(row)
}

/// Writes the same bytes into a preallocated file, in one write or one per document; returns the nanoseconds.
fn write_file(path: &Path, documents: &Documents, at_once: bool, synced: bool) -> Result<f64> {
    let records: Vec<Vec<u8>> =
        documents.0.iter().map(|(_, json)| [json.as_bytes(), &[0; FRAME_BYTES]].concat()).collect();
    let length: usize = records.iter().map(Vec::len).sum();
    let file = File::create(path)?;
    file.write_all_at(&vec![0; length], 0)?;
    file.sync_all()?;
    let flush = || if synced { file.sync_data() } else { Ok(()) };
    let whole = records.concat();
    let start = Instant::now();
    if at_once {
        file.write_all_at(&whole, 0)?;
        flush()?;
    } else {
        let mut position = 0;
        for record in &records {
            file.write_all_at(record, position)?;
            flush()?;
            position += record.len() as u64;
        }
    }
    let elapsed = start.elapsed();
    let mut written = vec![1; length];
    file.read_exact_at(&mut written, 0).or_else(|_| File::open(path)?.read_exact_at(&mut written, 0))?;
    if written != whole {
        return Err("the file does not have what was written to it".into());
    }
    Ok(elapsed.as_nanos() as f64)
}

fn check(stemma: &Stemma, count: usize) -> Result<()> {
    let found = stemma.document_count()?;
    if found == count as u64 { Ok(()) } else { Err(format!("{found} documents instead of {count}").into()) }
}

/// Result of concurrent inserts: nanoseconds per document, each insert's latency, and documents per flush.
struct WriterRun {
    each: f64,
    latencies: Vec<f64>,
    per_flush: f64,
}

/// When concurrent inserts return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// When a flush that all waiting writers share is done.
    Grouped,
    /// When each has been flushed on its own: a lock serializes the inserts.
    Exclusive,
    /// When they are written; they are flushed within [`DELAY`].
    Delayed,
    /// When they are written; nothing is flushed.
    Unflushed,
}

impl Commit {
    fn durability(self) -> Durability {
        match self {
            Commit::Grouped | Commit::Exclusive => Durability::Sync,
            Commit::Delayed => Durability::Interval(DELAY),
            Commit::Unflushed => Durability::None,
        }
    }
}

/// Measures concurrent single-document inserts whose commits are delayed, beside durable and unflushed ones.
fn delayed_writers(bench: &mut Bench, writer_count: usize) -> Result<()> {
    let rate = format!("{writer_count} writers, delayed commits");
    if !bench.is_selected(&rate) {
        return Ok(());
    }
    let each_count = (bench.scale.grouped_count / writer_count).max(4);
    let documents = Documents::make(each_count * writer_count, DOCUMENT_BYTES);
    let commits = [Commit::Delayed, Commit::Grouped, Commit::Unflushed];
    let mut samples = [(); 3].map(|()| [(); 2].map(|()| Samples::default()));
    for _ in 0..bench.scale.repetition_count {
        for (commit, samples) in commits.into_iter().zip(&mut samples) {
            let path = bench.scratch.fresh_path("writers.stemma")?;
            let run = insert_concurrently(&path, &documents, writer_count, commit)?;
            samples[0].push_repetition(run.each);
            samples[1].begin_repetition();
            run.latencies.into_iter().for_each(|latency| samples[1].push(latency));
        }
    }
    let rows = [(rate.clone(), Unit::PerSecond("documents/s")), (format!("{rate}: latency"), Unit::Microseconds)];
    for (at, (name, unit)) in rows.into_iter().enumerate() {
        let heading = Heading { durability: "interval", ..heading(bench, &name, documents.0.len(), false, unit) };
        let [delayed, grouped, unflushed] = samples.each_ref().map(|samples| &samples[at]);
        bench.push(ResultRow::new(heading, delayed, &[("group-commit", grouped), ("unflushed", unflushed)]))?;
    }
    Ok(())
}

/// Measures concurrent durable single-document inserts, with group commit and with one flush per insert.
fn writers(bench: &mut Bench, writer_count: usize) -> Result<()> {
    let rate = format!("{writer_count} writers");
    if !bench.is_selected(&rate) {
        return Ok(());
    }
    let each_count = (bench.scale.grouped_count / writer_count).max(4);
    let documents = Documents::make(each_count * writer_count, DOCUMENT_BYTES);
    let [mut ours, mut alone] = [(); 2].map(|()| [(); 3].map(|()| Samples::default()));
    for _ in 0..bench.scale.repetition_count {
        for (commit, samples) in [(Commit::Grouped, &mut ours), (Commit::Exclusive, &mut alone)] {
            let path = bench.scratch.fresh_path("writers.stemma")?;
            let run = insert_concurrently(&path, &documents, writer_count, commit)?;
            samples[0].push_repetition(run.each);
            samples[1].begin_repetition();
            run.latencies.into_iter().for_each(|latency| samples[1].push(latency));
            samples[2].push_repetition(run.per_flush);
        }
    }
    let rows = [
        (rate.clone(), Unit::PerSecond("documents/s")),
        (format!("{rate}: latency"), Unit::Microseconds),
        (format!("{rate}: documents per flush"), Unit::Share("documents/flush")),
    ];
    for ((name, unit), (ours, alone)) in rows.into_iter().zip(ours.iter().zip(&alone)) {
        let heading = heading(bench, &name, documents.0.len(), true, unit);
        let peers = [("no-group-commit", alone)];
        let row = ResultRow::new(heading, ours, &peers);
        let is_latency = unit == Unit::Microseconds;
        bench.push(if is_latency { row.with_histograms("stemma", ours, &peers) } else { row })?;
    }
    Ok(())
}

/// Inserts `documents` with concurrent writers.
fn insert_concurrently(path: &Path, documents: &Documents, writer_count: usize, commit: Commit) -> Result<WriterRun> {
    let stemma = Stemma::open_durable(path, commit.durability(), Caching::Default)?;
    let exclusive = Mutex::new(());
    let all = documents.all();
    let flushed_before = stemma.flush_count()?;
    let insert = |document: (&str, &str)| -> Result<f64> {
        let start = Instant::now();
        let guard = (commit == Commit::Exclusive).then(|| exclusive.lock());
        stemma.insert(&[document])?;
        drop(guard);
        Ok(start.elapsed().as_nanos() as f64)
    };
    let begin = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let insert = &insert;
        let parts = all.chunks(all.len().div_ceil(writer_count));
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(|one| insert(*one)).collect::<Result<Vec<_>>>()))
            .collect();
        let mut latencies = Vec::with_capacity(all.len());
        for thread in threads {
            latencies.extend(thread.join().map_err(|_| "a writer failed")??);
        }
        Ok::<_, crate::Failure>(latencies)
    })?;
    let each = begin.elapsed().as_nanos() as f64 / all.len() as f64;
    let flushes = stemma.flush_count()? - flushed_before;
    check(&stemma, all.len())?;
    stemma.close()?;
    Ok(WriterRun { each, latencies, per_flush: all.len() as f64 / flushes.max(1) as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ScratchDirectory;

    #[test]
    fn documents_have_the_requested_size() {
        for bytes in [100, 1_000, 4_000] {
            assert!(Documents::make(30, bytes).0.iter().all(|(_, json)| json.len() == bytes));
        }
    }

    #[test]
    fn exclusive_writers_share_no_flush() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let documents = Documents::make(64, 200);
        let alone =
            insert_concurrently(&scratch.fresh_path("alone").unwrap(), &documents, 8, Commit::Exclusive).unwrap();
        assert_eq!((alone.latencies.len(), alone.per_flush), (64, 1.0));
        let shared =
            insert_concurrently(&scratch.fresh_path("shared").unwrap(), &documents, 8, Commit::Grouped).unwrap();
        assert!(shared.per_flush >= 1.0, "{}", shared.per_flush);
        // All documents are there, and fewer flushes than documents.
        let delayed = insert_concurrently(&scratch.fresh_path("delayed").unwrap(), &documents, 8, Commit::Delayed);
        assert!(delayed.unwrap().per_flush > 1.0);
    }
}
