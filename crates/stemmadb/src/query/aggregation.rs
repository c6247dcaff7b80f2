//! Aggregations described by JSON: figures of the documents that match a selector, as a whole or by group.

mod partial;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::execute::Summary;
use super::execute::aggregate::CombinedGroup;
use super::execute::hints;
use super::find::{Find, GROUP_PATHS_MAX};
use super::language::selector::Selector;
use super::plan::Query;
use super::source::Cancellation;
use crate::read::Snapshot;
use crate::value::{Object, Value};
use crate::{Error, ErrorKind, Result};

pub use partial::PartialAggregation;

/// The most groups, and the most distinct values of a path.
const GROUPS_MAX: u64 = 100_000;

/// The most figures of one aggregation; each may need its own query.
const FIGURES_MAX: usize = 100;

/// Figures of the documents that match a selector, as a whole or for each group, described by JSON:
///
/// - `selector`: the documents; by default all of them.
/// - `group_by`: a path, or an array of paths; one row for each value, or for each combination of values. A path may
///   enter arrays: `tags[]`. See [`GroupBy`](crate::GroupBy).
/// - `figures`: an object of names and figures: `"count"`, or an object with one of `sum`, `average`, `min`, `max`,
///   `distinct` and `count_distinct`, and a path.
/// - `order_by`: the name of a figure to sort by, `descending`, `skip` and `limit`.
///
/// Computed from the index where it suffices. Documents are read for groups by several paths or with distinct values.
///
/// ```
/// use stemmadb::{Aggregation, Database};
///
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// db.insert("a", &serde_json::json!({"city": "Oslo", "price": 5}))?;
/// db.insert("b", &serde_json::json!({"city": "Oslo", "price": 7}))?;
/// let request = r#"{"group_by": "city", "figures": {"n": "count", "mean": {"average": "price"}}}"#;
/// let rows = Aggregation::parse(&request.parse()?)?.rows(&db.snapshot()?)?;
/// assert_eq!(rows[0].1.get("mean").and_then(|mean| mean.as_f64()), Some(6.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Aggregation {
    selector: Selector,
    /// The paths whose values define the groups; none for a single row.
    group_by: Vec<String>,
    /// The figures of each row, with their output names.
    figures: Vec<(String, Figure)>,
    order_by: Option<String>,
    descending: bool,
    skip: usize,
    limit: usize,
    cancellation: Option<Cancellation>,
    /// The time limit, and the deadline of the computation that runs.
    time: Option<Duration>,
    deadline: Option<Instant>,
}

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

impl Aggregation {
    /// Parses an aggregation.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with the part that is wrong.
    pub fn parse(json: &Value) -> Result<Self> {
        let object = json.as_object().ok_or_else(|| Error::invalid("an aggregation is a JSON object"))?;
        let mut aggregation = Aggregation {
            selector: Selector::everything(),
            group_by: Vec::new(),
            figures: Vec::new(),
            order_by: None,
            descending: false,
            skip: 0,
            limit: usize::MAX,
            cancellation: None,
            time: None,
            deadline: None,
        };
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        for (name, value) in object.iter() {
            let invalid = || Error::invalid(format!("invalid value for `{name}`"));
            match name {
                "selector" => aggregation.selector = Selector::parse(value)?,
                "group_by" => aggregation.group_by = parse_paths(value).ok_or_else(invalid)?,
                "figures" => aggregation.figures = parse_figures(value)?,
                "order_by" => aggregation.order_by = Some(value.as_str().ok_or_else(invalid)?.to_owned()),
                "descending" => aggregation.descending = value.as_bool().ok_or_else(invalid)?,
                "skip" => aggregation.skip = count(value).ok_or_else(invalid)?,
                "limit" => aggregation.limit = count(value).ok_or_else(invalid)?,
                _ => {
                    return Err(Error::invalid(format!("an aggregation has no parameter `{name}`")).with_hint(
                        "the parameters are selector, group_by, figures, order_by, descending, skip, limit",
                    ));
                }
            }
        }
        aggregation.validated()
    }

    fn validated(self) -> Result<Self> {
        if self.figures.is_empty() {
            return Err(
                Error::invalid("`figures` is missing").with_hint("for example {\"total\": {\"sum\": \"price\"}}")
            );
        }
        if self.figures.len() > FIGURES_MAX {
            return Err(Error::invalid(format!("there are more than {FIGURES_MAX} figures")));
        }
        if self.group_by.len() > GROUP_PATHS_MAX {
            return Err(Error::invalid(format!("there are more than {GROUP_PATHS_MAX} paths to group by")));
        }
        let is_named = |name: &String| self.figures.iter().any(|(figure, _)| figure == name);
        match &self.order_by {
            Some(name) if !is_named(name) => Err(Error::invalid("`order_by` must name one of the figures")),
            _ => Ok(self),
        }
    }

    /// Aggregates only the documents that also match `selector`.
    #[must_use]
    pub fn narrowed(self, selector: Selector) -> Self {
        Aggregation { selector: self.selector.and(selector), ..self }
    }

    /// Stops with `Stopped` once `cancellation` is cancelled.
    #[must_use]
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        Aggregation { cancellation: Some(cancellation.clone()), ..self }
    }

    /// Returns a hint for each path that no document has, although it leads to values through an array: `lines.price`
    /// where the documents have `lines[].price`. Reads no documents.
    ///
    /// # Errors
    /// `Invalid` if a path is malformed.
    pub fn hints(&self, snapshot: &Snapshot) -> Result<Vec<String>> {
        let figures = self.figures.iter().filter_map(|(_, figure)| figure.path());
        let paths: Vec<&str> = self.group_by.iter().map(String::as_str).chain(figures).collect();
        self.find(snapshot).with_source(|source, query| hints::hints_of(&source, query, &paths))
    }

    /// What the aggregated documents match.
    pub(crate) fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Stops the computation with `Stopped` if it takes longer than `time`.
    #[must_use]
    pub fn time_limit(self, time: Duration) -> Self {
        Aggregation { time: Some(time), ..self }
    }

    /// Computes the rows: the value of each group, and its figures by name. Without groups there is one row, whose
    /// value is null; with several paths, the value is an array. Rows are in collation order of the groups, or by the
    /// figure that `order_by` names.
    ///
    /// # Errors
    /// `Invalid` if a path is malformed or a sum exceeds the range of a double; `Stopped` above 100,000 groups or
    /// distinct values, or after the time limit; `Corrupt` if stored bytes are damaged.
    pub fn rows(&self, snapshot: &Snapshot) -> Result<Vec<(Value, Object)>> {
        // The passes share the time.
        let Some(time) = self.time.filter(|_| self.deadline.is_none()) else { return self.rows_of(snapshot) };
        let deadline = Instant::now().checked_add(time);
        Aggregation { deadline, ..self.clone() }.rows_of(snapshot).map_err(|error| match error.kind() {
            ErrorKind::Stopped if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                Error::stopped(format!("the aggregation took longer than its {} ms", time.as_millis()))
                    .with_hint("narrow the selector, or allow more time")
            }
            _ => error,
        })
    }

    fn rows_of(&self, snapshot: &Snapshot) -> Result<Vec<(Value, Object)>> {
        self.finish(self.state(snapshot, false)?)
    }

    /// Whether the groups need more than counts and summaries of numbers by one path.
    fn reads_documents(&self) -> bool {
        let is_distinct =
            |figure: &Figure| matches!(figure, Figure::Of(Function::Distinct | Function::CountDistinct, _));
        self.group_by.len() > 1
            || !self.group_by.is_empty() && self.figures.iter().any(|(_, figure)| is_distinct(figure))
    }

    fn find(&self, snapshot: &Snapshot) -> Find {
        let mut find = snapshot.find(Query::new(self.selector.clone())).rows_max(GROUPS_MAX);
        if let Some(deadline) = self.deadline {
            find = find.time_limit(deadline.saturating_duration_since(Instant::now()));
        }
        match &self.cancellation {
            Some(cancellation) => find.cancelled_by(cancellation),
            None => find,
        }
    }

    fn needs_distinct(&self, path: &str) -> bool {
        self.figures.iter().any(|(_, figure)| match figure {
            Figure::Of(Function::Distinct | Function::CountDistinct, of) => of == path,
            _ => false,
        })
    }

    /// The paths of the figures, each once, in order.
    fn paths(&self) -> Vec<&str> {
        let paths: BTreeSet<&str> = self.figures.iter().filter_map(|(_, figure)| figure.path()).collect();
        paths.into_iter().collect()
    }

    fn row(&self, group: CombinedGroup, paths: &[&str]) -> Result<(Value, Object)> {
        let is_total = self.group_by.is_empty();
        let figure = |figure: &Figure| -> Result<Value> {
            let Figure::Of(function, path) = figure else { return Ok(group.document_count.into()) };
            let at = paths.binary_search(&path.as_str()).map_err(|_| Error::internal("a figure has no path"))?;
            let figures = &group.figures[at];
            Ok(match function {
                Function::Distinct => figures.distinct.values().cloned().collect::<Vec<_>>().into(),
                Function::CountDistinct => figures.distinct.len().into(),
                // Without groups, these are of values of any kind.
                Function::Min if is_total => figures.least.clone().map_or(Value::Null, |(_, value)| value),
                Function::Max if is_total => figures.greatest.clone().map_or(Value::Null, |(_, value)| value),
                _ => summary_value(*function, &figures.numbers.finish(path)?),
            })
        };
        let figures = self.figures.iter().map(|(name, requested)| Ok((name.clone(), figure(requested)?)));
        let figures = figures.collect::<Result<_>>()?;
        Ok((group.key, figures))
    }

    /// Sorts the rows by a figure, if requested; they are sorted by group otherwise.
    fn ordered(&self, mut rows: Vec<(Value, Object)>) -> Vec<(Value, Object)> {
        if let Some(name) = &self.order_by {
            let number = |row: &(Value, Object)| row.1.get(name).and_then(Value::as_f64);
            // Groups without a number come first; the sort is stable, so ties keep the order of the groups.
            rows.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
        }
        if self.descending {
            rows.reverse();
        }
        rows
    }
}

impl Figure {
    fn path(&self) -> Option<&str> {
        match self {
            Figure::Count => None,
            Figure::Of(_, path) => Some(path),
        }
    }
}

fn parse_paths(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(path) => Some(vec![path.clone()]),
        Value::Array(paths) if !paths.is_empty() => paths.iter().map(|path| path.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

fn parse_figures(value: &Value) -> Result<Vec<(String, Figure)>> {
    let invalid = |name: &str| {
        Error::invalid(format!("the figure {name:?} is none")).with_hint(
            "write \"count\", or one of sum, average, min, max, distinct and count_distinct with a path: \
             {\"sum\": \"price\"}",
        )
    };
    let object = value.as_object().ok_or_else(|| Error::invalid("`figures` must be an object"))?;
    let figure = |(name, figure): (&str, &Value)| {
        if figure.as_str() == Some("count") {
            return Ok((name.to_owned(), Figure::Count));
        }
        let one = figure.as_object().filter(|one| one.len() == 1).and_then(|one| one.iter().next());
        let (function, path) = one.ok_or_else(|| invalid(name))?;
        let function = match function {
            "sum" => Function::Sum,
            "average" => Function::Average,
            "min" => Function::Min,
            "max" => Function::Max,
            "distinct" => Function::Distinct,
            "count_distinct" => Function::CountDistinct,
            _ => return Err(invalid(name)),
        };
        Ok((name.to_owned(), Figure::Of(function, path.as_str().ok_or_else(|| invalid(name))?.to_owned())))
    };
    object.iter().map(figure).collect()
}

fn summary_value(function: Function, summary: &Summary) -> Value {
    match function {
        Function::Sum => summary.sum.into(),
        Function::Average => summary.average().into(),
        Function::Min => summary.min.into(),
        Function::Max => summary.max.into(),
        Function::Distinct | Function::CountDistinct => Value::Null,
    }
}
