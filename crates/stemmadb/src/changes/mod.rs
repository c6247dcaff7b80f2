//! The changes feed: the latest event of each document, in sequence order.
//!
//! Invariants: a feed read from one snapshot contains each changed document once, at its latest sequence up to the
//! snapshot's, strictly ascending (or descending), and no later read of the same range finds an event that this one
//! missed.
//!
//! Live queries and path subscriptions ([`live`]) are notified of each transaction when it is published.
//!
//! This module does not depend on connections or output formats.

mod candidates;
mod feed;
mod live;
mod subscription;

pub use candidates::FeedPlan;
pub use feed::{Change, Changes};
pub use live::{
    Delta, DeltaEvent, Message, PathChange, PathEvent, PathSubscription, SuspendedWatch, TopicSubscription, Watch,
};
pub(crate) use live::{Hub, TopicHub};
pub use subscription::Subscription;
