//! Random reads by id, with the document cache off and with all documents cached.

use super::{Bench, all_indexed, bulk_inserts};
use crate::Result;
use crate::engine::{Caching, DocumentForm, Engine, Layout, RowCollector, RowCounter, Sqlite, Stemma};
use crate::harness::{Contender, Random, ResultRow, Samples, Stopwatch, Unit, alternate};
use crate::workload::{Corpus, UNIQUE, check_bodies, parse};

/// Number of distinct documents read.
const READ_COUNT: u64 = 100_000;
/// Reads per sample, because reading the clock is not negligible beside a cached read.
const READS_PER_SAMPLE: usize = 16;
/// Large enough for all documents read.
const CACHE_BYTES: u64 = 256 << 20;
/// Target for a cached read, in nanoseconds.
const HOT_NS: f64 = 200.0;

const FORMS: [(DocumentForm, &str); 3] = [
    (DocumentForm::Document, "document"),
    (DocumentForm::Json, "document as JSON"),
    (DocumentForm::Field(UNIQUE[0]), "one field"),
];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for (caching, temperature) in [(Caching::Off, "cache off"), (Caching::Bytes(CACHE_BYTES), "cached")] {
        for (form, what) in FORMS {
            let row = format!("get by id, {temperature}: {what}");
            if bench.is_selected(&row) {
                get(bench, &row, caching, form)?;
            }
        }
    }
    Ok(())
}

fn get(bench: &mut Bench, row: &str, caching: Caching, form: DocumentForm) -> Result<()> {
    let loaded = bench.loaded()?;
    let ids_only = load_ids_only(bench)?;
    bench.corpus();
    let corpus = bench.corpus.as_ref().expect("made just now");
    let ids = random_ids(corpus);
    let stemma = Stemma::open(&loaded.stemma, false, caching)?;
    let sqlite = Sqlite::open(&loaded.sqlite, &all_indexed(false))?;
    let engines: [&dyn Engine; 3] = [&stemma, &sqlite, &ids_only];
    // Verification reads every document once, so that caches are warm.
    for engine in engines {
        verify(corpus, engine, form, &ids).map_err(|error| format!("{}: {error}", engine.name()))?;
    }
    let stopwatch = Stopwatch::new(bench.clock);
    let mut contenders = Vec::new();
    for engine in engines {
        contenders.push(Contender::new(engine.name(), {
            let (stopwatch, ids) = (&stopwatch, &ids);
            move |_, samples| read(engine, form, ids, stopwatch, samples)
        }));
    }
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    drop(contenders);
    let mut heading = bench.heading(row, bench.scale.document_count, false, Unit::Nanoseconds);
    let bound = Samples::from_costs([HOT_NS]);
    let mut peers = vec![(engines[1].name(), &samples[1]), (engines[2].name(), &samples[2])];
    if caching != Caching::Off && form == DocumentForm::Document {
        peers.push(("bound", &bound));
    }
    heading.targets = peers.iter().map(|(name, _)| (*name, if *name == "bound" { 1.0 } else { 3.0 })).collect();
    let row = ResultRow::new(heading, &samples[0], &peers);
    stemma.close()?;
    sqlite.close()?;
    ids_only.close()?;
    bench.push(row)
}

/// Loads SQLite without secondary indexes and `WITHOUT ROWID`: its fastest layout for reads by id.
fn load_ids_only(bench: &mut Bench) -> Result<Sqlite> {
    let layout = Layout { name: "sqlite-without-rowid", indexed: vec![], without_rowid: true, synced: false };
    let path = bench.scratch.path().join("ids.sqlite");
    if path.exists() {
        return Sqlite::open(&path, &layout);
    }
    let sqlite = Sqlite::create(&path, &layout)?;
    let corpus = bench.corpus();
    for batch in corpus.batches(super::BATCH_COUNT) {
        sqlite.insert(&batch)?;
    }
    bulk_inserts::check_loaded(corpus, &sqlite, sqlite.document_count()?)?;
    sqlite.close()?;
    Sqlite::open(&path, &layout)
}

/// Returns distinct ids in random order.
pub(super) fn random_ids(corpus: &Corpus) -> Vec<String> {
    let mut positions: Vec<usize> = (0..corpus.len()).collect();
    let mut random = Random::new(2);
    let count = READ_COUNT.min(corpus.len() as u64) as usize;
    for first in 0..count {
        let other = first as u64 + random.below((positions.len() - first) as u64);
        positions.swap(first, other as usize);
    }
    positions[..count].iter().map(|position| corpus.id(*position).to_owned()).collect()
}

fn verify(corpus: &Corpus, engine: &dyn Engine, form: DocumentForm, ids: &[String]) -> Result<()> {
    let mut document_reader = engine.document_reader(form)?;
    for id in ids {
        let mut found = RowCollector::default();
        document_reader(id, &mut found)?;
        if found.result.ids != [id.as_str()] {
            return Err(format!("document {id} was not found").into());
        }
        let DocumentForm::Field(field) = form else {
            check_bodies(corpus, &found.result)?;
            continue;
        };
        let position = corpus.position_of(id).expect("an id of ours");
        if parse(corpus.json(position))[field] != *found.result.bodies[0] {
            return Err(format!("field {field} of document {id} is wrong").into());
        }
    }
    Ok(())
}

pub(super) fn read(
    engine: &dyn Engine,
    form: DocumentForm,
    ids: &[String],
    stopwatch: &Stopwatch,
    samples: &mut Samples,
) -> Result<()> {
    let mut document_reader = engine.document_reader(form)?;
    let mut counter = RowCounter::default();
    for chunk in ids.chunks(READS_PER_SAMPLE) {
        let cost =
            stopwatch.nanoseconds(chunk.len(), || chunk.iter().try_for_each(|id| document_reader(id, &mut counter)))?;
        samples.push(cost);
    }
    if counter.row_count == ids.len() as u64 {
        Ok(())
    } else {
        Err("timed a read of a document that is not there".into())
    }
}
