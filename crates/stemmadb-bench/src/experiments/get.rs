//! Random reads by id: with the document cache off, and with everything in it.

use super::{Bench, all_indexed, bulk};
use crate::Result;
use crate::engine::{Caching, Collect, Engine, Form, Layout, Sqlite, Stemma, Tally};
use crate::harness::{Contender, Random, Row, Samples, Stopwatch, Unit, alternate};
use crate::workload::{Corpus, UNIQUE, check_bodies, parse};

/// How many different documents are read.
const READ_COUNT: u64 = 100_000;
/// How many reads make a sample: a look at the clock costs a share of a cached one.
const SAMPLE_COUNT: usize = 16;
/// Room for all of them.
const CACHE_BYTES: u64 = 256 << 20;
/// A hot read should take no longer.
const HOT_NS: f64 = 200.0;

const FORMS: [(Form, &str); 3] =
    [(Form::Document, "document"), (Form::Json, "document as JSON"), (Form::Field(UNIQUE[0]), "one field")];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for (caching, temperature) in [(Caching::Off, "cache off"), (Caching::Bytes(CACHE_BYTES), "cached")] {
        for (form, what) in FORMS {
            let row = format!("get by id, {temperature}: {what}");
            if bench.wants(&row) {
                get(bench, &row, caching, form)?;
            }
        }
    }
    Ok(())
}

fn get(bench: &mut Bench, row: &str, caching: Caching, form: Form) -> Result<()> {
    let loaded = bench.loaded()?;
    let ids_only = load_ids_only(bench)?;
    bench.corpus();
    let corpus = bench.corpus.as_ref().expect("made just now");
    let ids = random_ids(corpus);
    let stemma = Stemma::open(&loaded.stemma, false, caching)?;
    let sqlite = Sqlite::open(&loaded.sqlite, &all_indexed(false))?;
    let engines: [&dyn Engine; 3] = [&stemma, &sqlite, &ids_only];
    // Reads everything once too: whoever caches has it cached now.
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
    let bound = Samples::of([HOT_NS]);
    let mut peers = vec![(engines[1].name(), &samples[1]), (engines[2].name(), &samples[2])];
    if caching != Caching::Off && form == Form::Document {
        peers.push(("bound", &bound));
    }
    heading.targets = peers.iter().map(|(name, _)| (*name, if *name == "bound" { 1.0 } else { 3.0 })).collect();
    let row = Row::new(heading, &samples[0], &peers);
    stemma.close()?;
    sqlite.close()?;
    ids_only.close()?;
    bench.push(row)
}

/// SQLite with nothing but the tree of ids, rows in it: the layout that serves reads by id best.
fn load_ids_only(bench: &mut Bench) -> Result<Sqlite> {
    let layout = Layout { name: "sqlite-without-rowid", indexed: vec![], without_rowid: true, synced: false };
    let path = bench.place.path().join("ids.sqlite");
    if path.exists() {
        return Sqlite::open(&path, &layout);
    }
    let sqlite = Sqlite::create(&path, &layout)?;
    let corpus = bench.corpus();
    for batch in corpus.batches(super::BATCH_COUNT) {
        sqlite.insert(&batch)?;
    }
    bulk::check_loaded(corpus, &sqlite, sqlite.document_count()?)?;
    sqlite.close()?;
    Sqlite::open(&path, &layout)
}

/// Different ids in random order.
fn random_ids(corpus: &Corpus) -> Vec<String> {
    let mut positions: Vec<usize> = (0..corpus.len()).collect();
    let mut random = Random::new(2);
    let count = READ_COUNT.min(corpus.len() as u64) as usize;
    for place in 0..count {
        let other = place as u64 + random.below((positions.len() - place) as u64);
        positions.swap(place, other as usize);
    }
    positions[..count].iter().map(|position| corpus.id(*position).to_owned()).collect()
}

fn verify(corpus: &Corpus, engine: &dyn Engine, form: Form, ids: &[String]) -> Result<()> {
    let mut getter = engine.getter(form)?;
    for id in ids {
        let mut found = Collect::default();
        getter(id, &mut found)?;
        if found.answer.ids != [id.as_str()] {
            return Err(format!("document {id} was not found").into());
        }
        let Form::Field(field) = form else {
            check_bodies(corpus, &found.answer)?;
            continue;
        };
        let position = corpus.position_of(id).expect("an id of ours");
        if parse(corpus.json(position))[field] != *found.answer.bodies[0] {
            return Err(format!("field {field} of document {id} is wrong").into());
        }
    }
    Ok(())
}

fn read(engine: &dyn Engine, form: Form, ids: &[String], stopwatch: &Stopwatch, samples: &mut Samples) -> Result<()> {
    let mut getter = engine.getter(form)?;
    let mut tally = Tally::default();
    for some in ids.chunks(SAMPLE_COUNT) {
        let cost = stopwatch.nanoseconds(some.len(), || some.iter().try_for_each(|id| getter(id, &mut tally)))?;
        samples.push(cost);
    }
    if tally.row_count == ids.len() as u64 {
        Ok(())
    } else {
        Err("timed a read of a document that is not there".into())
    }
}
