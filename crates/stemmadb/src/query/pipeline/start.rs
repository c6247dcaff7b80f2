//! The beginning of a pipeline: the leading stages that one query answers, or the index alone.
//!
//! Leading `$match`, `$sort`, `$skip` and `$limit` become one query, planned as any other. A `$count` or `$group` after
//! leading `$match` stages is answered from the index if it needs only counts and sums of documents by one path.

use super::expression::{Expression, RowPath};
use super::stage::{Accumulator, Group, NamedStage, Stage};
use crate::Result;
use crate::query::execute::aggregate::{self, MissingGroup, Summary};
use crate::query::execute::rows;
use crate::query::language::selector::Selector;
use crate::query::language::sort::Sort;
use crate::query::plan::request::Query;
use crate::query::source::QuerySource;
use crate::value::{Object, Path, Value};

/// The query that a pipeline begins with, and the stages that remain.
pub(super) struct Start<'p> {
    pub(super) query: Query,
    /// The number of stages that the query answers.
    pub(super) planned_count: usize,
    /// The next stage, if the index may answer it too.
    pub(super) indexed: Option<IndexedStage<'p>>,
}

/// A stage that the index may answer without documents.
pub(super) enum IndexedStage<'p> {
    Count(&'p str),
    Group(IndexedGroup<'p>),
}

/// A group by at most one path, with figures that the index has.
pub(super) struct IndexedGroup<'p> {
    /// `None` for one group of all rows.
    path: Option<String>,
    figures: Vec<(&'p str, Figure)>,
}

enum Figure {
    Count,
    /// The sum of the numbers at a path, or their average.
    Sum(String),
    Average(String),
}

impl<'p> Start<'p> {
    /// Finds the leading stages of a pipeline that one query answers, about documents that match `selector`.
    pub(super) fn of(stages: &'p [NamedStage], selector: &Selector) -> Self {
        let (mut selector, mut sort) = (selector.clone(), None);
        let (mut skip, mut limit): (u64, Option<u64>) = (0, None);
        let mut planned_count = 0;
        for named in stages {
            match &named.stage {
                Stage::Match(further) if skip == 0 && limit.is_none() => selector = selector.and(further.clone()),
                Stage::Sort(by) if skip == 0 && limit.is_none() && sort.is_none() => sort = Some(by.clone()),
                Stage::Skip(count) if limit.is_none() => skip = skip.saturating_add(*count),
                Stage::Limit(count) => limit = Some(limit.map_or(*count, |limit| limit.min(*count))),
                _ => break,
            }
            planned_count += 1;
        }
        let is_plain = sort.is_none() && skip == 0 && limit.is_none();
        let next = stages.get(planned_count).filter(|_| is_plain).map(|named| &named.stage);
        let mut query = Query::new(selector).order(sort.unwrap_or_else(Sort::by_insertion)).skip(skip);
        if let Some(limit) = limit {
            query = query.limit(limit);
        }
        let indexed = match next {
            Some(Stage::Count(name)) => Some(IndexedStage::Count(name)),
            Some(Stage::Group(group)) => IndexedGroup::of(group).map(IndexedStage::Group),
            _ => None,
        };
        Start { query, planned_count, indexed }
    }
}

impl IndexedStage<'_> {
    /// Computes the rows of the stage from the index. Reads only documents that the index cannot decide.
    pub(super) fn rows<S: QuerySource + Clone>(&self, query: &Query, source: &S) -> Result<Vec<Value>> {
        match self {
            IndexedStage::Count(name) => Ok(match rows::count(source.clone(), query)? {
                0 => Vec::new(),
                count => vec![Value::Object([(*name, count)].into_iter().collect())],
            }),
            IndexedStage::Group(group) => match &group.path {
                None => group.total(query, source),
                Some(path) => group.by_path(path, query, source),
            },
        }
    }
}

impl<'p> IndexedGroup<'p> {
    fn of(group: &'p Group) -> Option<Self> {
        let path = match &group.key {
            Expression::Literal(Value::Null) => None,
            key => Some(indexed_path(key)?),
        };
        let figure = |(name, accumulator, expression): &'p (String, Accumulator, Expression)| {
            let is_one = *expression == Expression::Literal(Value::from(1));
            Some((
                name.as_str(),
                match accumulator {
                    Accumulator::Count => Figure::Count,
                    Accumulator::Sum if is_one => Figure::Count,
                    Accumulator::Sum => Figure::Sum(indexed_path(expression)?),
                    Accumulator::Average => Figure::Average(indexed_path(expression)?),
                    _ => return None,
                },
            ))
        };
        Some(IndexedGroup { path, figures: group.fields.iter().map(figure).collect::<Option<_>>()? })
    }

    fn total<S: QuerySource + Clone>(&self, query: &Query, source: &S) -> Result<Vec<Value>> {
        let count = rows::count(source.clone(), query)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let figure = |figure: &Figure| -> Result<Value> {
            Ok(match figure {
                Figure::Count => count.into(),
                Figure::Sum(path) => aggregate::sum(source.clone(), query, path)?.into(),
                Figure::Average(path) => aggregate::summary(source.clone(), query, path)?.average().into(),
            })
        };
        let figures = self.figures.iter().map(|(name, requested)| Ok((*name, figure(requested)?)));
        Ok(vec![row(Value::Null, figures.collect::<Result<Vec<_>>>()?)])
    }

    fn by_path<S: QuerySource + Clone>(&self, path: &str, query: &Query, source: &S) -> Result<Vec<Value>> {
        let mut counts = aggregate::distinct(source.clone(), query, path)?;
        let grouped: u64 = counts.iter().map(|(_, count)| count).sum();
        let without_value = rows::count(source.clone(), query)? - grouped;
        if without_value > 0 {
            // Rows without a value are in the group of null, as the summaries count them.
            match counts.first_mut() {
                Some((Value::Null, count)) => *count += without_value,
                _ => counts.insert(0, (Value::Null, without_value)),
            }
        }
        let mut figures: Vec<Vec<(&str, Value)>> = vec![Vec::new(); counts.len()];
        for (name, figure) in &self.figures {
            let values: Vec<Value> = match figure {
                Figure::Count => counts.iter().map(|(_, count)| (*count).into()).collect(),
                Figure::Sum(of) => summaries(path, of, query, source)?.iter().map(|of| of.sum.into()).collect(),
                Figure::Average(of) => {
                    summaries(path, of, query, source)?.iter().map(|of| of.average().into()).collect()
                }
            };
            figures.iter_mut().zip(values).for_each(|(figures, value)| figures.push((name, value)));
        }
        Ok(counts.into_iter().zip(figures).map(|((key, _), figures)| row(key, figures)).collect())
    }
}

fn summaries<S: QuerySource + Clone>(group: &str, path: &str, query: &Query, source: &S) -> Result<Vec<Summary>> {
    let summaries = aggregate::summaries(source.clone(), query, group, path, MissingGroup::Null)?;
    Ok(summaries.into_iter().map(|(_, summary)| summary).collect())
}

fn row(key: Value, figures: Vec<(&str, Value)>) -> Value {
    let mut row = Object::new();
    row.insert("_id", key);
    for (name, value) in figures {
        row.insert(name, value);
    }
    Value::Object(row)
}

/// The path of an expression that is nothing but one, if the index has its values.
fn indexed_path(expression: &Expression) -> Option<String> {
    match expression {
        Expression::Path(RowPath::Single(path)) if !is_identity(path) => Some(path.to_string()),
        _ => None,
    }
}

/// Whether a path is `_id` or `_rev`, which are not in the index of values.
fn is_identity(path: &Path) -> bool {
    matches!(path.segments().next(), Some("_id" | "_rev"))
}
