//! The read path: snapshots, and the queries that they answer from memtables, tree, log and caches.
//!
//! Nothing here writes, except to caches.

mod attachments;
mod events;
mod fetch;
mod lineage;
mod listing;
mod local_documents;
mod parts;
mod path_info;
pub(crate) mod postings;
pub(crate) mod read_timestamp;
pub(crate) mod snapshot;
pub(crate) mod statistics;
mod term_walk;

pub(crate) use lineage::StoredPast;
pub use listing::{Listed, Listing};
pub(crate) use parts::StoreParts;
pub use path_info::PathInfo;
pub use snapshot::{Branch, Snapshot};
pub(crate) use term_walk::{Term, TermWalk};
