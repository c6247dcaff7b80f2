//! Aggregation pipelines: a list of stages, each of which takes rows and returns others.
//!
//! The leading stages become one query, so that the planner and the index answer them ([`start`]). The others run over
//! its rows: most of them stream, `$group` and `$sort` collect, `$lookup` takes batches. Memory is bounded by the
//! limits of the query: one row by a constant, what a stage collects by `memory_max`.

mod expression;
mod group;
mod lookup;
mod measure;
mod parse;
mod reshape;
mod sort;
mod stage;
mod start;
mod stream;
#[cfg(test)]
mod tests;

use std::time::Duration;

use self::stage::{NamedStage, Stage};
use self::start::{IndexedStage, Start};
pub use self::stream::PipelineRows;
use super::execute::explain::explain;
use super::execute::hints;
use super::language::selector::Selector;
use super::source::limits::{Cancellation, LimitedSource, QueryLimits};
use crate::Result;
use crate::read::Snapshot;
use crate::value::{Object, Value};

/// The memory that a stage may use if the caller sets no limit.
const MEMORY_BYTES: usize = 100 << 20;

/// An aggregation pipeline, as MongoDB has them: an array of stages, described by JSON.
///
/// The stages are `$match` (a [`Selector`]), `$unwind`, `$group`, `$project`, `$addFields` or `$set`, `$unset`,
/// `$sort`, `$limit`, `$skip`, `$count`, `$sortByCount`, `$replaceRoot` or `$replaceWith`, and `$lookup`. In
/// expressions, `"$a.b"` is the value at a path and `"$lines[].price"` an array of the values in the elements.
///
/// Cost: leading `$match`, `$sort`, `$skip` and `$limit` are one query. `$count`, and `$group` with counts and sums by
/// one path, are answered from the index after them. Other stages read the documents; `$group` and `$sort` keep their
/// result in memory, up to 100 MiB or [`Pipeline::memory_max`].
///
/// ```
/// use stemmadb::Database;
/// use stemmadb::aggregation::Pipeline;
///
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// db.insert("a", &serde_json::json!({"city": "Oslo", "lines": [{"price": 5}, {"price": 2}]}))?;
/// db.insert("b", &serde_json::json!({"city": "Oslo", "lines": [{"price": 7}]}))?;
/// let stages = r#"[{"$unwind": "$lines"}, {"$group": {"_id": "$city", "total": {"$sum": "$lines.price"}}}]"#;
/// let rows: Vec<_> = Pipeline::parse(&stages.parse()?)?.run(&db.snapshot()?)?.collect::<stemmadb::Result<_>>()?;
/// assert_eq!(rows[0].to_json(), r#"{"_id":"Oslo","total":14}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// Which documents it begins with, in addition to its own stages.
    selector: Selector,
    stages: Vec<NamedStage>,
    limits: QueryLimits,
}

impl Pipeline {
    /// Parses an array of stages.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid), with the stage that is wrong.
    pub fn parse(stages: &Value) -> Result<Self> {
        let limits = QueryLimits { memory_bytes: Some(MEMORY_BYTES), ..QueryLimits::default() };
        Ok(Pipeline { selector: Selector::everything(), stages: parse::pipeline(stages)?, limits })
    }

    /// Begins with the documents that also match `selector`, and looks up only these.
    #[must_use]
    pub fn narrowed(mut self, selector: Selector) -> Self {
        for named in &mut self.stages {
            if let Stage::Lookup(lookup) = &mut named.stage {
                lookup.selector = lookup.selector.clone().and(selector.clone());
            }
        }
        Pipeline { selector: self.selector.and(selector), ..self }
    }

    /// Begins with the documents that also match `selector`.
    #[must_use]
    pub fn beginning_with(self, selector: Selector) -> Self {
        Pipeline { selector: self.selector.and(selector), ..self }
    }

    /// Fails with `Stopped` if it takes longer than `time`, from [`Pipeline::run`] to the last row.
    #[must_use]
    pub fn time_limit(mut self, time: Duration) -> Self {
        self.limits.time = Some(time);
        self
    }

    /// Fails with `Stopped` if there are more than `count` rows.
    #[must_use]
    pub fn rows_max(mut self, count: u64) -> Self {
        self.limits.rows = Some(count);
        self
    }

    /// Fails with `Stopped` if a stage would need more than about `bytes` of memory; 100 MiB by default.
    #[must_use]
    pub fn memory_max(mut self, bytes: usize) -> Self {
        self.limits.memory_bytes = Some(bytes);
        self
    }

    /// Fails with `Stopped` once `cancellation` is cancelled.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: &Cancellation) -> Self {
        self.limits.cancellation = Some(cancellation.clone());
        self
    }

    /// Runs the pipeline and returns its rows as an iterator. Documents have `_id` and `_rev` among their fields.
    ///
    /// # Errors
    /// `Invalid` if a stage does not take a value, with the stage; `Stopped` at a limit; `Corrupt` if stored bytes are
    /// damaged. The iterator returns the same errors, and no row after one.
    pub fn run(&self, snapshot: &Snapshot) -> Result<PipelineRows> {
        let source = LimitedSource::new(snapshot.clone(), &self.limits);
        Ok(PipelineRows::new(stream::open(source, self.clone())?))
    }

    /// Describes how the pipeline would run, without running it: the query of the leading stages with its plan, and how
    /// each stage runs.
    ///
    /// # Errors
    /// `Invalid` if a path is malformed; `Corrupt` if stored bytes are damaged.
    pub fn explain(&self, snapshot: &Snapshot) -> Result<Value> {
        let start = Start::of(&self.stages, &self.selector);
        let source = LimitedSource::new(snapshot.clone(), &QueryLimits::default());
        let mut explanation = Object::new();
        explanation.insert("query", explain(source, &start.query, false)?.to_value());
        let stage = |(at, named): (usize, &NamedStage)| {
            let execution = match (&start.indexed, at) {
                _ if at < start.planned_count => "part of the query",
                (Some(IndexedStage::Count(_)), at) if at == start.planned_count => "counted in the index",
                (Some(_), at) if at == start.planned_count => "from the index",
                _ => named.stage.execution(),
            };
            Value::Object([("stage", named.operator.as_str()), ("execution", execution)].into_iter().collect())
        };
        explanation.insert("stages", self.stages.iter().enumerate().map(stage).collect::<Vec<_>>());
        Ok(Value::Object(explanation))
    }

    /// Returns a hint for each path of the leading stages, and of the first stage after them, that no document has,
    /// although it leads to values through an array; see [`Find::hints`](crate::Find::hints).
    ///
    /// # Errors
    /// `Invalid` if a path is malformed.
    pub fn hints(&self, snapshot: &Snapshot) -> Result<Vec<String>> {
        let start = Start::of(&self.stages, &self.selector);
        let mut paths = Vec::new();
        match self.stages.get(start.planned_count).map(|named| &named.stage) {
            Some(Stage::Group(group)) => {
                group.key.add_paths(&mut paths);
                group.fields.iter().for_each(|(.., expression)| expression.add_paths(&mut paths));
            }
            Some(Stage::Include { computed, .. } | Stage::Compute(computed)) => {
                computed.iter().for_each(|(_, expression)| expression.add_paths(&mut paths));
            }
            Some(Stage::Replace(expression)) => expression.add_paths(&mut paths),
            Some(Stage::Unwind(unwind)) => paths.push(unwind.path.to_string()),
            Some(Stage::Lookup(lookup)) => paths.push(lookup.local.to_string()),
            _ => {}
        }
        hints::hints_of(snapshot, &start.query, &paths)
    }
}
