//! DODB's experiment: cars found by a unique value, by one of a few, by one of many, as the database grows, with nothing cached, with
//! everything, and with no disk at all.
//!
//! The peers are the layout of files and links itself. It hands out what its modes hand out: cars made of a file's JSON, or cars that are in
//! memory already. Ours hands out documents: packed, or, where nothing is cached, made into cars too.

mod files;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stemmadb::{Database, Durability, Options, Query, field};

use super::{BATCH_COUNT, Bench};
use crate::Result;
use crate::engine::insert_json;
use crate::harness::{Contender, Random, Row, Samples, Stopwatch, Unit, alternate};
use crate::workload::{COLOR, Car, Cars, Corpus, KEYWORD, car_name};
use files::{Files, Kind, Remembered};

/// Questions of a turn.
const QUESTION_COUNT: usize = 100;
/// A look at the clock costs a share of an answer from memory: so many make a sample.
const SAMPLE_COUNT: usize = 10;
/// Room for all of them.
const CACHE_BYTES: u64 = 1 << 30;
/// What a look-up by a unique value should take at most, in nanoseconds: from memory, and from the disk's cache.
const CACHED_NS: f64 = 150.0;
const UNCACHED_NS: f64 = 5_000.0;

/// What is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Uncached,
    Cached,
    RamOnly,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Uncached, Mode::Cached, Mode::RamOnly];

    fn name(self) -> &'static str {
        match self {
            Mode::Uncached => "uncached",
            Mode::Cached => "cached",
            Mode::RamOnly => "RAM only",
        }
    }
}

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let mut cars = Grown::new(bench)?;
    for &count in bench.scale.car_counts {
        cars.grow(count)?;
        for mode in Mode::ALL {
            let names = Kind::ALL.map(|kind| format!("{}, {}", kind.name(), mode.name()));
            if names.iter().any(|name| bench.wants(name)) {
                let ours = cars.open(mode)?;
                for kind in Kind::ALL {
                    ask(bench, &cars, &ours, kind, mode)?;
                }
                // What is only in memory would be gone.
                if mode != Mode::RamOnly {
                    ours.close()?;
                }
            }
        }
    }
    inserts(bench)
}

/// The same cars everywhere.
struct Grown {
    count: u64,
    path: PathBuf,
    in_memory: Database,
    files: Files,
    places: Remembered,
    everything: Remembered,
}

fn options() -> Options {
    Options::new().durability(Durability::None)
}

fn insert(db: &Database, corpus: &Corpus) -> Result<()> {
    corpus.batches(BATCH_COUNT).try_for_each(|batch| insert_json(db, Durability::None, &batch))
}

impl Grown {
    fn new(bench: &Bench) -> Result<Self> {
        Ok(Grown {
            count: 0,
            path: bench.place.fresh("cars.stemma")?,
            in_memory: Database::in_memory_with(options().cache_bytes(CACHE_BYTES))?,
            files: Files::create(&bench.place.fresh("cars")?)?,
            places: Remembered::new(false),
            everything: Remembered::new(true),
        })
    }

    /// Adds cars until there are `count`, and lets ours merge them.
    fn grow(&mut self, count: u64) -> Result<()> {
        eprintln!("{count} cars");
        let corpus = Corpus::generate_range(Cars, self.count..count);
        let db = Database::open_with(&self.path, options())?;
        insert(&db, &corpus)?;
        db.close()?;
        insert(&self.in_memory, &corpus)?;
        self.in_memory.maintenance().checkpoint()?;
        for number in self.count..count {
            let car = Car::new(number);
            self.files.insert(number, &car)?;
            self.places.insert(number, &car);
            self.everything.insert(number, &car);
        }
        self.count = count;
        Ok(())
    }

    fn open(&self, mode: Mode) -> Result<Database> {
        Ok(match mode {
            Mode::Uncached => Database::open_with(&self.path, options().cache_bytes(0))?,
            Mode::Cached => Database::open_with(&self.path, options().cache_bytes(CACHE_BYTES))?,
            Mode::RamOnly => self.in_memory.clone(),
        })
    }

    /// The values that are asked for: cars of any number, or always the same colour or keyword.
    fn values(&self, kind: Kind) -> Vec<String> {
        let mut random = Random::new(self.count);
        let value = |_| match kind {
            Kind::Index => car_name(random.below(self.count)),
            Kind::Partition => COLOR.to_owned(),
            Kind::Tag => KEYWORD.to_owned(),
        };
        (0..QUESTION_COUNT).map(value).collect()
    }

    /// How many cars an answer has.
    fn match_count(&self, kind: Kind) -> u64 {
        let has = |number: &u64| match kind {
            Kind::Index => *number == 0,
            Kind::Partition => Car::new(*number).color == COLOR,
            Kind::Tag => Car::new(*number).keywords.iter().any(|keyword| keyword == KEYWORD),
        };
        (0..self.count).filter(has).count() as u64
    }
}

fn question(kind: Kind, value: &str) -> Query {
    Query::new(match kind {
        Kind::Index => field("name").eq(value),
        Kind::Partition => field("color").eq(value),
        Kind::Tag => field("keywords").contains(value),
    })
}

/// The cars of our answer.
fn our_cars(db: &Database, query: &Query) -> Result<Vec<Car>> {
    let mut cars = Vec::new();
    for document in db.find(query).run()? {
        cars.push(document?.to()?);
    }
    Ok(cars)
}

/// How many documents our answer has, each of them at hand.
fn our_documents(db: &Database, query: &Query) -> Result<usize> {
    let mut count = 0;
    for document in db.find(query).run()? {
        count += usize::from(!document?.is_deleted());
    }
    Ok(count)
}

/// Asks one thing; how many cars came.
type Ask<'a> = Box<dyn Fn(usize) -> Result<usize> + 'a>;

fn ask(bench: &mut Bench, cars: &Grown, ours: &Database, kind: Kind, mode: Mode) -> Result<()> {
    let name = format!("{}, {}", kind.name(), mode.name());
    if !bench.wants(&name) {
        return Ok(());
    }
    let values = cars.values(kind);
    // A question that is asked again and again is prepared, as an application would.
    let prepared: Vec<Query> =
        values.iter().map(|value| Ok(ours.prepare(question(kind, value))?)).collect::<Result<_>>()?;
    verify(cars, ours, kind, &values[0], &prepared[0])?;
    let match_count = cars.match_count(kind);
    let (values, prepared) = (&values, &prepared);
    let asks: Vec<(&'static str, Ask<'_>)> = match mode {
        Mode::Uncached => vec![
            ("stemma", Box::new(|at| Ok(our_cars(ours, &prepared[at])?.len()))),
            ("files", Box::new(|at| Ok(cars.files.find(kind, &values[at])?.len()))),
            ("files-cached-index", Box::new(|at| Ok(cars.places.find_files(&cars.files, kind, &values[at])?.len()))),
        ],
        Mode::Cached | Mode::RamOnly => vec![
            ("stemma", Box::new(|at| our_documents(ours, &prepared[at]))),
            (
                if mode == Mode::Cached { "files-cached" } else { "maps-in-RAM" },
                Box::new(|at| Ok(cars.everything.find(kind, &values[at]).len())),
            ),
        ],
    };
    let stopwatch = Stopwatch::new(bench.clock);
    let budget = Duration::from_millis(bench.scale.turn_ms);
    let mut contenders = Vec::new();
    for (contender, ask) in &asks {
        let stopwatch = &stopwatch;
        contenders
            .push(Contender::new(contender, move |_, samples| turn(ask, match_count, stopwatch, budget, samples)));
    }
    let samples = alternate(bench.scale.repetition_count, &mut contenders)?;
    let mut heading = bench.heading(&name, cars.count, false, Unit::Nanoseconds);
    heading.experiment = "caches";
    heading.rows = Some(match_count);
    let bound = Samples::of([if mode == Mode::Uncached { UNCACHED_NS } else { CACHED_NS }]);
    let mut peers: Vec<(&str, &Samples)> = asks[1..].iter().map(|(name, _)| *name).zip(&samples[1..]).collect();
    if kind == Kind::Index {
        peers.push(("bound", &bound));
        heading.targets = vec![("bound", 1.0)];
    }
    bench.push(Row::new(heading, &samples[0], &peers).with_quartiles(&samples[0], &peers))
}

/// All contenders find the same cars.
fn verify(cars: &Grown, ours: &Database, kind: Kind, value: &str, query: &Query) -> Result<()> {
    let named = |mut all: Vec<Car>| {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    };
    let truth = named(cars.everything.find(kind, value).iter().map(|car| Car::clone(car)).collect());
    let answers = [
        ("stemma", our_cars(ours, query)?),
        ("files", cars.files.find(kind, value)?),
        ("files-cached-index", cars.places.find_files(&cars.files, kind, value)?),
    ];
    for (name, answer) in answers {
        if named(answer) != truth || truth.len() as u64 != cars.match_count(kind) {
            return Err(format!("{name} does not find the cars of {value}").into());
        }
    }
    Ok(())
}

/// Asks a hundred times, or for as long as a turn may take.
fn turn(ask: &Ask<'_>, match_count: u64, stopwatch: &Stopwatch, budget: Duration, samples: &mut Samples) -> Result<()> {
    let start = Instant::now();
    let positions: Vec<usize> = (0..QUESTION_COUNT).collect();
    // What takes long is timed one by one.
    let at_once = if match_count == 1 { SAMPLE_COUNT } else { 1 };
    for some in positions.chunks(at_once) {
        let mut found = 0;
        let cost = stopwatch.nanoseconds(some.len(), || {
            for at in some {
                found += ask(*at)?;
            }
            Ok(())
        })?;
        if found as u64 != match_count * some.len() as u64 {
            return Err(format!("{found} cars came, not {match_count} for each question").into());
        }
        samples.push(cost);
        if start.elapsed() > budget {
            break;
        }
    }
    Ok(())
}

/// What it takes to add a car, each by itself, nobody waiting for the disk.
fn inserts(bench: &mut Bench) -> Result<()> {
    let count = bench.scale.car_counts[0].max(1_000);
    for mode in [Mode::Cached, Mode::RamOnly] {
        let name = format!("insert, {}", mode.name());
        if !bench.wants(&name) {
            continue;
        }
        let cars: Vec<(u64, Car)> = (0..count).map(|number| (number, Car::new(number))).collect();
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for _ in 0..bench.scale.repetition_count {
            let db = match mode {
                Mode::RamOnly => Database::in_memory_with(options())?,
                _ => Database::open_with(bench.place.fresh("inserted.stemma")?, options())?,
            };
            let start = Instant::now();
            for (key, car) in &cars {
                db.insert(&format!("{key:010}"), car)?;
            }
            db.close()?;
            ours.push_repetition(start.elapsed().as_nanos() as f64 / count as f64);
            let files = Files::create(&bench.place.fresh("inserted")?)?;
            let mut everything = Remembered::new(true);
            let start = Instant::now();
            for (key, car) in &cars {
                if mode == Mode::Cached {
                    files.insert(*key, car)?;
                }
                everything.insert(*key, car);
            }
            theirs.push_repetition(start.elapsed().as_nanos() as f64 / count as f64);
        }
        let mut heading = bench.heading(&name, count, false, Unit::Microseconds);
        heading.experiment = "caches";
        let peer = if mode == Mode::Cached { "files-cached" } else { "maps-in-RAM" };
        bench.push(Row::new(heading, &ours, &[(peer, &theirs)]))?;
    }
    Ok(())
}
