//! Bulk inserts into a growing database, then its disk space and memory at rest; and rebuilding its tree.
//!
//! Documents are generated between batches. Their generation is in neither the elapsed nor the processor time.

use std::time::{Duration, Instant};

use super::request::{Chunk, Figure, FigureUnit, Reply, Request};
use super::subject::{Subject, tree_share};
use super::{BATCH_COUNT, CHUNK_COUNT, SEED};
use crate::Result;
use crate::engine::{Caching, Stemma};
use crate::harness::{allocated_bytes, grouped, process_kib, processor_ns, thread_processor_ns};
use crate::workload::{Corpus, Events};

/// Documents generated at a time.
const BLOCK_COUNT: u64 = 10_000;

/// Inserts documents until there are `count` or the time is over; then waits for upkeep and measures space and memory.
pub(super) fn run(request: &Request, count: u64, seconds_max: Option<u64>) -> Result<Reply> {
    let subject = match &request.compression {
        Some(name) => {
            let compression = name.parse()?;
            Subject::Stemma(Stemma::open_compressed(&request.path, true, Caching::Default, compression)?)
        }
        None => Subject::open(request.engine, &request.path, Caching::Default)?,
    };
    let mut first = subject.document_count()?;
    if first > count {
        subject.close()?;
        return Ok(Reply { document_count: first, ..Reply::default() });
    }
    let deadline = seconds_max.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut chunks = Vec::new();
    while first < count {
        let end = chunk_end(first, count);
        let chunk = insert(&subject, first, end, deadline)?;
        let rate = (chunk.end - chunk.first) as f64 / chunk.elapsed_ns * 1e9;
        eprintln!("{}: {} documents, {rate:.0} documents/s", subject.engine().name(), grouped(chunk.end));
        chunks.push(chunk);
        first = chunk.end;
        if chunk.end < end {
            break;
        }
    }
    let begin_ns = processor_ns();
    let quiet_ns = subject.settle()?.as_nanos() as f64;
    let processor_ns = (processor_ns() - begin_ns) as f64;
    let mut figures = vec![
        Figure::single("time until quiet", FigureUnit::Milliseconds, quiet_ns),
        Figure::single("time until quiet: processor time", FigureUnit::Milliseconds, processor_ns),
    ];
    memory("memory", &mut figures)?;
    space(request, &subject, first, &mut figures)?;
    subject.close()?;
    Ok(Reply { document_count: first, chunks, figures })
}

/// Chunks end at the end of the step and at each multiple of their size.
fn chunk_end(first: u64, count: u64) -> u64 {
    count.min((first / CHUNK_COUNT + 1) * CHUNK_COUNT)
}

/// Inserts the documents `first..end`, or fewer if the deadline passes.
fn insert(subject: &Subject, first: u64, end: u64, deadline: Option<Instant>) -> Result<Chunk> {
    let events = Events::new(SEED);
    let mut chunk = Chunk { first, end: first, elapsed_ns: 0.0, processor_ns: 0.0, longest_batch_ns: 0.0 };
    let (begin_ns, mut generation_ns) = (processor_ns(), 0);
    'inserts: for block in (first..end).step_by(BLOCK_COUNT as usize) {
        let before_ns = thread_processor_ns();
        let corpus = Corpus::generate_range(events, block..(block + BLOCK_COUNT).min(end));
        generation_ns += thread_processor_ns() - before_ns;
        for batch in corpus.batches(BATCH_COUNT) {
            let start = Instant::now();
            subject.insert(&batch)?;
            let elapsed_ns = start.elapsed().as_nanos() as f64;
            chunk.elapsed_ns += elapsed_ns;
            chunk.longest_batch_ns = chunk.longest_batch_ns.max(elapsed_ns);
            chunk.end += batch.len() as u64;
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                break 'inserts;
            }
        }
    }
    chunk.processor_ns = (processor_ns() - begin_ns).saturating_sub(generation_ns) as f64;
    Ok(chunk)
}

/// Adds this process's memory now, and its peak.
pub(super) fn memory(row: &str, figures: &mut Vec<Figure>) -> Result<()> {
    for (name, field) in [("resident", "VmRSS"), ("anonymous", "RssAnon"), ("peak", "VmHWM")] {
        let kib = process_kib(std::process::id(), field).ok_or("the system does not say how much memory we use")?;
        figures.push(Figure::single(format!("{row}: {name}"), FigureUnit::Mebibytes, kib as f64 / 1024.0));
    }
    Ok(())
}

fn space(request: &Request, subject: &Subject, document_count: u64, figures: &mut Vec<Figure>) -> Result<()> {
    let mut push = |row: &str, bytes: u64| {
        let each = bytes as f64 / document_count as f64;
        figures.push(Figure::single(row, FigureUnit::BytesPerDocument, each));
    };
    push("bytes on disk", allocated_bytes(&request.path)?);
    let Subject::Stemma(stemma) = subject else { return Ok(()) };
    let info = stemma.database().info()?;
    push("bytes on disk: log", info.log_bytes);
    push("bytes on disk: tree", info.tree_bytes);
    push("bytes on disk: tree, live", info.tree_live_bytes);
    figures.push(Figure::single("tree beside its live bytes, at rest", FigureUnit::Times, tree_share(stemma)?));
    Ok(())
}

/// Rebuilds the tree of a Stemma database from its log.
pub(super) fn rebuild(request: &Request) -> Result<Vec<Figure>> {
    let start = Instant::now();
    let stemma = Stemma::rebuild(&request.path, true)?;
    let opened = start.elapsed();
    let log_bytes = stemma.database().info()?.log_bytes;
    let subject = Subject::Stemma(stemma);
    let quiet = opened + subject.settle()?;
    let gibibytes = log_bytes as f64 / f64::from(1 << 30);
    let mut figures = Vec::new();
    for (row, time) in [("rebuild", opened), ("rebuild: until quiet", quiet)] {
        figures.push(Figure::single(row, FigureUnit::SecondsPerGibibyte, time.as_secs_f64() / gibibytes));
    }
    memory("rebuild: memory", &mut figures)?;
    subject.close()?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_multiples_of_their_size() {
        assert_eq!(chunk_end(0, 10_000), 10_000);
        assert_eq!(chunk_end(100_000, 1_000_000), 500_000);
        assert_eq!(chunk_end(500_000, 1_000_000), 1_000_000);
        assert_eq!(chunk_end(1_200_000, 1_300_000), 1_300_000);
    }
}
