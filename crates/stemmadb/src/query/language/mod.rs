//! The query language: selectors as a caller writes them, their normal form, and matching them against one document.
//!
//! This module depends on neither indexes nor snapshots.

pub(in crate::query) mod document;
pub(in crate::query) mod field;
pub(in crate::query) mod interval;
pub(in crate::query) mod intervals;
pub(in crate::query) mod matcher;
pub(in crate::query) mod normal;
pub(in crate::query) mod operators;
pub(in crate::query) mod page_token;
mod parse;
pub(in crate::query) mod print;
pub(in crate::query) mod projection;
mod reference;
pub(in crate::query) mod row_key;
pub(in crate::query) mod selector;
pub(in crate::query) mod sort;

pub use field::{Field, element, field};
pub(crate) use matcher::Matcher;
pub(in crate::query) use page_token::{from_base64url, to_base64url};
pub use row_key::RowKey;
pub use selector::{Selector, all_of, any_of, not};
pub use sort::Sort;
