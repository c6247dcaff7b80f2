//! Bulk inserts, and the room that the documents take afterwards.
//!
//! The clock runs from opening an empty database to having closed it: everything is indexed and merged on both sides, nobody
//! leaves work for later. Both sides are given the same ids and JSON texts, a thousand to a transaction.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{BATCH_COUNT, Bench, Loaded, all_indexed, two_indexed};
use crate::Result;
use crate::engine::{Caching, Collect, Engine, Form, Layout, Sqlite, Stemma};
use crate::harness::{Contender, Random, Row, Samples, Unit, allocated_bytes, hold, processor_ns, remove, settle};
use crate::workload::{Corpus, check_bodies};

const INSERT: &str = "bulk insert";
const DISK: &str = "bytes on disk";

/// How many documents are read back and compared after each load.
const CHECKED_COUNT: usize = 1_000;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if bench.wants(INSERT) {
        insert(bench)?;
    }
    if bench.wants(DISK) {
        disk(bench)?;
    }
    Ok(())
}

fn insert(bench: &mut Bench) -> Result<()> {
    let document_count = bench.scale.document_count;
    bench.corpus();
    let corpus = bench.corpus.as_ref().expect("made just now");
    let loaded = Loaded { stemma: bench.place.fresh("loaded.stemma")?, sqlite: bench.place.fresh("loaded.sqlite")? };
    let two_path = bench.place.fresh("two.sqlite")?;
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
    let row = hold(heading, bench.scale.bulk_repetition_count, contenders)?;
    remove(&two_path)?;
    bench.loaded = Some(loaded);
    bench.push(row)?;
    let heading =
        bench.heading(&format!("{INSERT}: processor time of each document"), document_count, false, Unit::Microseconds);
    let (fifteen, two) = (fifteen.into_inner(), two.into_inner());
    let peers = [(all_indexed(false).name, &fifteen), (two_indexed(false).name, &two)];
    bench.push(Row::new(heading, &ours.into_inner(), &peers))
}

/// Runs a load on an empty path; adds the time for each document, and that of the processor.
fn load(
    path: &Path,
    corpus: &Corpus,
    elapsed: &mut Samples,
    processor: &RefCell<Samples>,
    insert: impl FnOnce() -> Result<()>,
) -> Result<()> {
    prepare(path)?;
    let (start, begin_ns) = (Instant::now(), processor_ns()?);
    insert()?;
    elapsed.push(start.elapsed().as_nanos() as f64 / corpus.len() as f64);
    processor.borrow_mut().push_repetition((processor_ns()? - begin_ns) as f64 / corpus.len() as f64);
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

/// Nothing at `path`, and nothing of earlier contenders on its way to the disk.
pub(super) fn prepare(path: &Path) -> Result<()> {
    remove(path)?;
    settle(path.parent().unwrap_or(path));
    Ok(())
}

/// Whether what was inserted is there, closed and opened again.
pub(super) fn check_loaded(corpus: &Corpus, engine: &dyn Engine, document_count: u64) -> Result<()> {
    if document_count != corpus.len() as u64 {
        return Err(format!("{document_count} documents are there, not {}", corpus.len()).into());
    }
    let mut getter = engine.getter(Form::Json)?;
    let mut found = Collect::default();
    let mut random = Random::new(1);
    for _ in 0..CHECKED_COUNT.min(corpus.len()) {
        getter(corpus.id(random.below(corpus.len() as u64) as usize), &mut found)?;
    }
    if found.answer.ids.len() != CHECKED_COUNT.min(corpus.len()) {
        return Err("documents that were inserted are missing".into());
    }
    Ok(check_bodies(corpus, &found.answer)?)
}

fn disk(bench: &mut Bench) -> Result<()> {
    let loaded = bench.loaded()?;
    let corpus = bench.corpus();
    let document_count = corpus.len() as u64;
    let json = Samples::of([corpus.json_bytes() as f64 / document_count as f64]);
    let each =
        |path: &Path| Ok::<_, crate::Failure>(Samples::of([allocated_bytes(path)? as f64 / document_count as f64]));
    let sqlite = each(&loaded.sqlite)?;
    let unit = Unit::Amount("bytes/document");
    let mut heading = bench.heading(DISK, document_count, false, unit);
    // At most 0.75 times its room.
    heading.targets = vec![("sqlite-15-indexes", 1.33)];
    bench.push(Row::new(heading, &each(&loaded.stemma)?, &[("json-text", &json), ("sqlite-15-indexes", &sqlite)]))?;
    for part in ["log", "tree"] {
        let heading = bench.heading(&format!("{DISK}: {part}"), document_count, false, unit);
        bench.push(Row::new(heading, &each(&loaded.stemma.join(part))?, &[]))?;
    }
    Ok(())
}
