//! Tests of pipelines: random ones against a naive evaluator, and by example.

mod examples;
mod naive;
mod random;

use super::{Pipeline, stream};
use crate::Result;
use crate::query::tests::memory::MemorySource;
use crate::value::Value;

fn json(text: &str) -> Value {
    Value::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The rows of a pipeline over a source.
fn run(source: &MemorySource, stages: &Value) -> Result<Vec<Value>> {
    stream::open(source, Pipeline::parse(stages)?)?.collect()
}
