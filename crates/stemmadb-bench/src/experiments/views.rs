//! Views: sums over key ranges of 1,000 to 1,000,000 keys, and sums after changing a row.
//!
//! SQLite has the same rows with a covering index on key and value, and scans the range.

use rusqlite::{Connection, params};
use stemmadb::{Database, DeclaredView, DocumentId, Durability, Edit, OpenView, Options, Value};

use super::{Bench, SEED};
use crate::Result;
use crate::harness::{Contender, Random, Samples, Stopwatch, Unit, measure_row};

const NAME: &str = "sums";
const DEFINITION: &str = r#"{"key": "key", "value": "value", "reduce": "_sum"}"#;
const SUM: &str = "SELECT sum(value) FROM rows WHERE key BETWEEN ?1 AND ?2";

/// Ranges queried and rows changed per turn.
const OPERATIONS: usize = 200;
/// Upper bound on rows scanned per turn; it reduces the number of large ranges.
const WALKED_ROWS_MAX: u64 = 5_000_000;

/// Names of the ranges, with the divisor of the key count (0: ten keys).
const PARTS: [(&str, u64); 3] = [("half", 2), ("1 of 100", 100), ("10 keys", 0)];

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for count in bench.scale.view_counts.to_vec() {
        let names = PARTS.map(|(part, _)| format!("sum of {part}"));
        let change = "change a row, then sum of half".to_owned();
        if !names.iter().chain([&change]).any(|name| bench.is_selected(name)) {
            continue;
        }
        let rows = Rows::make(bench, count)?;
        for (name, (_, part)) in names.iter().zip(PARTS) {
            if bench.is_selected(name) {
                sums(bench, &rows, name, part)?;
            }
        }
        if bench.is_selected(&change) {
            changes(bench, &rows, &change)?;
        }
        rows.db.close()?;
    }
    Ok(())
}

/// The same rows in both databases.
struct Rows {
    count: u64,
    db: Database,
    view: OpenView<DeclaredView>,
    sqlite: Connection,
}

fn id(number: u64) -> String {
    format!("row-{number}")
}

/// Returns the key of a row: a permutation of the row numbers.
fn key(number: u64, count: u64) -> u64 {
    number * 7_919 % count
}

fn body(key: u64, value: u64) -> Result<Value> {
    Ok(Value::parse(format!(r#"{{"key":{key},"value":{value}}}"#).as_bytes())?)
}

impl Rows {
    fn make(bench: &Bench, count: u64) -> Result<Self> {
        let path = bench.scratch.fresh_path("views.stemma")?;
        let options = || Options::new().durability(Durability::None);
        let mut random = Random::new(SEED);
        let values: Vec<u64> = (0..count).map(|_| random.below(1_000)).collect();
        let db = Database::open_with(&path, options())?;
        for batch in (0..count).collect::<Vec<_>>().chunks(1_000) {
            let edit = |number: &u64| -> Result<Edit> {
                let body = body(key(*number, count), values[*number as usize])?;
                Ok(Edit::Insert { id: DocumentId::new(id(*number))?, body })
            };
            for outcome in db.bulk(batch.iter().map(edit).collect::<Result<_>>()?)? {
                outcome?;
            }
        }
        db.views().define(NAME, &Value::parse(DEFINITION)?)?.update()?;
        // Closing merges everything.
        db.close()?;
        let db = Database::open_with(&path, options())?;
        let view = db.views().open(NAME)?;
        let sqlite = Connection::open(bench.scratch.fresh_path("views.sqlite")?)?;
        sqlite.pragma_update(None, "journal_mode", "WAL")?;
        sqlite.pragma_update(None, "synchronous", "OFF")?;
        sqlite.pragma_update(None, "cache_size", -(1 << 20))?;
        sqlite.execute_batch("CREATE TABLE rows(id INTEGER PRIMARY KEY, key INTEGER, value INTEGER); BEGIN")?;
        for number in 0..count {
            let row = params![number as i64, key(number, count) as i64, values[number as usize] as i64];
            sqlite.prepare_cached("INSERT INTO rows VALUES (?1, ?2, ?3)")?.execute(row)?;
        }
        sqlite.execute_batch("COMMIT; CREATE INDEX by_key ON rows(key, value); ANALYZE")?;
        Ok(Rows { count, db, view, sqlite })
    }

    fn ours(&self, range: (u64, u64)) -> Result<u64> {
        let sum = self.view.query().range(range.0..=range.1).reduce()?;
        Ok(sum.and_then(|sum| sum.as_u64()).unwrap_or(0))
    }

    fn theirs(&self, range: (u64, u64)) -> Result<u64> {
        let range = params![range.0 as i64, range.1 as i64];
        let sum: Option<i64> = self.sqlite.prepare_cached(SUM)?.query_row(range, |row| row.get(0))?;
        Ok(sum.unwrap_or(0) as u64)
    }

    /// Returns random ranges that contain 1/`part` of the keys (ten keys if `part` is 0).
    fn ranges(&self, part: u64) -> Vec<(u64, u64)> {
        let mut random = Random::new(7);
        let length = self.count.checked_div(part).unwrap_or(10).max(1);
        let count = OPERATIONS.min((WALKED_ROWS_MAX / length) as usize).max(5);
        let range = |_| {
            let from = random.below(self.count - length + 1);
            (from, from + length - 1)
        };
        (0..count).map(range).collect()
    }
}

fn sums(bench: &mut Bench, rows: &Rows, name: &str, part: u64) -> Result<()> {
    let ranges = rows.ranges(part);
    for range in &ranges {
        let (ours, theirs) = (rows.ours(*range)?, rows.theirs(*range)?);
        if ours != theirs {
            return Err(format!("{ours} and {theirs} are the sums of {range:?}").into());
        }
    }
    let stopwatch = Stopwatch::new(bench.clock);
    let timed = |ask: fn(&Rows, (u64, u64)) -> Result<u64>| {
        let (ranges, stopwatch) = (&ranges, &stopwatch);
        move |_: usize, samples: &mut Samples| {
            for range in ranges {
                samples.push(stopwatch.nanoseconds(1, || ask(rows, *range).map(|_| ()))?);
            }
            Ok(())
        }
    };
    let contenders =
        vec![Contender::new("stemma", timed(Rows::ours)), Contender::new("sqlite-covering", timed(Rows::theirs))];
    let mut heading = bench.heading(name, rows.count, false, Unit::Microseconds);
    heading.experiment = "views";
    let row = measure_row(heading, bench.scale.repetition_count, contenders)?;
    bench.push(row)
}

fn changes(bench: &mut Bench, rows: &Rows, name: &str) -> Result<()> {
    let ranges = rows.ranges(2);
    let stopwatch = Stopwatch::new(bench.clock);
    let ours = |repetition: usize, at: usize| -> Result<()> {
        let number = (repetition * ranges.len() + at) as u64 * 31 % rows.count;
        rows.db.upsert(&id(number), &body(key(number, rows.count), at as u64)?)?;
        rows.ours(ranges[at]).map(|_| ())
    };
    let theirs = |repetition: usize, at: usize| -> Result<()> {
        let number = (repetition * ranges.len() + at) as u64 * 31 % rows.count;
        let mut update = rows.sqlite.prepare_cached("UPDATE rows SET value = ?1 WHERE id = ?2")?;
        update.execute(params![at as i64, number as i64])?;
        rows.theirs(ranges[at]).map(|_| ())
    };
    let each = |change: &dyn Fn(usize, usize) -> Result<()>, repetition, samples: &mut Samples| {
        for at in 0..ranges.len() {
            samples.push(stopwatch.nanoseconds(1, || change(repetition, at))?);
        }
        Ok(())
    };
    let contenders = vec![
        Contender::new("stemma", |repetition, samples| each(&ours, repetition, samples)),
        Contender::new("sqlite-covering", |repetition, samples| each(&theirs, repetition, samples)),
    ];
    let mut heading = bench.heading(name, rows.count, false, Unit::Microseconds);
    heading.experiment = "views";
    let row = measure_row(heading, bench.scale.repetition_count, contenders)?;
    for range in ranges {
        if rows.ours(range)? != rows.theirs(range)? {
            return Err(format!("the sums of {range:?} differ after the changes").into());
        }
    }
    bench.push(row)
}
