//! What happened since? The feed of changes: for each document its latest event, in the order of sequences.
//!
//! Invariants: a feed read from one snapshot has each changed document once, at its latest sequence up to the snapshot's, strictly
//! ascending (or descending), with no gap that a later read would fill.
//!
//! Live queries and subscriptions to paths ([`live`]) are told of each transaction as it is published.
//!
//! It knows nothing of connections or formats.

mod candidates;
mod feed;
mod live;
mod subscription;

pub use candidates::FeedPlan;
pub use feed::{Change, Changes};
pub(crate) use live::Hub;
pub use live::{Delta, Event, PathChange, PathEvent, PathSubscription, Suspended, Watch};
pub use subscription::Subscription;
