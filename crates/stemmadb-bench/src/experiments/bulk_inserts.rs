//! Bulk inserts, and the disk space that the documents occupy afterwards.
//!
//! The time runs from opening an empty database until it is closed, so that indexing and merging are included for every
//! engine. All engines receive the same ids and JSON texts, 1,000 documents per transaction.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{BATCH_COUNT, Bench, Loaded, all_indexed, two_indexed};
use crate::Result;
use crate::engine::{Caching, DocumentForm, Engine, Layout, RowCollector, Sqlite, Stemma};
use crate::harness::{
    Contender, Random, ResultRow, Samples, Unit, allocated_bytes, measure_row, processor_ns, remove, sync_file_system,
};
use crate::workload::{Corpus, check_bodies};

const INSERT: &str = "bulk insert";
const DISK: &str = "bytes on disk";

/// Documents read back and compared after each load.
const CHECKED_COUNT: usize = 1_000;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if bench.is_selected(INSERT) {
        insert(bench)?;
    }
    if bench.is_selected(DISK) {
        disk(bench)?;
    }
    Ok(())
}

fn insert(bench: &mut Bench) -> Result<()> {
    let document_count = bench.scale.document_count;
    bench.corpus();
    let corpus = bench.corpus.as_ref().expect("made just now");
    let loaded = Loaded {
        stemma: bench.scratch.fresh_path("loaded.stemma")?,
        sqlite: bench.scratch.fresh_path("loaded.sqlite")?,
    };
    let two_path = bench.scratch.fresh_path("two.sqlite")?;
    let [ours, fifteen, two] = [(); 3].map(|()| RefCell::new(Samples::default()));
    let peer = |layout: Layout, path: PathBuf, processor| {
        Contender::new(layout.name, move |_, samples| {
            load(&path, corpus, samples, processor, || load_sqlite(&path, &layout, corpus))?;
            check_sqlite(&path, &layout, corpus)
        })
    };
    let contenders = vec![
        Contender::new("stemma", |_, samples| {
            load(&loaded.stemma, corpus, samples, &ours, || load_stemma(&loaded.stemma, corpus))?;
            check_stemma(&loaded.stemma, corpus)
        }),
        peer(all_indexed(false), loaded.sqlite.clone(), &fifteen),
        peer(two_indexed(false), two_path.clone(), &two),
    ];
    let mut heading = bench.heading(INSERT, document_count, false, Unit::PerSecond("documents/s"));
    heading.targets = vec![(all_indexed(false).name, 10.0), (two_indexed(false).name, 1.0)];
    let row = measure_row(heading, bench.scale.bulk_repetition_count, contenders)?;
    remove(&two_path)?;
    bench.loaded = Some(loaded);
    bench.push(row)?;
    let heading =
        bench.heading(&format!("{INSERT}: processor time of each document"), document_count, false, Unit::Microseconds);
    let (fifteen, two) = (fifteen.into_inner(), two.into_inner());
    let peers = [(all_indexed(false).name, &fifteen), (two_indexed(false).name, &two)];
    bench.push(ResultRow::new(heading, &ours.into_inner(), &peers))
}

/// Runs a load on an empty path and records elapsed time and processor time per document.
fn load(
    path: &Path,
    corpus: &Corpus,
    elapsed: &mut Samples,
    processor: &RefCell<Samples>,
    insert: impl FnOnce() -> Result<()>,
) -> Result<()> {
    prepare(path)?;
    let (start, begin_ns) = (Instant::now(), processor_ns());
    insert()?;
    elapsed.push(start.elapsed().as_nanos() as f64 / corpus.len() as f64);
    processor.borrow_mut().push_repetition((processor_ns() - begin_ns) as f64 / corpus.len() as f64);
    Ok(())
}

pub(super) fn load_stemma(path: &Path, corpus: &Corpus) -> Result<()> {
    let stemma = Stemma::open(path, false, Caching::Default)?;
    for batch in corpus.batches(BATCH_COUNT) {
        stemma.insert(&batch)?;
    }
    stemma.close()
}

pub(super) fn load_sqlite(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<()> {
    let sqlite = Sqlite::create(path, layout)?;
    for batch in corpus.batches(BATCH_COUNT) {
        sqlite.insert(&batch)?;
    }
    sqlite.close()
}

pub(super) fn check_stemma(path: &Path, corpus: &Corpus) -> Result<()> {
    let stemma = Stemma::open(path, false, Caching::Default)?;
    check_loaded(corpus, &stemma, stemma.document_count()?)?;
    stemma.close()
}

pub(super) fn check_sqlite(path: &Path, layout: &Layout, corpus: &Corpus) -> Result<()> {
    let sqlite = Sqlite::open(path, layout)?;
    check_loaded(corpus, &sqlite, sqlite.document_count()?)?;
    sqlite.close()
}

/// Removes `path` and waits until earlier contenders' writes have reached the disk.
pub(super) fn prepare(path: &Path) -> Result<()> {
    remove(path)?;
    sync_file_system(path.parent().unwrap_or(path));
    Ok(())
}

/// Checks that the inserted documents are readable after reopening.
pub(super) fn check_loaded(corpus: &Corpus, engine: &dyn Engine, document_count: u64) -> Result<()> {
    if document_count != corpus.len() as u64 {
        return Err(format!("{document_count} documents are there, not {}", corpus.len()).into());
    }
    let mut document_reader = engine.document_reader(DocumentForm::Json)?;
    let mut found = RowCollector::default();
    let mut random = Random::new(1);
    for _ in 0..CHECKED_COUNT.min(corpus.len()) {
        document_reader(corpus.id(random.below(corpus.len() as u64) as usize), &mut found)?;
    }
    if found.result.ids.len() != CHECKED_COUNT.min(corpus.len()) {
        return Err("documents that were inserted are missing".into());
    }
    Ok(check_bodies(corpus, &found.result)?)
}

fn disk(bench: &mut Bench) -> Result<()> {
    let loaded = bench.loaded()?;
    let corpus = bench.corpus();
    let document_count = corpus.len() as u64;
    let json = Samples::from_costs([corpus.json_bytes() as f64 / document_count as f64]);
    let each = |path: &Path| {
        Ok::<_, crate::Failure>(Samples::from_costs([allocated_bytes(path)? as f64 / document_count as f64]))
    };
    let sqlite = each(&loaded.sqlite)?;
    let unit = Unit::Amount("bytes/document");
    let mut heading = bench.heading(DISK, document_count, false, unit);
    // Equivalent to at most 0.75 times the disk space of SQLite.
    heading.targets = vec![("sqlite-15-indexes", 1.33)];
    bench.push(ResultRow::new(
        heading,
        &each(&loaded.stemma)?,
        &[("json-text", &json), ("sqlite-15-indexes", &sqlite)],
    ))?;
    for part in ["log", "tree"] {
        let heading = bench.heading(&format!("{DISK}: {part}"), document_count, false, unit);
        bench.push(ResultRow::new(heading, &each(&loaded.stemma.join(part))?, &[]))?;
    }
    Ok(())
}
