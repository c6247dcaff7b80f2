//! Commit hooks: callbacks that can refuse a transaction before it is appended, and that update derived state once it
//! is.
//!
//! Concurrency: hooks run under the writer lock, so never concurrently. A hook must not write, and must not wait for
//! the disk.

use std::sync::{Arc, Weak};

use crate::Result;
use crate::index::DocumentNumber;
use crate::publish::Written;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::sync::RwLock;

/// Runs once the transaction is appended, given its last sequence. Dropped if the transaction fails.
pub(crate) type OnAppended = Box<dyn FnOnce(Sequence)>;

/// A callback that is asked before each transaction is appended.
pub(crate) trait CommitHook: Send + Sync {
    /// Validates the documents that a transaction edits on top of `base`: each once, in its final state, without its
    /// previous state.
    ///
    /// # Errors
    /// The transaction fails with the returned error.
    fn admit(&self, base: &Snapshot, written: &[Written]) -> Result<OnAppended>;

    /// The expired documents that hold a value reserved for one document, which a document in `written` now takes over.
    /// They are deleted in the same transaction. Called before [`CommitHook::admit`], if any documents have expired.
    ///
    /// # Errors
    /// The transaction fails with the returned error.
    fn displaced(&self, base: &Snapshot, written: &[Written]) -> Result<Vec<DocumentNumber>>;
}

/// The registered hooks that are still alive.
#[derive(Default)]
pub(super) struct CommitHooks(RwLock<Vec<Weak<dyn CommitHook>>>);

impl CommitHooks {
    pub(super) fn add(&self, hook: Weak<dyn CommitHook>) {
        let mut hooks = self.0.write();
        hooks.retain(|hook| hook.strong_count() > 0);
        hooks.push(hook);
    }

    /// Returns the hooks that are alive.
    pub(super) fn present(&self) -> Vec<Arc<dyn CommitHook>> {
        let hooks = self.0.read();
        // Usually there are none, and an empty list allocates nothing.
        hooks.iter().filter_map(Weak::upgrade).collect()
    }
}
