//! The query language: selectors as written by a caller, their normal form and what it means for a single document.
//!
//! It knows neither indexes nor snapshots.

pub(in crate::query) mod document;
pub(in crate::query) mod field;
pub(in crate::query) mod interval;
pub(in crate::query) mod matcher;
mod naive;
pub(in crate::query) mod normal;
pub(in crate::query) mod operators;
pub(in crate::query) mod page_token;
mod parse;
pub(in crate::query) mod print;
pub(in crate::query) mod projection;
pub(in crate::query) mod selector;
pub(in crate::query) mod sort;

pub use field::{Field, element, field};
pub(crate) use matcher::Matcher;
pub use selector::{Selector, all_of, any_of, not};
pub use sort::Sort;
