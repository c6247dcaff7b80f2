//! Groups by several paths, and distinct values within groups: computed by reading the matching documents.
//!
//! Paths with `[]` are unnested: a document is in the group of each combination of its values, once in each. Paths that
//! enter the same array are paired by element. A value counts in the groups of the innermost array that its path shares
//! with a path of the groups, or in all groups of the document if it shares none.

use std::collections::{BTreeMap, BTreeSet};

use super::elements::{ValuePath, push_scalar};
use super::scan::canonical;
use super::{SUMMARY_BYTES, SummaryBuilder, VALUE_BYTES};
use crate::query::execute::rows;
use crate::query::language::document::{DocumentView, value_at};
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::value::{PathStep, Value, visit_steps};
use crate::{Error, Result};

/// The most combinations of values of one document.
const COMBINATIONS_MAX: usize = 100_000;

/// A path whose values are aggregated in each group.
pub(in crate::query) struct FigurePath<'a> {
    pub(in crate::query) path: &'a str,
    /// Whether the distinct values are needed.
    pub(in crate::query) has_distinct: bool,
}

/// A group: its value, or an array of its values if there are several paths.
#[derive(Clone)]
pub(in crate::query) struct CombinedGroup {
    pub(in crate::query) key: Value,
    pub(in crate::query) document_count: u64,
    /// One for each figure path.
    pub(in crate::query) figures: Vec<PathFigures>,
}

/// The values of one group at a figure path.
#[derive(Clone, Default)]
pub(in crate::query) struct PathFigures {
    pub(in crate::query) numbers: SummaryBuilder,
    pub(in crate::query) distinct: BTreeMap<Vec<u8>, Value>,
    /// The least and the greatest value of any kind, with their keys; only of aggregations without groups.
    pub(in crate::query) least: Option<(Vec<u8>, Value)>,
    pub(in crate::query) greatest: Option<(Vec<u8>, Value)>,
}

/// Groups the matching documents by the combinations of their values at `group_paths`, in collation order. Documents
/// without a value at one of the paths are in no group.
pub(in crate::query) fn combined_groups<S: QuerySource>(
    source: S,
    query: &Query,
    group_paths: &[impl AsRef<str>],
    figure_paths: &[FigurePath<'_>],
) -> Result<Vec<CombinedGroup>> {
    let parse = |path: &str| ValuePath::parse(path);
    let group_paths = group_paths.iter().map(|path| parse(path.as_ref())).collect::<Result<Vec<_>>>()?;
    let values = figure_paths.iter().map(|figure| parse(figure.path)).collect::<Result<Vec<_>>>()?;
    let unnested = Unnest::of(&group_paths, &values);
    let mut groups = Groups { source: &source, figure_paths, groups: BTreeMap::new(), distinct_count: 0, bytes: 0 };
    for document in rows::documents(&source, &query.every_document())? {
        let document = document?;
        let document = DocumentView::of(&document)?;
        let body = if unnested.arrays.is_empty() { Value::Null } else { document.body.to_value()? };
        // The group and, for each figure path, the value below which its values are; each once.
        let mut seen = BTreeSet::new();
        for combination in unnested.root_combinations(&group_paths, document, &body)? {
            let (key, value) = canonical(&combination.key(group_paths.len()))?;
            if seen.insert((key.clone(), None)) {
                groups.group(&key, value)?.document_count += 1;
            }
            for (figure, context) in combination.contexts {
                if !seen.insert((key.clone(), Some((figure, context.map(|(element, _)| std::ptr::from_ref(element))))))
                {
                    continue;
                }
                let found = match context {
                    None => values[figure].values(document)?,
                    Some((element, steps)) => values_below(element, steps),
                };
                groups.add(&key, figure, &found)?;
            }
        }
        query.limits().allow_rows(groups.distinct_count.max(groups.groups.len() as u64))?;
    }
    Ok(groups.groups.into_values().collect())
}

/// Groups under construction, by the keys of their values.
struct Groups<'a, S> {
    source: &'a S,
    figure_paths: &'a [FigurePath<'a>],
    groups: BTreeMap<Vec<u8>, CombinedGroup>,
    /// The number of distinct values in all groups.
    distinct_count: u64,
    bytes: usize,
}

impl<S: QuerySource> Groups<'_, S> {
    fn group(&mut self, key: &[u8], value: Value) -> Result<&mut CombinedGroup> {
        if !self.groups.contains_key(key) {
            self.reserve(2 * key.len() + VALUE_BYTES + self.figure_paths.len() * SUMMARY_BYTES)?;
        }
        let figures = || vec![PathFigures::default(); self.figure_paths.len()];
        let group = || CombinedGroup { key: value, document_count: 0, figures: figures() };
        Ok(self.groups.entry(key.to_vec()).or_insert_with(group))
    }

    /// Adds values at a figure path to a group.
    fn add(&mut self, key: &[u8], figure: usize, values: &[Value]) -> Result<()> {
        for value in values {
            let (value_key, value) = canonical(value)?;
            let Some(group) = self.groups.get_mut(key) else { return Err(Error::internal("a group is missing")) };
            let figures = &mut group.figures[figure];
            if let Value::Number(number) = value {
                figures.numbers.add(number, 1);
            }
            if self.figure_paths[figure].has_distinct {
                let bytes = 2 * value_key.len() + VALUE_BYTES;
                if figures.distinct.insert(value_key, value).is_none() {
                    self.distinct_count += 1;
                    self.reserve(bytes)?;
                }
            }
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.bytes += bytes;
        self.source.check_memory(self.bytes)
    }
}

/// The paths below one value: those that lead to single values, and the arrays that paths of the groups enter.
#[derive(Default)]
struct Unnest<'p> {
    /// The paths of the groups that enter no further array, by their position in the list.
    singles: Vec<(usize, &'p [PathStep])>,
    /// The figure paths that share no further array with the groups.
    figures: Vec<(usize, &'p [PathStep])>,
    arrays: Vec<(&'p [PathStep], Unnest<'p>)>,
}

/// A value, and the steps from it to the values of a path.
type Below<'v, 'p> = (&'v Value, &'p [PathStep]);

/// One combination of values of a document.
#[derive(Clone, Default)]
struct Combination<'v, 'p> {
    /// The values of the groups, by the positions of their paths.
    values: Vec<(usize, Value)>,
    /// For each figure path, the value below which its values are, with the remaining steps; `None` for the document.
    contexts: Vec<(usize, Option<Below<'v, 'p>>)>,
}

impl<'p> Unnest<'p> {
    fn of(group_paths: &'p [ValuePath], figure_paths: &'p [ValuePath]) -> Self {
        let mut root = Unnest::default();
        for (at, path) in group_paths.iter().enumerate() {
            if let ValuePath::Elements(path) = path {
                root.add_group(at, path.steps());
            }
        }
        for (at, path) in figure_paths.iter().enumerate() {
            match path {
                ValuePath::Elements(path) => root.add_figure(at, path.steps()),
                ValuePath::Single(_) => root.figures.push((at, &[])),
            }
        }
        root
    }

    fn add_group(&mut self, at: usize, steps: &'p [PathStep]) {
        let Some(elements) = steps.iter().position(|step| *step == PathStep::Elements) else {
            return self.singles.push((at, steps));
        };
        let (array, rest) = (&steps[..elements], &steps[elements + 1..]);
        let known = self.arrays.iter().position(|(known, _)| *known == array).unwrap_or_else(|| {
            self.arrays.push((array, Unnest::default()));
            self.arrays.len() - 1
        });
        self.arrays[known].1.add_group(at, rest);
    }

    fn add_figure(&mut self, at: usize, steps: &'p [PathStep]) {
        let elements = steps.iter().position(|step| *step == PathStep::Elements);
        let shared = elements.and_then(|elements| {
            let known = self.arrays.iter_mut().find(|(known, _)| *known == &steps[..elements])?;
            Some((&mut known.1, &steps[elements + 1..]))
        });
        match shared {
            Some((below, rest)) => below.add_figure(at, rest),
            None => self.figures.push((at, steps)),
        }
    }

    /// The combinations of a document, whose paths without arrays may name `_id` and `_rev`.
    fn root_combinations<'v>(
        &self,
        group_paths: &[ValuePath],
        document: DocumentView<'_>,
        body: &'v Value,
    ) -> Result<Vec<Combination<'v, 'p>>> {
        let mut first = Combination::default();
        for (at, path) in group_paths.iter().enumerate() {
            if let ValuePath::Single(path) = path {
                let Some(value) = value_at(path, document)? else { return Ok(Vec::new()) };
                first.values.push((at, value));
            }
        }
        first.contexts.extend(self.figures.iter().map(|(at, _)| (*at, None)));
        self.with_elements(first, body)
    }

    fn combinations<'v>(&self, value: &'v Value) -> Result<Vec<Combination<'v, 'p>>> {
        let mut first = Combination::default();
        for (at, steps) in &self.singles {
            let found = values_below(value, steps);
            let Some(found) = found.into_iter().next() else { return Ok(Vec::new()) };
            first.values.push((*at, found));
        }
        first.contexts.extend(self.figures.iter().map(|(at, steps)| (*at, Some((value, *steps)))));
        self.with_elements(first, value)
    }

    /// Combines the values outside the arrays of `value` with those of each element.
    fn with_elements<'v>(&self, first: Combination<'v, 'p>, value: &'v Value) -> Result<Vec<Combination<'v, 'p>>> {
        let mut combinations = vec![first];
        for (array, below) in &self.arrays {
            let mut elements = Vec::new();
            visit_steps(value, array, &mut |array| elements.extend(array.as_array().into_iter().flatten()));
            let mut of_elements = Vec::new();
            for element in elements {
                of_elements.extend(below.combinations(element)?);
            }
            if combinations.len().saturating_mul(of_elements.len()) > COMBINATIONS_MAX {
                return Err(Error::stopped(format!(
                    "a document has more than {COMBINATIONS_MAX} combinations of the values to group by"
                ))
                .with_hint("group by fewer paths that enter arrays"));
            }
            let joined = combinations.iter().flat_map(|left| of_elements.iter().map(|right| left.joined(right)));
            combinations = joined.collect();
        }
        Ok(combinations)
    }
}

impl Combination<'_, '_> {
    fn joined(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        joined.values.extend(other.values.iter().cloned());
        joined.contexts.extend(&other.contexts);
        joined
    }

    /// The value of the group.
    fn key(&self, path_count: usize) -> Value {
        let mut values = self.values.clone();
        values.sort_by_key(|(at, _)| *at);
        let mut values = values.into_iter().map(|(_, value)| value);
        match path_count {
            1 => values.next().unwrap_or_default(),
            _ => Value::Array(values.collect()),
        }
    }
}

/// The scalars that the steps lead to.
fn values_below(value: &Value, steps: &[PathStep]) -> Vec<Value> {
    let mut values = Vec::new();
    visit_steps(value, steps, &mut |value| push_scalar(value, &mut values));
    values
}
