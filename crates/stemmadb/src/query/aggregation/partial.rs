//! Mergeable state of an aggregation: what parts of the documents contribute, before sums are rounded.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{Aggregation, Figure, Function, GROUPS_MAX};
use crate::query::execute::Summary;
use crate::query::execute::aggregate::{
    CombinedGroup, FigurePath, MissingGroup, PathFigures, SummaryBuilder, canonical, combined_groups, sum_builder,
    summary_builder, summary_builders,
};
use crate::query::language::{from_base64url, to_base64url};
use crate::read::Snapshot;
use crate::value::{ExactSum, Number, Object, Value};
use crate::{Error, Result};

/// The state of an [`Aggregation`] over a part of the documents: exact sums, counts, extremes and distinct values by
/// group. The states of disjoint parts, for example of several databases, merge to the state of all of them, and the
/// figures are the same as if all documents were in one database.
///
/// ```
/// use stemmadb::{Aggregation, Database};
///
/// # fn main() -> stemmadb::Result<()> {
/// let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({"price": 1}))?;
/// south.insert("b", &serde_json::json!({"price": 2}))?;
/// let mean = Aggregation::parse(&r#"{"figures": {"mean": {"average": "price"}}}"#.parse()?)?;
/// let mut state = mean.partial(&north.snapshot()?)?;
/// state.merge(mean.partial(&south.snapshot()?)?);
/// assert_eq!(mean.finish(state)?[0].1.get("mean").and_then(|mean| mean.as_f64()), Some(1.5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct PartialAggregation {
    /// By the keys of their values.
    groups: BTreeMap<Vec<u8>, CombinedGroup>,
}

impl PartialAggregation {
    /// Adds the state of another part, of the same aggregation.
    pub fn merge(&mut self, other: PartialAggregation) {
        if self.groups.is_empty() {
            *self = other;
            return;
        }
        for (key, group) in other.groups {
            match self.groups.entry(key) {
                Entry::Vacant(entry) => drop(entry.insert(group)),
                Entry::Occupied(entry) => entry.into_mut().merge(group),
            }
        }
    }

    /// The state as JSON, for another process.
    pub fn to_value(&self) -> Value {
        Value::Array(self.groups.values().map(CombinedGroup::to_value).collect())
    }

    /// Reads what [`PartialAggregation::to_value`] wrote.
    ///
    /// # Errors
    /// `Invalid` if it is anything else.
    pub fn from_value(value: &Value) -> Result<Self> {
        let malformed = || Error::invalid("the state of an aggregation is malformed");
        let mut groups = BTreeMap::new();
        for group in value.as_array().ok_or_else(malformed)? {
            let group = CombinedGroup::from_value(group).ok_or_else(malformed)?;
            groups.insert(canonical(&group.key)?.0, group);
        }
        Ok(PartialAggregation { groups })
    }
}

impl std::fmt::Debug for PartialAggregation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartialAggregation").field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}

impl Aggregation {
    /// Computes the state of the documents of a snapshot, for merging it with that of others.
    ///
    /// # Errors
    /// As [`Aggregation::rows`], except that a sum may exceed the range of a double.
    pub fn partial(&self, snapshot: &Snapshot) -> Result<PartialAggregation> {
        self.state(snapshot, true)
    }

    /// As [`Aggregation::partial`]. Only [`Aggregation::finish_summaries`] needs the extremes of summed numbers.
    pub(super) fn state(&self, snapshot: &Snapshot, needs_extremes: bool) -> Result<PartialAggregation> {
        let groups = match self.group_by.as_slice() {
            [] => vec![self.total(snapshot, needs_extremes)?],
            _ if self.reads_documents() => self.groups_of_documents(snapshot)?,
            [path] => self.groups(snapshot, path)?,
            _ => return Err(Error::internal("groups by several paths read documents")),
        };
        let keyed = |group: CombinedGroup| Ok((canonical(&group.key)?.0, group));
        Ok(PartialAggregation { groups: groups.into_iter().map(keyed).collect::<Result<_>>()? })
    }

    /// Computes the rows of a state, as [`Aggregation::rows`] returns them.
    ///
    /// # Errors
    /// `Invalid` if a sum exceeds the range of a double; `Stopped` above 100,000 groups.
    pub fn finish(&self, state: PartialAggregation) -> Result<Vec<(Value, Object)>> {
        if state.groups.len() as u64 > GROUPS_MAX {
            return Err(Error::stopped(format!("there are more than {GROUPS_MAX} groups"))
                .with_hint("narrow the selector, or group by another path"));
        }
        let paths = self.paths();
        if state.groups.values().any(|group| group.figures.len() != paths.len()) {
            return Err(another_aggregation());
        }
        let rows = state.groups.into_values().map(|group| self.row(group, &paths)).collect::<Result<Vec<_>>>()?;
        Ok(self.ordered(rows).into_iter().skip(self.skip).take(self.limit).collect())
    }

    /// Returns each group of a state with a summary of the numbers at `path`, which must be the path of a figure.
    ///
    /// # Errors
    /// As [`Aggregation::finish`].
    pub fn finish_summaries(&self, state: PartialAggregation, path: &str) -> Result<Vec<(Value, Summary)>> {
        let at = self.paths().binary_search(&path).map_err(|_| Error::invalid("no figure is of this path"))?;
        let summary = |group: CombinedGroup| {
            let figures = group.figures.get(at).ok_or_else(another_aggregation)?;
            Ok((group.key, figures.numbers.finish(path)?))
        };
        state.groups.into_values().map(summary).collect()
    }

    /// Returns the smallest or largest value of a state without groups at `path`, which must be the path of such a
    /// figure.
    ///
    /// # Errors
    /// `Invalid` if it is not.
    pub fn finish_extreme(&self, state: PartialAggregation, path: &str, is_largest: bool) -> Result<Option<Value>> {
        let at = self.paths().binary_search(&path).map_err(|_| Error::invalid("no figure is of this path"))?;
        let Some(total) = state.groups.into_values().next() else { return Ok(None) };
        let figures = total.figures.into_iter().nth(at).unwrap_or_default();
        let extreme = if is_largest { figures.greatest } else { figures.least };
        Ok(extreme.map(|(_, value)| value))
    }

    fn total(&self, snapshot: &Snapshot, needs_extremes: bool) -> Result<CombinedGroup> {
        let find = || self.find(snapshot);
        let mut total = CombinedGroup { key: Value::Null, document_count: 0, figures: Vec::new() };
        if self.figures.iter().any(|(_, figure)| *figure == Figure::Count) {
            total.document_count = find().count()?;
        }
        for path in self.paths() {
            let has = |functions: &[Function]| {
                let is_needed = |figure: &Figure| match figure {
                    Figure::Of(function, of) => of == path && functions.contains(function),
                    Figure::Count => false,
                };
                self.figures.iter().any(|(_, figure)| is_needed(figure))
            };
            let keyed = |value: Option<Value>| -> Result<Option<(Vec<u8>, Value)>> {
                value.map(|value| Ok((canonical(&value)?.0, value))).transpose()
            };
            let mut figures = PathFigures::default();
            if has(&[Function::Sum, Function::Average]) {
                figures.numbers = find().with_source(|source, query| match needs_extremes {
                    true => summary_builder(source, query, path),
                    false => sum_builder(source, query, path),
                })?;
            }
            if has(&[Function::Min]) {
                figures.least = keyed(find().min(path)?)?;
            }
            if has(&[Function::Max]) {
                figures.greatest = keyed(find().max(path)?)?;
            }
            if has(&[Function::Distinct, Function::CountDistinct]) {
                let values = find().distinct(path)?.into_iter();
                figures.distinct = values.map(|value| Ok((canonical(&value)?.0, value))).collect::<Result<_>>()?;
            }
            total.figures.push(figures);
        }
        Ok(total)
    }

    /// Groups by one path, from the index where it suffices.
    fn groups(&self, snapshot: &Snapshot, group: &str) -> Result<Vec<CombinedGroup>> {
        let counts = self.find(snapshot).group_by(group).counts()?;
        let new = |(key, document_count)| CombinedGroup { key, document_count, figures: Vec::new() };
        let mut groups: Vec<CombinedGroup> = counts.into_iter().map(new).collect();
        // One pass for each path computes all functions of that path.
        for path in self.paths() {
            let by_group = self
                .find(snapshot)
                .with_source(|source, query| summary_builders(source, query, group, path, MissingGroup::Omit))?;
            // All passes read the same snapshot, so they have the same groups.
            debug_assert_eq!(by_group.len(), groups.len(), "the groups of two passes are equal");
            for (group, (_, numbers)) in groups.iter_mut().zip(by_group) {
                group.figures.push(PathFigures { numbers, ..PathFigures::default() });
            }
        }
        Ok(groups)
    }

    /// Groups by any number of paths, by reading the matching documents. A document without a value at one of the paths
    /// is in no group.
    fn groups_of_documents(&self, snapshot: &Snapshot) -> Result<Vec<CombinedGroup>> {
        let figure_path = |path| FigurePath { path, has_distinct: self.needs_distinct(path) };
        let figure_paths: Vec<FigurePath<'_>> = self.paths().into_iter().map(figure_path).collect();
        self.find(snapshot).with_source(|source, query| combined_groups(source, query, &self.group_by, &figure_paths))
    }
}

fn another_aggregation() -> Error {
    Error::invalid("the state is that of another aggregation")
}

impl CombinedGroup {
    fn merge(&mut self, other: CombinedGroup) {
        self.document_count += other.document_count;
        for (figures, others) in self.figures.iter_mut().zip(other.figures) {
            figures.numbers.merge(&others.numbers);
            figures.distinct.extend(others.distinct);
            let least = [figures.least.take(), others.least].into_iter().flatten().min_by(|a, b| a.0.cmp(&b.0));
            let greatest =
                [figures.greatest.take(), others.greatest].into_iter().flatten().max_by(|a, b| a.0.cmp(&b.0));
            (figures.least, figures.greatest) = (least, greatest);
        }
    }

    fn to_value(&self) -> Value {
        let figures = self.figures.iter().map(PathFigures::to_value).collect();
        Value::Array(vec![self.key.clone(), self.document_count.into(), Value::Array(figures)])
    }

    fn from_value(value: &Value) -> Option<Self> {
        let [key, count, figures] = value.as_array()? else { return None };
        let figures = figures.as_array()?.iter().map(PathFigures::from_value).collect::<Option<_>>()?;
        Some(CombinedGroup { key: key.clone(), document_count: count.as_u64()?, figures })
    }
}

impl PathFigures {
    /// An array of the count, the sum, the minimum and maximum of the numbers; the least and the greatest value, each
    /// in an array that is empty if there is none; and the distinct values.
    fn to_value(&self) -> Value {
        let (count, sum, min, max) = self.numbers.parts();
        let mut encoded = Vec::new();
        sum.encode(&mut encoded);
        let number = |number: Option<Number>| number.map_or(Value::Null, Value::Number);
        let optional =
            |value: &Option<(Vec<u8>, Value)>| Value::Array(value.iter().map(|(_, value)| value.clone()).collect());
        Value::Array(vec![
            count.into(),
            to_base64url(&encoded).into(),
            number(min),
            number(max),
            optional(&self.least),
            optional(&self.greatest),
            Value::Array(self.distinct.values().cloned().collect()),
        ])
    }

    fn from_value(value: &Value) -> Option<Self> {
        let [count, encoded, min, max, least, greatest, distinct] = value.as_array()? else { return None };
        let (encoded, mut sum) = (from_base64url(encoded.as_str()?)?, ExactSum::default());
        sum.add_encoded(&mut encoded.as_slice())?;
        let keyed = |value: &Value| Some((canonical(value).ok()?.0, value.clone()));
        let optional = |value: &Value| match value.as_array()? {
            [] => Some(None),
            [one] => keyed(one).map(Some),
            _ => None,
        };
        Some(PathFigures {
            numbers: SummaryBuilder::of_parts(count.as_u64()?, sum, min.as_number(), max.as_number()),
            least: optional(least)?,
            greatest: optional(greatest)?,
            distinct: distinct.as_array()?.iter().map(keyed).collect::<Option<_>>()?,
        })
    }
}
