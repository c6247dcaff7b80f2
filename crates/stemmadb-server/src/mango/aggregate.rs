//! The body of `_aggregate`: aggregates over the documents that match a selector, as a whole or by group.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use stemmadb::{Error, ErrorKind, Find, Object, Query, Selector, Snapshot, Summary, Value};

use super::exclude_design_documents;
use crate::error::{Failure, Result};

/// The most groups, and the most distinct values of a path.
const GROUPS_MAX: u64 = 100_000;

/// The most figures of one request; each may need its own query.
const FIGURES_MAX: usize = 100;

/// A parsed `_aggregate` request.
#[derive(Debug)]
pub(crate) struct AggregateRequest {
    selector: Selector,
    /// The path whose values define the groups; `None` for a single row.
    group_by: Option<String>,
    /// The figures of each row, with their output names.
    figures: Vec<(String, Figure)>,
    order_by: Option<String>,
    descending: bool,
    skip: usize,
    limit: usize,
}

/// An aggregate to compute.
#[derive(Debug, Clone, PartialEq)]
enum Figure {
    Count,
    Aggregate(AggregateFunction, String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum AggregateFunction {
    Sum,
    Average,
    Min,
    Max,
    Distinct,
    CountDistinct,
}

/// An output row: the value of the group, and its figures by name.
pub(crate) type AggregateRow = (Value, Object);

impl AggregateRequest {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// 400 with the reason.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let object = body.as_object().ok_or_else(|| Failure::bad_request("Request body must be a JSON object"))?;
        let mut aggregate = AggregateRequest {
            selector: Selector::everything(),
            group_by: None,
            figures: Vec::new(),
            order_by: None,
            descending: false,
            skip: 0,
            limit: usize::MAX,
        };
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        for (name, value) in object.iter() {
            let invalid = || Failure::bad_request(format!("Invalid value for {name}"));
            match name {
                "selector" => aggregate.selector = Selector::parse(value)?,
                "group_by" => aggregate.group_by = Some(value.as_str().ok_or_else(invalid)?.to_owned()),
                "figures" => aggregate.figures = parse_figures(value)?,
                "order_by" => aggregate.order_by = Some(value.as_str().ok_or_else(invalid)?.to_owned()),
                "descending" => aggregate.descending = value.as_bool().ok_or_else(invalid)?,
                "skip" => aggregate.skip = count(value).ok_or_else(invalid)?,
                "limit" => aggregate.limit = count(value).ok_or_else(invalid)?,
                _ => return Err(Failure::bad_request(format!("An aggregation has no parameter `{name}`"))),
            }
        }
        aggregate.validated()
    }

    fn validated(self) -> Result<Self> {
        if self.figures.is_empty() {
            return Err(Failure::bad_request("`figures` is missing; for example {\"total\": {\"sum\": \"price\"}}"));
        }
        if self.figures.len() > FIGURES_MAX {
            return Err(Failure::bad_request(format!("More than {FIGURES_MAX} figures")));
        }
        let is_distinct = |figure: &Figure| {
            matches!(figure, Figure::Aggregate(AggregateFunction::Distinct | AggregateFunction::CountDistinct, _))
        };
        if self.group_by.is_some() && self.figures.iter().any(|(_, figure)| is_distinct(figure)) {
            return Err(Failure::bad_request("Distinct values can't be combined with `group_by`"));
        }
        let is_named = |name: &String| self.figures.iter().any(|(figure, _)| figure == name);
        match &self.order_by {
            Some(name) if !is_named(name) => Err(Failure::bad_request("`order_by` must name one of the figures")),
            _ => Ok(self),
        }
    }

    /// Computes the rows in a snapshot. `has_design_documents` is whether the snapshot contains design documents, which
    /// are never counted. Blocks.
    ///
    /// # Errors
    /// 400 if a path is invalid or a sum overflows; 413 if there are too many groups.
    pub(crate) fn rows(mut self, snapshot: &Snapshot, has_design_documents: bool) -> Result<Vec<AggregateRow>> {
        if has_design_documents {
            self.selector = exclude_design_documents(self.selector);
        }
        let rows = match &self.group_by {
            None => vec![(Value::Null, self.total(snapshot)?)],
            Some(path) => self.groups(snapshot, path)?,
        };
        Ok(self.ordered(rows).into_iter().skip(self.skip).take(self.limit).collect())
    }

    fn find(&self, snapshot: &Snapshot) -> Find {
        snapshot.find(Query::new(self.selector.clone())).rows_max(GROUPS_MAX)
    }

    fn total(&self, snapshot: &Snapshot) -> Result<Object> {
        let find = || self.find(snapshot);
        let figure = |figure: &Figure| -> stemmadb::Result<Value> {
            Ok(match figure {
                Figure::Count => find().count()?.into(),
                Figure::Aggregate(AggregateFunction::Sum, path) => find().sum(path)?.into(),
                Figure::Aggregate(AggregateFunction::Average, path) => find().average(path)?.into(),
                Figure::Aggregate(AggregateFunction::Min, path) => find().min(path)?.into(),
                Figure::Aggregate(AggregateFunction::Max, path) => find().max(path)?.into(),
                Figure::Aggregate(AggregateFunction::Distinct, path) => find().distinct(path)?.into(),
                Figure::Aggregate(AggregateFunction::CountDistinct, path) => find().distinct(path)?.len().into(),
            })
        };
        let figures =
            self.figures.iter().map(|(name, requested)| Ok((name.clone(), figure(requested).map_err(limit_failure)?)));
        figures.collect()
    }

    fn groups(&self, snapshot: &Snapshot, group: &str) -> Result<Vec<AggregateRow>> {
        let groups = || self.find(snapshot).group_by(group);
        let counts = groups().counts().map_err(limit_failure)?;
        // One pass per path computes all functions of that path.
        let mut summaries: BTreeMap<&str, Vec<Summary>> = BTreeMap::new();
        for (_, figure) in &self.figures {
            if let Figure::Aggregate(_, path) = figure
                && !summaries.contains_key(path.as_str())
            {
                let by_group = groups().summaries(path).map_err(limit_failure)?;
                summaries.insert(path, by_group.into_iter().map(|(_, summary)| summary).collect());
            }
        }
        let row = |at: usize, count: u64| {
            let figure = |figure: &Figure| match figure {
                Figure::Count => Some(count.into()),
                Figure::Aggregate(function, path) => {
                    Some(summary_value(*function, summaries.get(path.as_str())?.get(at)?))
                }
            };
            let named = self.figures.iter().map(|(name, requested)| Some((name.clone(), figure(requested)?)));
            // All passes read the same snapshot, so they have the same groups.
            named.collect::<Option<_>>().ok_or_else(|| Failure::internal("groups differ between two passes"))
        };
        counts.into_iter().enumerate().map(|(at, (value, count))| Ok((value, row(at, count)?))).collect()
    }

    /// Sorts the rows by a figure, if requested; they are sorted by group value otherwise.
    fn ordered(&self, mut rows: Vec<AggregateRow>) -> Vec<AggregateRow> {
        if let Some(name) = &self.order_by {
            let number = |row: &AggregateRow| row.1.get(name).and_then(Value::as_f64);
            // Groups without a number come first; the sort is stable, so ties keep the order of the groups.
            rows.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
        }
        if self.descending {
            rows.reverse();
        }
        rows
    }
}

fn parse_figures(value: &Value) -> Result<Vec<(String, Figure)>> {
    let invalid = |name: &str| {
        Failure::bad_request(format!(
            "The figure {name:?} must be \"count\" or one of sum, average, min, max, distinct and count_distinct \
             with a path: {{\"sum\": \"price\"}}"
        ))
    };
    let object = value.as_object().ok_or_else(|| Failure::bad_request("`figures` must be an object"))?;
    let figure = |(name, figure): (&str, &Value)| {
        if figure.as_str() == Some("count") {
            return Ok((name.to_owned(), Figure::Count));
        }
        let one = figure.as_object().filter(|one| one.len() == 1).and_then(|one| one.iter().next());
        let (function, path) = one.ok_or_else(|| invalid(name))?;
        let function = match function {
            "sum" => AggregateFunction::Sum,
            "average" => AggregateFunction::Average,
            "min" => AggregateFunction::Min,
            "max" => AggregateFunction::Max,
            "distinct" => AggregateFunction::Distinct,
            "count_distinct" => AggregateFunction::CountDistinct,
            _ => return Err(invalid(name)),
        };
        Ok((name.to_owned(), Figure::Aggregate(function, path.as_str().ok_or_else(|| invalid(name))?.to_owned())))
    };
    object.iter().map(figure).collect()
}

fn summary_value(function: AggregateFunction, summary: &Summary) -> Value {
    match function {
        AggregateFunction::Sum => summary.sum.into(),
        AggregateFunction::Average => summary.average().into(),
        AggregateFunction::Min => summary.min.into(),
        AggregateFunction::Max => summary.max.into(),
        AggregateFunction::Distinct | AggregateFunction::CountDistinct => Value::Null,
    }
}

fn limit_failure(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Stopped => {
            Failure::too_large(format!("More than {GROUPS_MAX} groups or values: narrow the selector"))
        }
        _ => error.into(),
    }
}
