//! The body of `_aggregate`: what matches a selector comes to, as a whole or in groups.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use stemmadb::{Error, ErrorKind, Find, Object, Query, Selector, Snapshot, Summary, Value};

use super::plain;
use crate::error::{Failure, Result};

/// The most groups that are made, and distinct values that are told.
const GROUPS_MAX: u64 = 100_000;

/// The most figures of one request: each is a question of its own.
const FIGURES_MAX: usize = 100;

/// What was asked.
#[derive(Debug)]
pub(crate) struct Aggregate {
    selector: Selector,
    /// The path whose values are the groups; none for one row about all that matches.
    group_by: Option<String>,
    /// The figures of a row, by the names they are told under.
    figures: Vec<(String, Figure)>,
    order_by: Option<String>,
    descending: bool,
    skip: usize,
    limit: usize,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
enum Figure {
    Count,
    Of(Function, String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Function {
    Sum,
    Average,
    Min,
    Max,
    Distinct,
    CountDistinct,
}

/// A row: the group's value, and its figures.
pub(crate) type Row = (Value, Object);

impl Aggregate {
    /// The request that `body` is.
    ///
    /// # Errors
    /// 400, saying what is wrong.
    pub(crate) fn parse(body: &Value) -> Result<Self> {
        let object = body.as_object().ok_or_else(|| Failure::bad_request("Request body must be a JSON object"))?;
        let mut asked = Aggregate {
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
            let wrong = || Failure::bad_request(format!("Invalid value for {name}"));
            match name {
                "selector" => asked.selector = Selector::parse(value)?,
                "group_by" => asked.group_by = Some(value.as_str().ok_or_else(wrong)?.to_owned()),
                "figures" => asked.figures = figures(value)?,
                "order_by" => asked.order_by = Some(value.as_str().ok_or_else(wrong)?.to_owned()),
                "descending" => asked.descending = value.as_bool().ok_or_else(wrong)?,
                "skip" => asked.skip = count(value).ok_or_else(wrong)?,
                "limit" => asked.limit = count(value).ok_or_else(wrong)?,
                _ => return Err(Failure::bad_request(format!("An aggregate does not know `{name}`"))),
            }
        }
        asked.check()
    }

    fn check(self) -> Result<Self> {
        if self.figures.is_empty() {
            return Err(Failure::bad_request("`figures` says what is wanted: {\"total\": {\"sum\": \"price\"}}"));
        }
        if self.figures.len() > FIGURES_MAX {
            return Err(Failure::bad_request(format!("More than {FIGURES_MAX} figures")));
        }
        let is_list = |figure: &Figure| matches!(figure, Figure::Of(Function::Distinct | Function::CountDistinct, _));
        if self.group_by.is_some() && self.figures.iter().any(|(_, figure)| is_list(figure)) {
            return Err(Failure::bad_request("Distinct values are told of all that matches, not of groups"));
        }
        let is_named = |name: &String| self.figures.iter().any(|(figure, _)| figure == name);
        match &self.order_by {
            Some(name) if !is_named(name) => Err(Failure::bad_request("`order_by` names one of the figures")),
            _ => Ok(self),
        }
    }

    /// The rows, in one state, which may have design documents: those play no part. Blocks.
    ///
    /// # Errors
    /// 400 if a path can't be one, or a sum is beyond the numbers; 413 for too many groups.
    pub(crate) fn rows(mut self, snapshot: &Snapshot, has_design_documents: bool) -> Result<Vec<Row>> {
        if has_design_documents {
            self.selector = plain(self.selector);
        }
        let rows = match &self.group_by {
            None => vec![(Value::Null, self.whole(snapshot)?)],
            Some(path) => self.groups(snapshot, path)?,
        };
        Ok(self.ordered(rows).into_iter().skip(self.skip).take(self.limit).collect())
    }

    fn find(&self, snapshot: &Snapshot) -> Find {
        snapshot.find(Query::new(self.selector.clone())).rows_max(GROUPS_MAX)
    }

    fn whole(&self, snapshot: &Snapshot) -> Result<Object> {
        let find = || self.find(snapshot);
        let figure = |figure: &Figure| -> stemmadb::Result<Value> {
            Ok(match figure {
                Figure::Count => find().count()?.into(),
                Figure::Of(Function::Sum, path) => find().sum(path)?.into(),
                Figure::Of(Function::Average, path) => find().average(path)?.into(),
                Figure::Of(Function::Min, path) => find().min(path)?.into(),
                Figure::Of(Function::Max, path) => find().max(path)?.into(),
                Figure::Of(Function::Distinct, path) => find().distinct(path)?.into(),
                Figure::Of(Function::CountDistinct, path) => find().distinct(path)?.len().into(),
            })
        };
        let told = self.figures.iter().map(|(name, wanted)| Ok((name.clone(), figure(wanted).map_err(refusal)?)));
        told.collect()
    }

    fn groups(&self, snapshot: &Snapshot, group: &str) -> Result<Vec<Row>> {
        let groups = || self.find(snapshot).group_by(group);
        let counts = groups().counts().map_err(refusal)?;
        // One pass for each path, whatever is wanted of it.
        let mut summaries: BTreeMap<&str, Vec<Summary>> = BTreeMap::new();
        for (_, figure) in &self.figures {
            if let Figure::Of(_, path) = figure
                && !summaries.contains_key(path.as_str())
            {
                let found = groups().summaries(path).map_err(refusal)?;
                summaries.insert(path, found.into_iter().map(|(_, summary)| summary).collect());
            }
        }
        let row = |at: usize, count: u64| {
            let figure = |figure: &Figure| match figure {
                Figure::Count => Some(count.into()),
                Figure::Of(function, path) => Some(of_summary(*function, summaries.get(path.as_str())?.get(at)?)),
            };
            let named = self.figures.iter().map(|(name, wanted)| Some((name.clone(), figure(wanted)?)));
            // Both passes are over the same groups of one state.
            named.collect::<Option<_>>().ok_or_else(|| Failure::internal("groups differ between two passes"))
        };
        counts.into_iter().enumerate().map(|(at, (value, count))| Ok((value, row(at, count)?))).collect()
    }

    /// By the value that they are groups of, or by a figure.
    fn ordered(&self, mut rows: Vec<Row>) -> Vec<Row> {
        if let Some(name) = &self.order_by {
            let number = |row: &Row| row.1.get(name).and_then(Value::as_f64);
            // Groups without the figure come first; ties stay in the order of the groups.
            rows.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
        }
        if self.descending {
            rows.reverse();
        }
        rows
    }
}

fn figures(value: &Value) -> Result<Vec<(String, Figure)>> {
    let wrong = |name: &str| {
        Failure::bad_request(format!(
            "The figure {name:?} is \"count\", or one of sum, average, min, max, distinct and count_distinct with a path: {{\"sum\": \"price\"}}"
        ))
    };
    let object = value.as_object().ok_or_else(|| Failure::bad_request("`figures` is an object"))?;
    let figure = |(name, figure): (&str, &Value)| {
        if figure.as_str() == Some("count") {
            return Ok((name.to_owned(), Figure::Count));
        }
        let one = figure.as_object().filter(|one| one.len() == 1).and_then(|one| one.iter().next());
        let (function, path) = one.ok_or_else(|| wrong(name))?;
        let function = match function {
            "sum" => Function::Sum,
            "average" => Function::Average,
            "min" => Function::Min,
            "max" => Function::Max,
            "distinct" => Function::Distinct,
            "count_distinct" => Function::CountDistinct,
            _ => return Err(wrong(name)),
        };
        Ok((name.to_owned(), Figure::Of(function, path.as_str().ok_or_else(|| wrong(name))?.to_owned())))
    };
    object.iter().map(figure).collect()
}

fn of_summary(function: Function, summary: &Summary) -> Value {
    match function {
        Function::Sum => summary.sum.into(),
        Function::Average => summary.average().into(),
        Function::Min => summary.min.into(),
        Function::Max => summary.max.into(),
        Function::Distinct | Function::CountDistinct => Value::Null,
    }
}

fn refusal(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Stopped => {
            Failure::too_large(format!("More than {GROUPS_MAX} groups or values: narrow the selector"))
        }
        _ => error.into(),
    }
}
