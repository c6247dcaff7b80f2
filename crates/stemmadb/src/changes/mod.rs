//! What happened since? The feed of changes: for each document its latest event, in the order of sequences.
//!
//! Invariants: a feed read from one snapshot has each changed document once, at its latest sequence up to the snapshot's, strictly
//! ascending (or descending), with no gap that a later read would fill.
//!
//! It knows nothing of connections or formats.

mod feed;
mod subscription;

pub use feed::{Change, Changes};
pub use subscription::Subscription;
