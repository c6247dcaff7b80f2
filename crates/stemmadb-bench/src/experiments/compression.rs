//! Compression: inserts, disk space and uncached reads with each setting, beside the same without compression.

use std::path::{Path, PathBuf};

use stemmadb::Compression;

use super::bulk_inserts::{self, prepare};
use super::{BATCH_COUNT, Bench, point_reads};
use crate::Result;
use crate::engine::{Caching, DocumentForm, Stemma};
use crate::harness::{Contender, Heading, ResultRow, Samples, Stopwatch, Unit, allocated_bytes, alternate, remove};
use crate::workload::Corpus;

/// The peer's name in results.
const NONE: &str = "stemma-uncompressed";
const SETTINGS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if !bench.is_selected("compression") {
        return Ok(());
    }
    bench.corpus();
    let corpus = bench.corpus.as_ref().expect("made just now");
    let mut paths: Vec<PathBuf> = Vec::new();
    for compression in SETTINGS {
        paths.push(bench.scratch.fresh_path(&format!("{compression}.stemma"))?);
    }
    let inserts = inserts(bench, corpus, &paths)?;
    let mut bytes = Vec::new();
    for path in &paths {
        bytes.push(Samples::from_costs([allocated_bytes(path)? as f64 / corpus.len() as f64]));
    }
    let reads = reads(bench, corpus, &paths)?;
    for (what, unit, samples) in [
        ("bulk insert", Unit::PerSecond("documents/s"), inserts),
        ("bytes on disk", Unit::Amount("bytes/document"), bytes),
        ("get by id, cache off", Unit::Nanoseconds, reads),
    ] {
        for (compression, samples_of) in SETTINGS.iter().zip(&samples).skip(1) {
            let row = format!("compression {compression}: {what}");
            let heading: Heading = bench.heading(&row, bench.scale.document_count, false, unit);
            bench.push(ResultRow::new(heading, samples_of, &[(NONE, &samples[0])]))?;
        }
    }
    paths.iter().try_for_each(|path| remove(path))
}

/// Inserts all documents with each setting in turn. The databases of the last repetition stay.
fn inserts(bench: &Bench, corpus: &Corpus, paths: &[PathBuf]) -> Result<Vec<Samples>> {
    let load = |path: &Path, compression| {
        let stemma = Stemma::open_compressed(path, false, Caching::Default, compression)?;
        corpus.batches(BATCH_COUNT).try_for_each(|batch| stemma.insert(&batch))?;
        stemma.close()
    };
    let mut contenders = Vec::new();
    for (compression, path) in SETTINGS.into_iter().zip(paths) {
        contenders.push(Contender::new(compression.name(), move |_, samples: &mut Samples| {
            prepare(path)?;
            let start = std::time::Instant::now();
            load(path, compression)?;
            samples.push(start.elapsed().as_nanos() as f64 / corpus.len() as f64);
            bulk_inserts::check_stemma(path, corpus)
        }));
    }
    alternate(bench.scale.bulk_repetition_count, &mut contenders)
}

fn reads(bench: &Bench, corpus: &Corpus, paths: &[PathBuf]) -> Result<Vec<Samples>> {
    let ids = point_reads::random_ids(corpus);
    let databases = paths.iter().map(|path| Stemma::open(path, false, Caching::Off)).collect::<Result<Vec<_>>>()?;
    let stopwatch = Stopwatch::new(bench.clock);
    let mut contenders = Vec::new();
    for (compression, stemma) in SETTINGS.into_iter().zip(&databases) {
        let (stopwatch, ids) = (&stopwatch, &ids);
        contenders.push(Contender::new(compression.name(), move |_, samples: &mut Samples| {
            point_reads::read(stemma, DocumentForm::Document, ids, stopwatch, samples)
        }));
    }
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    databases.into_iter().try_for_each(Stemma::close)?;
    Ok(samples)
}
