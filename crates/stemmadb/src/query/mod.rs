//! What was asked?
//!
//! A [`Selector`] says which documents are wanted; it is made by Rust functions or read from Mango JSON. Its normal form
//! is planned against what the index knows, evaluated to sets of document numbers, and what the index can't decide is
//! checked on the packed record. Rows stream.

mod aggregate;
mod candidates;
mod collect;
mod cursor;
mod declared;
mod document;
mod estimate;
mod evaluate;
mod explain;
mod facts;
mod field;
mod fields;
mod find;
mod hit;
mod interval;
mod limits;
mod live;
mod matcher;
mod naive;
mod normal;
mod operators;
mod parse;
mod plan;
mod planner;
mod print;
mod ranked;
mod request;
mod rows;
mod selector;
mod snapshot;
mod sort;
mod source;
mod stream;
mod tally;
mod token;
mod values;
mod walk;

pub use aggregate::{GroupBy, Summary};
pub(crate) use candidates::candidates;
pub use explain::Explanation;
#[cfg(test)]
use explain::explain;
pub use field::{Field, element, field};
pub use find::{Find, Found};
pub use limits::Cancellation;
pub(crate) use limits::Limits;
pub(crate) use live::{Clue, Clues, LiveQuery};
pub(crate) use matcher::Matcher;
pub use request::Query;
#[cfg(test)]
use rows::{count, documents, ids, values};
pub use selector::{Selector, all_of, any_of, not};
pub use sort::Sort;

#[cfg(test)]
mod tests;
