//! Execution of plans: evaluating filters to sets of document numbers, ordering rows, aggregating, and explaining.

pub(in crate::query) mod aggregate;
mod collect;
pub(in crate::query) mod cursor;
mod estimate;
pub(in crate::query) mod evaluate;
mod exclusions;
pub(in crate::query) mod explain;
pub(in crate::query) mod hints;
mod hit;
mod index_count;
mod index_walk;
mod ranked;
pub(in crate::query) mod rows;
mod shared_presences;
mod stream;
mod value_walk;
mod values;

pub use aggregate::Summary;
pub use explain::Explanation;
#[cfg(test)]
pub(in crate::query) use explain::explain;
#[cfg(test)]
pub(in crate::query) use rows::{count, documents, ids, values};
