//! Queries: the selector language, planning, execution, and the interface to the snapshot they read.
//!
//! A [`Selector`] defines which documents match; it is built by Rust functions or parsed from Mango JSON. Its normal
//! form is planned against the index, the plan is evaluated to sets of document numbers, and conditions that the index
//! cannot decide are checked against the packed record. Rows are streamed in batches.
//!
//! - `language`: selectors, sort orders, continuation tokens.
//! - `plan`: the choice of index operations.
//! - `source`: what execution reads from a snapshot, and the query limits.
//! - `execute`: evaluation, ordering, aggregation, explain.
//! - `pipeline`: aggregation pipelines, whose leading stages are a query.

mod aggregation;
mod candidates;
mod execute;
mod find;
mod language;
mod live;
mod pipeline;
mod plan;
mod source;

pub use aggregation::{Aggregation, PartialAggregation};
pub(crate) use candidates::candidates;
pub(crate) use execute::hints::ViewPaths;
pub use execute::rows::KeyedRow;
pub use execute::{Explanation, Summary};
#[cfg(test)]
use execute::{count, documents, explain, ids, values};
pub use find::{Find, GroupBy, GroupPaths, KeyRows, QueryRows};
pub(crate) use language::Matcher;
pub use language::{Field, RowKey, Selector, Sort, all_of, any_of, element, field, not};
pub(crate) use live::{Clue, Clues, LiveQuery};
pub use pipeline::{Pipeline, PipelineRows};
pub use plan::Query;
pub(crate) use source::QueryLimits;
pub use source::{CancelCallback, Cancellation};

#[cfg(test)]
mod tests;
