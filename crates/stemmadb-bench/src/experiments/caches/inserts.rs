//! Single inserts at every size, without flushes: the last cars before the database has that size.

use std::time::Instant;

use stemmadb::Database;

use super::Mode;
use super::databases::{CarDatabases, cached};
use crate::Result;
use crate::experiments::Bench;
use crate::harness::{ResultRow, Samples, Unit};
use crate::workload::Car;

/// Cars that are inserted one by one at each size.
const INSERT_COUNT: u64 = 1_000;

/// Adds cars to all contenders until there are `count`; measures the last of them.
pub(super) fn grow(bench: &mut Bench, cars: &mut CarDatabases, count: u64) -> Result<()> {
    let modes = [Mode::Cached, Mode::RamOnly].map(|mode| (mode, format!("insert, {}", mode.name())));
    if !modes.iter().any(|(_, name)| bench.is_selected(name)) {
        return cars.grow(count);
    }
    cars.grow(count.saturating_sub(INSERT_COUNT).max(cars.count))?;
    let costs = InsertCosts::measure(cars, count, bench.scale.repetition_count)?;
    for (mode, name) in modes {
        if !bench.is_selected(&name) {
            continue;
        }
        let mut heading = bench.heading(&name, count, false, Unit::Microseconds);
        heading.experiment = "caches";
        let (ours, peer) = match mode {
            Mode::RamOnly => (&costs.in_memory, ("maps-in-RAM", &costs.maps)),
            _ => (&costs.on_disk, ("files-cached", &costs.files)),
        };
        bench.push(ResultRow::new(heading, ours, &[peer]).with_distributions(ours, &[peer]))?;
    }
    Ok(())
}

/// Nanoseconds per car, by turn. Stemma's include a share of the merge that follows the last turn.
#[derive(Default)]
struct InsertCosts {
    on_disk: Samples,
    in_memory: Samples,
    /// Files, links and maps.
    files: Samples,
    maps: Samples,
}

impl InsertCosts {
    /// Inserts the cars up to `count` into each contender, in alternating turns.
    fn measure(cars: &mut CarDatabases, count: u64, turn_count: usize) -> Result<Self> {
        let new: Vec<(u64, Car)> = (cars.count..count).map(|number| (number, Car::new(number))).collect();
        let on_disk = Database::open_with(&cars.path, cached())?;
        let in_memory = cars.in_memory.clone();
        let mut turns = Vec::new();
        for turn in new.chunks(new.len().div_ceil(turn_count).max(1)) {
            let insert = |db: &Database| {
                turn.iter().try_for_each(|(key, car)| Ok(db.insert(&format!("{key:010}"), car).map(|_| ())?))
            };
            let ours = [timed(|| insert(&on_disk))?, timed(|| insert(&in_memory))?];
            let files = timed(|| turn.iter().try_for_each(|(key, car)| cars.files.insert(*key, car)))?;
            // An index without the cars, as `grow` keeps it; it belongs to no timed contender.
            turn.iter().for_each(|(key, car)| cars.key_index.insert(*key, car));
            let maps = timed(|| {
                turn.iter().for_each(|(key, car)| cars.full_cache.insert(*key, car));
                Ok(())
            })?;
            turns.push((turn.len() as f64, ours, [files + maps, maps]));
        }
        let merges = [timed(|| Ok(on_disk.close()?))?, timed(|| Ok(in_memory.maintenance().checkpoint()?))?];
        cars.count = count;
        let mut costs = InsertCosts::default();
        for (car_count, ours, theirs) in turns {
            let each = |ours: f64, merge: f64| ours / car_count + merge / new.len() as f64;
            costs.on_disk.push_repetition(each(ours[0], merges[0]));
            costs.in_memory.push_repetition(each(ours[1], merges[1]));
            costs.files.push_repetition(theirs[0] / car_count);
            costs.maps.push_repetition(theirs[1] / car_count);
        }
        Ok(costs)
    }
}

/// Returns the nanoseconds that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64)
}
