//! Execution of plans: sets of document numbers, walks in an order, counts and sums; and what explain says of them.

pub(in crate::query) mod aggregate;
mod collect;
pub(in crate::query) mod cursor;
mod estimate;
pub(in crate::query) mod evaluate;
pub(in crate::query) mod explain;
mod hit;
mod index_walk;
mod ranked;
pub(in crate::query) mod rows;
mod stream;
mod tally;
mod value_walk;
mod values;

pub use aggregate::Summary;
pub use explain::Explanation;
#[cfg(test)]
pub(in crate::query) use explain::explain;
#[cfg(test)]
pub(in crate::query) use rows::{count, documents, ids, values};
