//! About how many documents a step of a plan gives, at little cost: look-ups in the index, the first and last values of a range,
//! and the statistics of what lies between.
//!
//! An answer never depends on an estimate; the order in which it is found may.

use std::ops::ControlFlow;

use super::evaluate::{READ_COST, passes};
use crate::Result;
use crate::index::{Histogram, PathNumber, Presence};
use crate::query::language::interval::{KeyRange, successor};
use crate::query::plan::{Node, ValueTest};
use crate::query::source::Source;
use crate::tree::Direction;

/// How many values of one range are looked at, from either end.
const VALUES_MAX: u64 = if cfg!(test) { 8 } else { 64 };
/// At how many places within a range values are tried, and how many at each.
const SAMPLES_MAX: usize = 16;
const SAMPLE_VALUES: u64 = 8;
/// A filter of fewer values is evaluated in any case.
const SPARED_VALUES_MIN: u64 = if cfg!(test) { 3 } else { 4_096 };
/// How many values of one list are looked up.
const KEYS_MAX: usize = 64;
/// What a range of which nothing is known is taken to have, of all that have a scalar there.
const RANGE_SHARE: f64 = 1.0 / 3.0;

/// About how many documents a node gives; `all` is how many there are.
pub(in crate::query) fn estimate(node: &Node, source: &impl Source, all: u64) -> Result<u64> {
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
        Node::Range { path, range } => of_range(source, *path, range, None)?,
        Node::Matching { path, range, test } => of_range(source, *path, range, Some(test))?,
        Node::Ids(ids) => ids.len() as u64,
        Node::IdRange { .. } => (all as f64 * RANGE_SHARE) as u64,
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

/// What statistics tell of evaluating a range, without a look at the index.
#[derive(Clone, Copy, Debug)]
pub(in crate::query) struct Expected {
    /// Values to visit.
    pub(in crate::query) values: u64,
    /// Documents that have one of them.
    pub(in crate::query) documents: u64,
    /// Whether values are tested, so that fewer documents may be what comes of it.
    pub(in crate::query) is_tested: bool,
}

/// What a range of values is expected to have, or several together with what costs nothing; none if the node is another, or
/// nothing is known of its path.
pub(in crate::query) fn expected(node: &Node, source: &impl Source) -> Option<Expected> {
    let (path, range) = match node {
        Node::Range { path, range } | Node::Matching { path, range, .. } => (*path, range),
        Node::Check(inner) => return expected(inner, source),
        Node::Union(nodes) => {
            let mut sum = Expected { values: 0, documents: 0, is_tested: false };
            let is_costly = |node: &&Node| !matches!(node, Node::Presence { .. } | Node::Equal { .. });
            for node in nodes.iter().filter(is_costly) {
                let one = expected(node, source)?;
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
    Some(Expected { values: amount.values as u64, documents: amount.entries as u64, is_tested })
}

/// Whether a filter is one range of so many values that it costs less to read the documents met on a walk in another order until
/// `wanted` of them match: no more than `read_max`, if they are spread evenly.
pub(in crate::query) fn spares_filter(filter: &Node, source: &impl Source, wanted: u64, read_max: u64) -> Result<bool> {
    let Some(range) = expected(filter, source).filter(|range| range.values >= SPARED_VALUES_MIN) else {
        return Ok(false);
    };
    let all = source.live_len()?;
    let matching = if range.is_tested { estimate(filter, source, all)? } else { range.documents };
    let read = u128::from(all) * u128::from(wanted) / u128::from(matching.max(1));
    Ok(read <= u128::from(read_max) && read * u128::from(READ_COST) < u128::from(range.values / 4))
}

/// Documents met on a walk over some values.
#[derive(Default)]
struct Met {
    /// Those with a value that passes, or may.
    passing: u64,
    all: u64,
    last_key: Vec<u8>,
    /// Whether there were no more values.
    is_whole: bool,
}

fn of_range(source: &impl Source, path: PathNumber, range: &KeyRange, test: Option<&ValueTest>) -> Result<u64> {
    let first = meet(source, path, range, Direction::Ascending, VALUES_MAX, test)?;
    if first.is_whole {
        return Ok(first.passing);
    }
    let rest = KeyRange { lower: successor(&first.last_key), upper: range.upper.clone() };
    let last = meet(source, path, &rest, Direction::Descending, VALUES_MAX, test)?;
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
            let met = meet(source, path, &sample, Direction::Ascending, SAMPLE_VALUES, test)?;
            passing += met.passing;
            all += met.all;
        }
    }
    let unseen = histogram.estimate(&between.lower, &between.upper).entries * growth(source, path, &histogram)?;
    Ok(found + (unseen * share(passing, all)).round() as u64)
}

/// Looks at the first values of a range, or the last.
fn meet(
    source: &impl Source,
    path: PathNumber,
    range: &KeyRange,
    direction: Direction,
    values_max: u64,
    test: Option<&ValueTest>,
) -> Result<Met> {
    let mut met = Met { is_whole: true, ..Met::default() };
    let mut left = values_max;
    if range.is_empty() {
        return Ok(met);
    }
    source.walk(path, range, direction, &mut |key, documents| {
        if left == 0 {
            met.is_whole = false;
            return Ok(ControlFlow::Break(()));
        }
        left -= 1;
        let count = documents.len()?;
        met.all += count;
        let may_pass = test.map_or(Ok(Some(true)), |test| passes(test, key))? != Some(false);
        met.passing += if may_pass { count } else { 0 };
        met.last_key.clear();
        met.last_key.extend_from_slice(key);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(met)
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// How many times as many entries a path has now as when its statistics were made, where that is easily told.
fn growth(source: &impl Source, path: PathNumber, histogram: &Histogram) -> Result<f64> {
    let now = if source.paths().enters_array(path) { 0 } else { scalars(source, path)? };
    Ok(if now == 0 { 1.0 } else { now as f64 / histogram.entry_count().max(1) as f64 })
}

/// How many documents have a scalar at a path, not counting those within arrays.
fn scalars(source: &impl Source, path: PathNumber) -> Result<u64> {
    Ok(source.presence(path, &[Presence::Null, Presence::Bool, Presence::Number, Presence::String])?.len())
}
