//! Aggregation pipelines on a database.

use stemmadb::aggregation::Pipeline;
use stemmadb::{Object, Selector, Snapshot, Value};

use super::Database;
use crate::failure::Result;

/// A pipeline on one snapshot.
pub(crate) struct PipelineRun {
    pipeline: Pipeline,
    snapshot: Snapshot,
}

impl Database {
    /// Prepares a pipeline on the documents that match a selector.
    pub(crate) fn pipeline(&self, selector: &Value, stages: &Value) -> Result<PipelineRun> {
        let mut pipeline = Pipeline::parse(stages)?;
        if selector.as_object().is_some_and(|selector| !selector.is_empty()) {
            pipeline = pipeline.beginning_with(Selector::parse(selector)?);
        }
        Ok(PipelineRun { pipeline, snapshot: self.snapshot()? })
    }
}

impl PipelineRun {
    /// Returns the rows, which are objects.
    pub(crate) fn rows(&self) -> Result<impl Iterator<Item = Result<Object>>> {
        Ok(self.pipeline.run(&self.snapshot)?.map(|row| Ok(object(row?))))
    }

    /// Describes how the pipeline would run.
    pub(crate) fn explain(&self) -> Result<Object> {
        Ok(object(self.pipeline.explain(&self.snapshot)?))
    }

    /// Returns hints for paths that need brackets.
    pub(crate) fn hints(&self) -> Result<Vec<String>> {
        Ok(self.pipeline.hints(&self.snapshot)?)
    }
}

fn object(row: Value) -> Object {
    match row {
        Value::Object(object) => object,
        other => Object::from_iter([("value", other)]),
    }
}
