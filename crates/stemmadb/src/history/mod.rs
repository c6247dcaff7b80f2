//! The past of a database: what documents were, how two states differ, and taking changes back.

mod at;
mod difference;
mod revert;
mod revisions;

pub use at::At;
pub(crate) use difference::differences;
pub use difference::{Difference, Differences};
pub(crate) use revert::{count_reverts, revert, revert_to_copy, undelete};
pub use revisions::PastRevision;
pub(crate) use revisions::{document_at, past_revisions};
