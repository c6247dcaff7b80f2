//! Running a pipeline: a chain of iterators, one for each stage that the query does not answer.

use std::fmt;

use super::Pipeline;
use super::group::Groups;
use super::lookup;
use super::reshape;
use super::sort::SortedRows;
use super::stage::{NamedStage, Stage};
use super::start::Start;
use crate::Result;
use crate::query::execute::rows;
use crate::query::source::QuerySource;
use crate::query::source::limits::QueryLimits;
use crate::value::{Object, Value};

/// Rows between two stages. After an error, the chain is not asked for more.
pub(super) type Rows<'s> = Box<dyn Iterator<Item = Result<Value>> + Send + 's>;

/// The rows of a [`Pipeline`], in order. An iterator; after an error it returns no further rows.
pub struct PipelineRows(Rows<'static>);

impl PipelineRows {
    pub(super) fn new(rows: Rows<'static>) -> Self {
        PipelineRows(rows)
    }
}

impl Iterator for PipelineRows {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl fmt::Debug for PipelineRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineRows").finish_non_exhaustive()
    }
}

/// Runs a pipeline over a source; reads nothing that the first row does not need, except from the index.
pub(super) fn open<'s, S: QuerySource + Clone + Send + 's>(source: S, pipeline: Pipeline) -> Result<Rows<'s>> {
    let Pipeline { selector, mut stages, limits } = pipeline;
    let start = Start::of(&stages, &selector);
    let (query, mut done_count) = (start.query, start.planned_count);
    let from_index = match start.indexed {
        Some(indexed) => {
            let label = |error: crate::Error| error.within(&stages[done_count].label);
            Some(indexed.rows(&query, &source).map_err(label)?)
        }
        None => None,
    };
    let first: Rows<'s> = match from_index {
        Some(found) => {
            done_count += 1;
            Box::new(found.into_iter().map(Ok))
        }
        None => Box::new(rows::values(source.clone(), &query)?),
    };
    let rows = stages.drain(..).skip(done_count).collect::<Vec<_>>();
    let rows = chain(first, rows, &source);
    Ok(Box::new(Checked { rows, source, limits, row_count: 0, is_finished: false }))
}

fn chain<'s, S: QuerySource + Clone + Send + 's>(first: Rows<'s>, stages: Vec<NamedStage>, source: &S) -> Rows<'s> {
    let mut rows = first;
    let mut stages = stages.into_iter().peekable();
    while let Some(NamedStage { label, stage, .. }) = stages.next() {
        let source = source.clone();
        rows = match stage {
            Stage::Limit(count) => Box::new(rows.take(usize::try_from(count).unwrap_or(usize::MAX))),
            Stage::Skip(count) => skipped(rows, count),
            Stage::Sort(sort) => {
                // A limit right after it bounds what is kept.
                let rows_needed = match stages.peek().map(|next| &next.stage) {
                    Some(Stage::Limit(count)) => usize::try_from(*count).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                collected(rows, label, move |rows, label| {
                    let mut sorted = SortedRows::new(&sort, rows_needed);
                    for row in rows {
                        sorted.add(row?, &source).map_err(|error| error.within(label))?;
                    }
                    Ok(sorted.finish())
                })
            }
            Stage::Group(group) => collected(rows, label, move |rows, label| {
                let mut groups = Groups::new(&group);
                for row in rows {
                    groups.add(&row?, &source).map_err(|error| error.within(label))?;
                }
                groups.finish().map_err(|error| error.within(label))
            }),
            Stage::Count(name) => collected(rows, label, move |rows, _| {
                let mut count = 0_u64;
                for row in rows {
                    row?;
                    count += 1;
                }
                let row: Object = [(name, count)].into_iter().collect();
                Ok(if count == 0 { Vec::new() } else { vec![Value::Object(row)] })
            }),
            Stage::Lookup(lookup) => Box::new(Batches { rows, is_finished: false }.flat_map(move |batch| {
                let joined =
                    batch.and_then(|batch| lookup::join(batch, &lookup, &source).map_err(|error| error.within(&label)));
                each(joined)
            })),
            stage => Box::new(rows.flat_map(move |row| {
                let changed = row.and_then(|row| {
                    source.check_stopped()?;
                    change(row, &stage).map_err(|error| error.within(&label))
                });
                each(changed)
            })),
        };
    }
    rows
}

/// The rows that a stage makes of one row.
fn change(row: Value, stage: &Stage) -> Result<Vec<Value>> {
    Ok(match stage {
        Stage::Match(selector) if !selector.matches(&row)? => Vec::new(),
        Stage::Unwind(unwind) => reshape::unwind(row, unwind)?,
        Stage::Include { fields, computed } => vec![reshape::include(&row, fields.as_ref(), computed)?],
        Stage::Exclude(paths) => vec![reshape::exclude(row, paths)?],
        Stage::Compute(computed) => vec![reshape::compute(row, computed)?],
        Stage::Replace(root) => vec![reshape::replace(&row, root)?],
        _ => vec![row],
    })
}

fn each(rows: Result<Vec<Value>>) -> impl Iterator<Item = Result<Value>> + Send {
    let (rows, error) = match rows {
        Ok(rows) => (rows, None),
        Err(error) => (Vec::new(), Some(Err(error))),
    };
    rows.into_iter().map(Ok).chain(error)
}

/// Drops the first rows, but no error.
fn skipped(rows: Rows<'_>, count: u64) -> Rows<'_> {
    let mut left = count;
    Box::new(rows.filter(move |row| {
        let is_dropped = row.is_ok() && left > 0;
        left -= u64::from(is_dropped);
        !is_dropped
    }))
}

/// Runs a stage that needs all rows before its first one, once that is asked for.
fn collected<'s>(
    rows: Rows<'s>,
    label: String,
    collect: impl FnOnce(Rows<'s>, &str) -> Result<Vec<Value>> + Send + 's,
) -> Rows<'s> {
    Box::new(std::iter::once_with(move || collect(rows, &label)).flat_map(each))
}

/// Batches of rows; an error ends them.
struct Batches<'s> {
    rows: Rows<'s>,
    is_finished: bool,
}

impl Iterator for Batches<'_> {
    type Item = Result<Vec<Value>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        let mut batch = Vec::new();
        while batch.len() < lookup::BATCH_COUNT {
            match self.rows.next() {
                Some(Ok(row)) => batch.push(row),
                Some(Err(error)) => {
                    self.is_finished = true;
                    return Some(Err(error));
                }
                None => {
                    self.is_finished = true;
                    break;
                }
            }
        }
        (!batch.is_empty()).then_some(Ok(batch))
    }
}

/// The rows of the last stage, within the limits of the query.
struct Checked<'s, S> {
    rows: Rows<'s>,
    source: S,
    limits: QueryLimits,
    row_count: u64,
    is_finished: bool,
}

impl<S: QuerySource> Checked<'_, S> {
    fn next_row(&mut self) -> Option<Result<Value>> {
        let row = self.rows.next()?;
        self.row_count += 1;
        let is_allowed = self.source.check_stopped().and_then(|()| self.limits.allow_rows(self.row_count));
        Some(is_allowed.and(row))
    }
}

impl<S: QuerySource> Iterator for Checked<'_, S> {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        let row = self.next_row();
        self.is_finished = !matches!(row, Some(Ok(_)));
        row
    }
}
