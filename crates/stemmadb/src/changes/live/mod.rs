//! Live queries and path subscriptions. A [`Watch`] returns a query's result once, and then the difference that each
//! transaction makes; a [`PathSubscription`] returns the values that changed at matching paths.
//!
//! ```text
//! writer ─ publisher ─ hub ─ router: which watchers may the document concern?
//!                       └─ watcher: does it match? ─ inbox (bounded) ─ watch: what changed? ─ delta
//!                                                                   └ path subscription ─ change
//! ```
//!
//! Invariants: applying the deltas in order gives the query's result at the sequence of the last one; a transaction is
//! in one delta or in none; nothing published after a watch began is missing, however slow its reader.
//!
//! Concurrency: the hub's side runs on the writer's thread after its transaction was published, holds no lock of the
//! store, and never waits for a reader. A watch is read by one thread.

mod delta;
mod hub;
mod inbox;
mod paths;
mod pattern;
mod ranges;
mod router;
mod topics;
mod watch;

pub use delta::{Delta, DeltaEvent};
pub(crate) use hub::Hub;
pub use paths::{PathChange, PathSubscription};
pub use pattern::PathEvent;
pub(super) use pattern::Patterns;
pub(crate) use topics::TopicHub;
pub use topics::{Message, TopicSubscription};
pub use watch::{SuspendedWatch, Watch};

#[cfg(test)]
mod tests;
