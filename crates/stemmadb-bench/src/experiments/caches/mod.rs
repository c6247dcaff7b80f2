//! DODB's experiment: inserting cars, and looking them up by a unique name, by color and by keyword as the database
//! grows, uncached, with only the index cached, cached, and in memory only.
//!
//! The peers implement DODB's layout of files and links, and return what its modes return: cars parsed from JSON files,
//! or pointers to cars in memory. Stemma returns packed documents; where documents are not cached, they are
//! deserialized to cars too.

mod databases;
mod files;
mod inserts;

use std::time::{Duration, Instant};

use stemmadb::{Database, Query, field};

use super::Bench;
use crate::Result;
use crate::harness::{Contender, ResultRow, Samples, Stopwatch, Unit, alternate};
use crate::workload::Car;
use databases::CarDatabases;
use files::LookupKind;

/// Lookups per turn.
const LOOKUP_COUNT: usize = 100;
/// Lookups per sample, because reading the clock is not negligible beside an in-memory lookup.
const LOOKUPS_PER_SAMPLE: usize = 10;
/// Target latencies of a lookup by unique value, in nanoseconds: with caches, and from the page cache.
const CACHED_NS: f64 = 150.0;
const UNCACHED_NS: f64 = 5_000.0;

/// What is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Uncached,
    /// Ids and postings, but no documents.
    CachedIndex,
    Cached,
    RamOnly,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Uncached, Mode::CachedIndex, Mode::Cached, Mode::RamOnly];

    fn name(self) -> &'static str {
        match self {
            Mode::Uncached => "uncached",
            Mode::CachedIndex => "cached index",
            Mode::Cached => "cached",
            Mode::RamOnly => "RAM only",
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let mut cars = CarDatabases::new(bench)?;
    for count in bench.scale.car_counts.to_vec() {
        eprintln!("{count} cars");
        inserts::grow(bench, &mut cars, count)?;
        for mode in Mode::ALL {
            let names = LookupKind::ALL.map(|kind| format!("{}, {}", kind.name(), mode.name()));
            if names.iter().any(|name| bench.is_selected(name)) {
                let ours = cars.open(mode)?;
                for kind in LookupKind::ALL {
                    measure_lookup(bench, &cars, &ours, kind, mode)?;
                }
                // Closing would discard an in-memory database.
                if mode != Mode::RamOnly {
                    ours.close()?;
                }
            }
        }
    }
    Ok(())
}

fn lookup_query(kind: LookupKind, value: &str) -> Query {
    Query::new(match kind {
        LookupKind::Index => field("name").eq(value),
        LookupKind::Partition => field("color").eq(value),
        LookupKind::Tag => field("keywords").contains(value),
    })
}

/// Runs the query and deserializes its documents.
fn our_cars(db: &Database, query: &Query) -> Result<Vec<Car>> {
    let mut cars = Vec::new();
    for document in db.find(query).run()? {
        cars.push(document?.to()?);
    }
    Ok(cars)
}

/// Runs the query and counts its documents, without deserializing them.
fn our_documents(db: &Database, query: &Query) -> Result<usize> {
    let mut count = 0;
    for document in db.find(query).run()? {
        count += usize::from(!document?.is_deleted());
    }
    Ok(count)
}

/// Performs the lookup at a position; returns the number of cars.
type Lookup<'a> = Box<dyn Fn(usize) -> Result<usize> + 'a>;

fn measure_lookup(bench: &mut Bench, cars: &CarDatabases, ours: &Database, kind: LookupKind, mode: Mode) -> Result<()> {
    let name = format!("{}, {}", kind.name(), mode.name());
    if !bench.is_selected(&name) {
        return Ok(());
    }
    let values = cars.values(kind);
    // Repeated queries are prepared, as an application would do.
    let prepared: Vec<Query> =
        values.iter().map(|value| Ok(ours.prepare(lookup_query(kind, value))?)).collect::<Result<_>>()?;
    verify(cars, ours, kind, &values[0], &prepared[0])?;
    let match_count = cars.match_count(kind);
    let (values, prepared) = (&values, &prepared);
    let lookups: Vec<(&'static str, Lookup<'_>)> = match mode {
        Mode::Uncached => vec![
            ("stemma", Box::new(|at| Ok(our_cars(ours, &prepared[at])?.len()))),
            ("files", Box::new(|at| Ok(cars.files.find(kind, &values[at])?.len()))),
        ],
        Mode::CachedIndex => vec![
            ("stemma", Box::new(|at| Ok(our_cars(ours, &prepared[at])?.len()))),
            ("files-cached-index", Box::new(|at| Ok(cars.key_index.find_files(&cars.files, kind, &values[at])?.len()))),
        ],
        Mode::Cached | Mode::RamOnly => vec![
            ("stemma", Box::new(|at| our_documents(ours, &prepared[at]))),
            (
                if mode == Mode::Cached { "files-cached" } else { "maps-in-RAM" },
                Box::new(|at| Ok(cars.full_cache.find(kind, &values[at]).len())),
            ),
        ],
    };
    let stopwatch = Stopwatch::new(bench.clock);
    let budget = Duration::from_millis(bench.scale.turn_ms);
    let mut contenders = Vec::new();
    for (contender, lookup) in &lookups {
        let stopwatch = &stopwatch;
        contenders
            .push(Contender::new(contender, move |_, samples| turn(lookup, match_count, stopwatch, budget, samples)));
    }
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    let mut heading = bench.heading(&name, cars.count, false, Unit::Nanoseconds);
    heading.experiment = "caches";
    heading.rows = Some(match_count);
    let bound = match mode {
        Mode::Uncached => Some(UNCACHED_NS),
        Mode::CachedIndex => None,
        Mode::Cached | Mode::RamOnly => Some(CACHED_NS),
    };
    let bound = bound.filter(|_| kind == LookupKind::Index).map(|bound| Samples::from_costs([bound]));
    let mut peers: Vec<(&str, &Samples)> = lookups[1..].iter().map(|(name, _)| *name).zip(&samples[1..]).collect();
    if let Some(bound) = &bound {
        peers.push(("bound", bound));
        heading.targets = vec![("bound", 1.0)];
    }
    bench.push(ResultRow::new(heading, &samples[0], &peers).with_distributions(&samples[0], &peers))
}

/// Checks that all contenders find the same cars.
fn verify(cars: &CarDatabases, ours: &Database, kind: LookupKind, value: &str, query: &Query) -> Result<()> {
    let sorted = |mut all: Vec<Car>| {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    };
    let expected = sorted(cars.full_cache.find(kind, value).iter().map(|car| Car::clone(car)).collect());
    let answers = [
        ("stemma", our_cars(ours, query)?),
        ("files", cars.files.find(kind, value)?),
        ("files-cached-index", cars.key_index.find_files(&cars.files, kind, value)?),
    ];
    for (name, answer) in answers {
        if sorted(answer) != expected || expected.len() as u64 != cars.match_count(kind) {
            return Err(format!("{name} does not find the cars of {value}").into());
        }
    }
    Ok(())
}

/// Runs 100 lookups, or as many as fit in the turn's time.
fn turn(
    lookup: &Lookup<'_>,
    match_count: u64,
    stopwatch: &Stopwatch,
    budget: Duration,
    samples: &mut Samples,
) -> Result<()> {
    let start = Instant::now();
    let positions: Vec<usize> = (0..LOOKUP_COUNT).collect();
    // Long lookups are timed one by one.
    let at_once = if match_count == 1 { LOOKUPS_PER_SAMPLE } else { 1 };
    for chunk in positions.chunks(at_once) {
        let mut found = 0;
        let cost = stopwatch.nanoseconds(chunk.len(), || {
            for at in chunk {
                found += lookup(*at)?;
            }
            Ok(())
        })?;
        if found as u64 != match_count * chunk.len() as u64 {
            return Err(format!("{found} cars were found instead of {match_count} per lookup").into());
        }
        samples.push(cost);
        if start.elapsed() > budget {
            break;
        }
    }
    Ok(())
}
