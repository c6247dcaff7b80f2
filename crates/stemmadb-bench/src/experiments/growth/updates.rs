//! Many updates of few documents, in batches; then what the log and the tree occupy at rest.

use std::time::Instant;

use super::request::{Figure, FigureUnit, Request};
use super::subject::Subject;
use crate::Result;
use crate::engine::{Caching, Stemma};
use crate::harness::{allocated_bytes, grouped};
use crate::workload::{Corpus, Events};

/// Documents that are updated again and again.
const DOCUMENT_COUNT: u64 = 1_000;
/// Updates between two lines of progress.
const PROGRESS_COUNT: u64 = 500_000;
/// Size of a log segment with default options.
const SEGMENT_BYTES: f64 = (64 << 20) as f64;

/// Updates all documents, each batch in one transaction, until there were at least `count` updates.
pub(super) fn run(request: &Request, count: u64) -> Result<Vec<Figure>> {
    let stemma = Stemma::open(&request.path, true, Caching::Default)?;
    let events = Events::new(super::SEED);
    let documents = Corpus::generate_range(events, 0..DOCUMENT_COUNT);
    let (mut elapsed_ns, mut updated) = (0.0, 0);
    while updated < count {
        let bodies = Corpus::generate_range(events, updated..updated + DOCUMENT_COUNT);
        let batch: Vec<_> = (0..bodies.len()).map(|at| (documents.id(at), bodies.json(at))).collect();
        let start = Instant::now();
        stemma.upsert_all(&batch)?;
        elapsed_ns += start.elapsed().as_nanos() as f64;
        updated += DOCUMENT_COUNT;
        if updated.is_multiple_of(PROGRESS_COUNT) {
            eprintln!("updates: {} of {}", grouped(updated), grouped(count));
        }
    }
    let subject = Subject::Stemma(stemma);
    let quiet_ns = subject.settle()?.as_nanos() as f64;
    let mut figures = vec![
        Figure::single("updates", FigureUnit::DocumentsPerSecond, elapsed_ns / updated as f64),
        Figure::single("updates: time until quiet", FigureUnit::Milliseconds, quiet_ns),
    ];
    if let Subject::Stemma(stemma) = &subject {
        let info = stemma.database().info()?;
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let disk = allocated_bytes(&request.path)?;
        figures.push(Figure::single("updates: bytes on disk", FigureUnit::Mebibytes, mebibytes(disk)));
        figures.push(Figure::single("updates: log", FigureUnit::Mebibytes, mebibytes(info.log_bytes)));
        let segments = info.log_bytes as f64 / SEGMENT_BYTES;
        figures.push(Figure::single(super::UPDATED_SEGMENTS, FigureUnit::Times, segments));
    }
    subject.close()?;
    Ok(figures)
}
