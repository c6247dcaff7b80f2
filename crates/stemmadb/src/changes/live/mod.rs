//! What changes in the answer to a query? A watch gives the answer once, and then each transaction's difference to it. And what
//! changes at some paths? A subscription tells of each.
//!
//! ```text
//! writer ─ publisher ─ hub ─ router: whom can the document concern?
//!                       └─ watcher: does it? ─ inbox (bounded) ─ watch: what is new? ─ delta
//!                                                              └ path subscription ─ change
//! ```
//!
//! Invariants: the deltas that were read, applied in order, give the answer at the sequence of the last; a transaction is in one
//! delta or in none; nothing that was published after a watch began is missing, however slow its reader.
//!
//! Concurrency: the hub's side runs on the writer's thread after its transaction was published, holds no lock of the store, and
//! never waits for a reader. A watch is read by one thread.

mod delta;
mod hub;
mod inbox;
mod paths;
mod pattern;
mod ranges;
mod router;
mod watch;

pub use delta::{Delta, Event};
pub(crate) use hub::Hub;
pub use paths::{PathChange, PathSubscription};
pub use pattern::PathEvent;
pub use watch::{Suspended, Watch};

#[cfg(test)]
mod tests;
