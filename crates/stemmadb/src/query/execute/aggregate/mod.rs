//! Aggregation: counts, sums and groups over the matching documents.
//!
//! Where the index suffices, no document is read: documents are counted in the postings. Results equal those of reading
//! every document, to the last digit: a sum is exact until it is rounded once at the end, so it does not depend on the
//! order of documents.

mod combined;
mod elements;
mod group;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(in crate::query) use self::combined::{CombinedGroup, FigurePath, PathFigures, combined_groups};
use self::elements::ValuePath;
pub(in crate::query) use self::group::{MissingGroup, summaries, summary_builders};
pub(in crate::query) use self::scan::canonical;
use self::scan::{Fold, Scan};
use crate::query::plan::request::Query;
use crate::query::source::{QueryContext, QuerySource};
use crate::tree::Direction;
use crate::value::{ExactSum, Kind, Number, Value};
use crate::{Error, Result};

/// Count, sum, minimum and maximum of the numbers at one path, as returned by [`Find::summary`](crate::Find::summary).
/// Values of other kinds are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// Number of documents with a number at the path.
    pub count: u64,
    /// The sum, rounded once: an integer if it is a whole number that fits 64 bits, otherwise the nearest double.
    pub sum: Option<Number>,
    /// The smallest number, or `None` if there is no number.
    pub min: Option<Number>,
    /// The largest number, or `None` if there is no number.
    pub max: Option<Number>,
}

impl Summary {
    /// A summary that was computed elsewhere, such as by a server.
    pub fn new(count: u64, sum: Option<Number>, min: Option<Number>, max: Option<Number>) -> Self {
        Summary { count, sum, min, max }
    }

    /// Returns the sum as a double divided by the count, or `None` if there is no number.
    pub fn average(&self) -> Option<f64> {
        let sum = self.sum.filter(|_| self.count > 0)?;
        Some(sum.as_f64() / self.count as f64)
    }
}

/// Accumulates a [`Summary`].
#[derive(Clone, Default)]
pub(in crate::query) struct SummaryBuilder {
    count: u64,
    sum: ExactSum,
    min: Option<Number>,
    max: Option<Number>,
}

impl SummaryBuilder {
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

    /// Adds the numbers of another part.
    pub(in crate::query) fn merge(&mut self, other: &SummaryBuilder) {
        self.count += other.count;
        self.sum.add_sum(&other.sum);
        if let Some(min) = other.min.filter(|other| self.min.is_none_or(|min| other.compare(min).is_lt())) {
            self.min = Some(min);
        }
        if let Some(max) = other.max.filter(|other| self.max.is_none_or(|max| other.compare(max).is_gt())) {
            self.max = Some(max);
        }
    }

    /// The count, the sum, the minimum and the maximum.
    pub(in crate::query) fn parts(&self) -> (u64, &ExactSum, Option<Number>, Option<Number>) {
        (self.count, &self.sum, self.min, self.max)
    }

    /// The opposite of [`SummaryBuilder::parts`].
    pub(in crate::query) fn of_parts(count: u64, sum: ExactSum, min: Option<Number>, max: Option<Number>) -> Self {
        SummaryBuilder { count, sum, min, max }
    }

    pub(in crate::query) fn finish(&self, path: &str) -> Result<Summary> {
        Ok(Summary { count: self.count, sum: Some(total(&self.sum, path)?), min: self.min, max: self.max })
    }
}

impl Fold for SummaryBuilder {
    fn add(&mut self, _: &[u8], value: &Value, count: u64) -> Result<()> {
        if let Value::Number(number) = value {
            SummaryBuilder::add(self, *number, count);
        }
        Ok(())
    }

    fn restart(&mut self) {
        *self = SummaryBuilder::default();
    }

    fn counts_documents(&self) -> bool {
        false
    }
}

/// Distinct values, each with its number of documents.
struct Distinct<'s, S> {
    source: &'s S,
    values: BTreeMap<Vec<u8>, (Value, u64)>,
    bytes: usize,
}

impl<S: QueryContext> Fold for Distinct<'_, S> {
    fn add(&mut self, key: &[u8], value: &Value, count: u64) -> Result<()> {
        if let Some((_, total_count)) = self.values.get_mut(key) {
            *total_count += count;
            return Ok(());
        }
        self.bytes += 2 * key.len() + VALUE_BYTES;
        self.source.check_memory(self.bytes)?;
        self.values.insert(key.to_vec(), (value.clone(), count));
        Ok(())
    }

    fn restart(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }

    fn counts_documents(&self) -> bool {
        true
    }
}

/// Approximate memory of a distinct value in addition to its key.
const VALUE_BYTES: usize = 100;

/// Approximate memory of a summary.
const SUMMARY_BYTES: usize = 800;

/// Returns the distinct values at a path of the matching documents, in collation order, each with its number of
/// documents.
pub(in crate::query) fn distinct<S: QuerySource>(source: S, query: &Query, path: &str) -> Result<Vec<(Value, u64)>> {
    let scan = Scan::open(source, &query.prepare_unordered()?, &ValuePath::parse(path)?)?;
    let mut distinct = Distinct { source: &scan.filtered.source, values: BTreeMap::new(), bytes: 0 };
    scan.fold(&Kind::ALL, &mut distinct)?;
    query.limits().allow_rows(distinct.values.len() as u64)?;
    Ok(distinct.values.into_values().collect())
}

/// Summarizes the numbers at a path of the matching documents.
pub(in crate::query) fn summary<S: QuerySource>(source: S, query: &Query, path: &str) -> Result<Summary> {
    summary_builder(source, query, path)?.finish(path)
}

/// As [`summary`], with a sum that is not rounded yet.
pub(in crate::query) fn summary_builder<S: QuerySource>(
    source: S,
    query: &Query,
    path: &str,
) -> Result<SummaryBuilder> {
    let scan = Scan::open(source, &query.prepare_unordered()?, &ValuePath::parse(path)?)?;
    if let Some((at, numbers)) = scan.all_numbers()? {
        let end = |direction| scan.extreme(at, direction);
        let (min, max) = (end(Direction::Ascending)?, end(Direction::Descending)?);
        return Ok(SummaryBuilder { count: numbers.count(), sum: numbers.sum().clone(), min, max });
    }
    summarize(&scan)
}

/// Sums the numbers at a path of the matching documents.
pub(in crate::query) fn sum<S: QuerySource>(source: S, query: &Query, path: &str) -> Result<Number> {
    total(&sum_builder(source, query, path)?.sum, path)
}

/// As [`summary_builder`], of which only the count and the sum are needed: finding the extremes may take longer.
pub(in crate::query) fn sum_builder<S: QuerySource>(source: S, query: &Query, path: &str) -> Result<SummaryBuilder> {
    let scan = Scan::open(source, &query.prepare_unordered()?, &ValuePath::parse(path)?)?;
    match scan.all_numbers()? {
        Some((_, numbers)) => {
            Ok(SummaryBuilder { count: numbers.count(), sum: numbers.sum().clone(), ..SummaryBuilder::default() })
        }
        None => summarize(&scan),
    }
}

fn summarize<S: QuerySource>(scan: &Scan<S>) -> Result<SummaryBuilder> {
    let mut builder = SummaryBuilder::default();
    scan.fold(&[Kind::Number], &mut builder)?;
    Ok(builder)
}

fn total(sum: &ExactSum, path: &str) -> Result<Number> {
    sum.total().ok_or_else(|| {
        Error::invalid(format!("the sum of {path} exceeds the range of a double"))
            .with_hint("the largest double is about 1.8e308")
    })
}

fn path_error(error: Error) -> Error {
    error.with_hint("a path is field names joined by dots, such as author.name")
}
