//! What was asked?
//!
//! A [`Selector`] says which documents are wanted; it is made by Rust functions or read from Mango JSON. Its normal form
//! is planned against what the index knows, evaluated to sets of document numbers, and what the index can't decide is
//! checked on the packed record. Rows stream.

mod candidates;
mod execute;
mod find;
mod language;
mod live;
mod plan;
mod source;

pub(crate) use candidates::candidates;
pub use execute::{Explanation, Summary};
#[cfg(test)]
use execute::{count, documents, explain, ids, values};
pub use find::{Find, Found, GroupBy};
pub(crate) use language::Matcher;
pub use language::{Field, Selector, Sort, all_of, any_of, element, field, not};
pub(crate) use live::{Clue, Clues, LiveQuery};
pub use plan::Query;
pub use source::Cancellation;
pub(crate) use source::Limits;

#[cfg(test)]
mod tests;
