//! Cardinality estimates: about how many documents a node of a plan returns, from lookups, the first and last values of
//! a range, and the histogram in between.
//!
//! Results never depend on estimates; the order of unsorted rows may.

use std::ops::ControlFlow;

use super::evaluate::{READ_COST, ids_in_range, passes};
use crate::Result;
use crate::index::{Histogram, PathNumber, Presence};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::plan::{Node, ValueTest};
use crate::query::source::IndexStatistics;
use crate::tree::Direction;

/// The number of values visited at each end of a range.
const VALUES_MAX: u64 = if cfg!(test) { 8 } else { 64 };
/// The number of positions sampled within a range, and the number of values at each.
const SAMPLES_MAX: usize = 16;
const SAMPLE_VALUES: u64 = 8;
/// A filter of fewer values is always evaluated.
const COSTLY_VALUES_MIN: u64 = if cfg!(test) { 3 } else { 4_096 };
/// The number of values of one list that are looked up.
const KEYS_MAX: usize = 64;
/// The assumed share of a range without statistics, of all documents with a scalar at its path.
const RANGE_SHARE: f64 = 1.0 / 3.0;

/// Estimates how many documents a node returns; `all` is the number of live documents.
pub(in crate::query) fn estimate(node: &Node, source: &impl IndexStatistics, all: u64) -> Result<u64> {
    let rows = match node {
        Node::Empty => 0,
        Node::All => all,
        Node::Equal { path, key } => source.equal_len(*path, key)?,
        Node::EqualAny { path, keys } => {
            let mut found = 0;
            for key in keys.iter().take(KEYS_MAX) {
                found += source.equal_len(*path, key)?;
            }
            found * keys.len() as u64 / keys.len().clamp(1, KEYS_MAX) as u64
        }
        Node::Presence { path, kinds } => source.presence_len(*path, kinds)?,
        Node::Range { path, range } => estimate_range(source, *path, range, None)?,
        Node::Matching { path, range, test } => estimate_range(source, *path, range, Some(test))?,
        Node::Ids(ids) => ids.len() as u64,
        Node::IdRange { lower, upper } => match ids_in_range(source, lower, upper, VALUES_MAX)? {
            Some(found) => found.len(),
            None => (all as f64 * RANGE_SHARE) as u64,
        },
        Node::Union(nodes) => {
            let each = nodes.iter().map(|node| estimate(node, source, all)).sum::<Result<u64>>();
            each?
        }
        Node::Intersection(nodes) => {
            let mut share = 1.0;
            for node in nodes {
                share *= estimate(node, source, all)? as f64 / all.max(1) as f64;
            }
            (share * all as f64).ceil() as u64
        }
        Node::Difference(from, without) => estimate(from, source, all)?.saturating_sub(estimate(without, source, all)?),
        Node::Check(inner) => estimate(inner, source, all)?,
    };
    Ok(rows.min(all))
}

/// The estimated cost of evaluating a range, from statistics only.
#[derive(Clone, Copy, Debug)]
pub(in crate::query) struct RangeEstimate {
    /// The number of values to visit.
    pub(in crate::query) values: u64,
    /// The number of documents that have one of them.
    pub(in crate::query) documents: u64,
    /// Whether the values are tested, so that the result may be smaller.
    pub(in crate::query) is_tested: bool,
}

/// Estimates a range, or a union of ranges and inexpensive nodes. `None` for other nodes, and if a path has no
/// statistics.
pub(in crate::query) fn range_estimate(node: &Node, source: &impl IndexStatistics) -> Option<RangeEstimate> {
    let (path, range) = match node {
        Node::Range { path, range } | Node::Matching { path, range, .. } => (*path, range),
        Node::Check(inner) => return range_estimate(inner, source),
        Node::Union(nodes) => {
            let mut sum = RangeEstimate { values: 0, documents: 0, is_tested: false };
            let is_costly = |node: &&Node| !matches!(node, Node::Presence { .. } | Node::Equal { .. });
            for node in nodes.iter().filter(is_costly) {
                let one = range_estimate(node, source)?;
                sum.values = sum.values.saturating_add(one.values);
                sum.documents = sum.documents.saturating_add(one.documents);
                sum.is_tested |= one.is_tested;
            }
            return Some(sum);
        }
        _ => return None,
    };
    let amount = source.histogram(path)?.estimate(&range.lower, &range.upper);
    let is_tested = matches!(node, Node::Matching { .. });
    Some(RangeEstimate { values: amount.values as u64, documents: amount.entries as u64, is_tested })
}

/// Whether a filter is one range with so many values that it costs less to walk documents in another order and read
/// them until `wanted` match: at most `read_max` documents, if matches are distributed evenly.
pub(in crate::query) fn is_reading_cheaper(
    filter: &Node,
    source: &impl IndexStatistics,
    rows_needed: u64,
    read_max: u64,
) -> Result<bool> {
    let Some(range) = range_estimate(filter, source).filter(|range| range.values >= COSTLY_VALUES_MIN) else {
        return Ok(false);
    };
    let all = source.live_len()?;
    let matching = if range.is_tested { estimate(filter, source, all)? } else { range.documents };
    let read = u128::from(all) * u128::from(rows_needed) / u128::from(matching.max(1));
    Ok(read <= u128::from(read_max) && read * u128::from(READ_COST) < u128::from(range.values / 4))
}

/// Totals of the values visited by a walk.
#[derive(Default)]
struct WalkedValues {
    /// Documents with a value that passes or may pass the test.
    passing: u64,
    all: u64,
    last_key: Vec<u8>,
    /// Whether the walk visited every value of the range.
    is_whole: bool,
}

fn estimate_range(
    source: &impl IndexStatistics,
    path: PathNumber,
    range: &KeyRange,
    test: Option<&ValueTest>,
) -> Result<u64> {
    let first = sample_values(source, path, range, Direction::Ascending, VALUES_MAX, test)?;
    if first.is_whole {
        return Ok(first.passing);
    }
    let rest = KeyRange { lower: successor(&first.last_key), upper: range.upper.clone() };
    let last = sample_values(source, path, &rest, Direction::Descending, VALUES_MAX, test)?;
    let found = first.passing + last.passing;
    if last.is_whole {
        return Ok(found);
    }
    let between = KeyRange { lower: rest.lower, upper: last.last_key };
    let (mut passing, mut all) = (found, first.all + last.all);
    let Some(histogram) = source.histogram(path).filter(|histogram| histogram.entry_count() > 0) else {
        let guessed = scalars(source, path)? as f64 * RANGE_SHARE * share(passing, all);
        return Ok(found.max(guessed as u64));
    };
    if test.is_some() {
        for from in histogram.samples(&between.lower, &between.upper, SAMPLES_MAX) {
            let sample = KeyRange { lower: from.to_vec(), upper: between.upper.clone() };
            let sampled = sample_values(source, path, &sample, Direction::Ascending, SAMPLE_VALUES, test)?;
            passing += sampled.passing;
            all += sampled.all;
        }
    }
    let unseen = histogram.estimate(&between.lower, &between.upper).entries * growth(source, path, &histogram)?;
    Ok(found + (unseen * share(passing, all)).round() as u64)
}

/// Visits the first or the last values of a range.
fn sample_values(
    source: &impl IndexStatistics,
    path: PathNumber,
    range: &KeyRange,
    direction: Direction,
    values_max: u64,
    test: Option<&ValueTest>,
) -> Result<WalkedValues> {
    let mut sampled = WalkedValues { is_whole: true, ..WalkedValues::default() };
    let mut left = values_max;
    if range.is_empty() {
        return Ok(sampled);
    }
    source.walk(path, range, direction, &mut |key, documents| {
        if left == 0 {
            sampled.is_whole = false;
            return Ok(ControlFlow::Break(()));
        }
        left -= 1;
        let count = documents.len()?;
        sampled.all += count;
        let may_pass = test.map_or(Ok(Some(true)), |test| passes(test, key))? != Some(false);
        sampled.passing += if may_pass { count } else { 0 };
        sampled.last_key.clear();
        sampled.last_key.extend_from_slice(key);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(sampled)
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// The ratio of the current number of entries of a path to that in its statistics, or 1 if it is expensive to
/// determine.
fn growth(source: &impl IndexStatistics, path: PathNumber, histogram: &Histogram) -> Result<f64> {
    let now = if source.paths().enters_array(path) { 0 } else { scalars(source, path)? };
    Ok(if now == 0 { 1.0 } else { now as f64 / histogram.entry_count().max(1) as f64 })
}

/// The number of documents with a scalar at a path, not counting those within arrays.
fn scalars(source: &impl IndexStatistics, path: PathNumber) -> Result<u64> {
    Ok(source.presence(path, &[Presence::Null, Presence::Bool, Presence::Number, Presence::String])?.len())
}
