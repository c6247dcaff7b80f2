//! Tests of what was asked and what came back: selectors by example, and everything against the naive evaluator.

mod arbitrary;
mod memory;
mod plans;
mod queries;
mod selectors;
