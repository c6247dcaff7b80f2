//! Counts, sums and groups over what matches, without its rows.
//!
//! What the index can tell costs no document: a value's documents are counted where they lie. The results are those of reading
//! every document, to the last digit: sums are exact before they are rounded once, so no order of documents shows in them.

mod group;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(in crate::query) use self::group::summaries;
pub(in crate::query) use self::scan::canonical;
use self::scan::{Fold, Scan};
use crate::query::plan::request::Query;
use crate::query::source::Source;
use crate::tree::Direction;
use crate::value::{ExactSum, Kind, Number, Path, Value};
use crate::{Error, Result};

/// What the numbers at one path come to. Other values at the path play no part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// How many documents have a number there.
    pub count: u64,
    /// The sum, exact before it is rounded: an integer if it is a whole number that fits 64 bits, else the nearest double.
    pub sum: Option<Number>,
    /// The least number; none if there is none.
    pub min: Option<Number>,
    /// The greatest number; none if there is none.
    pub max: Option<Number>,
}

impl Summary {
    /// The sum as a double, divided by the count; none if there is no number.
    pub fn average(&self) -> Option<f64> {
        let sum = self.sum.filter(|_| self.count > 0)?;
        Some(sum.as_f64() / self.count as f64)
    }
}

/// A summary that is being made.
#[derive(Clone, Default)]
pub(in crate::query) struct Summing {
    count: u64,
    sum: ExactSum,
    min: Option<Number>,
    max: Option<Number>,
}

impl Summing {
    pub(in crate::query) fn add(&mut self, number: Number, count: u64) {
        self.count += count;
        self.sum.add(number, count);
        if self.min.is_none_or(|min| number.compare(min).is_lt()) {
            self.min = Some(number);
        }
        if self.max.is_none_or(|max| number.compare(max).is_gt()) {
            self.max = Some(number);
        }
    }

    pub(in crate::query) fn finish(&self, path: &Path) -> Result<Summary> {
        Ok(Summary { count: self.count, sum: Some(total(&self.sum, path)?), min: self.min, max: self.max })
    }
}

impl Fold for Summing {
    fn add(&mut self, _: &[u8], value: &Value, count: u64) -> Result<()> {
        if let Value::Number(number) = value {
            Summing::add(self, *number, count);
        }
        Ok(())
    }

    fn restart(&mut self) {
        *self = Summing::default();
    }
}

/// Distinct values with how many documents have each.
struct Distinct<'s, S> {
    source: &'s S,
    values: BTreeMap<Vec<u8>, (Value, u64)>,
    bytes: usize,
}

impl<S: Source> Fold for Distinct<'_, S> {
    fn add(&mut self, key: &[u8], value: &Value, count: u64) -> Result<()> {
        if let Some((_, known)) = self.values.get_mut(key) {
            *known += count;
            return Ok(());
        }
        self.bytes += 2 * key.len() + VALUE_BYTES;
        self.source.hold(self.bytes)?;
        self.values.insert(key.to_vec(), (value.clone(), count));
        Ok(())
    }

    fn restart(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }
}

/// About what a distinct value takes beside its key.
const VALUE_BYTES: usize = 100;

/// The distinct values at a path of what matches, in order, each with how many documents have it.
pub(in crate::query) fn distinct<S: Source>(source: S, query: &Query, path: &str) -> Result<Vec<(Value, u64)>> {
    let scan = Scan::open(source, &query.prepare_unordered()?, &path_of(path)?)?;
    let mut distinct = Distinct { source: &scan.filtered.source, values: BTreeMap::new(), bytes: 0 };
    scan.fold(&Kind::ALL, &mut distinct)?;
    query.limits().allow_rows(distinct.values.len() as u64)?;
    Ok(distinct.values.into_values().collect())
}

/// What the numbers at a path of what matches come to.
pub(in crate::query) fn summary<S: Source>(source: S, query: &Query, path: &str) -> Result<Summary> {
    let path = path_of(path)?;
    let scan = Scan::open(source, &query.prepare_unordered()?, &path)?;
    if let Some((at, numbers)) = scan.all_numbers()? {
        let end = |direction| scan.extreme(at, direction);
        let (min, max) = (end(Direction::Ascending)?, end(Direction::Descending)?);
        return Ok(Summary { count: numbers.count(), sum: Some(total(numbers.sum(), &path)?), min, max });
    }
    summed(&scan)?.finish(&path)
}

/// The sum of the numbers at a path of what matches.
pub(in crate::query) fn sum<S: Source>(source: S, query: &Query, path: &str) -> Result<Number> {
    let path = path_of(path)?;
    let scan = Scan::open(source, &query.prepare_unordered()?, &path)?;
    match scan.all_numbers()? {
        Some((_, numbers)) => total(numbers.sum(), &path),
        None => total(&summed(&scan)?.sum, &path),
    }
}

fn summed<S: Source>(scan: &Scan<S>) -> Result<Summing> {
    let mut summing = Summing::default();
    scan.fold(&[Kind::Number], &mut summing)?;
    Ok(summing)
}

fn total(sum: &ExactSum, path: &Path) -> Result<Number> {
    sum.total().ok_or_else(|| {
        Error::invalid(format!("the sum of {path} is beyond the numbers"))
            .with_hint("a double reaches to about 1.8e308")
    })
}

fn path_of(path: &str) -> Result<Path> {
    Path::parse(path).map_err(|error| error.with_hint("a path is field names joined by dots, such as author.name"))
}
