//! Someone who is asked before a transaction is appended: what keeps something in step with every write, or refuses some.
//!
//! Concurrency: a guard is asked under the writer lock, so never twice at once; it must not write, nor wait for the disk.

use std::sync::{Arc, Weak};

use crate::Result;
use crate::index::DocumentNumber;
use crate::publish::Written;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::sync::RwLock;

/// What a guard does once the transaction is appended, given its last sequence. Dropped if it is not.
pub(crate) type OnAppended = Box<dyn FnOnce(Sequence)>;

/// Someone who is asked before a transaction is appended.
pub(crate) trait CommitHook: Send + Sync {
    /// Looks at the documents that a transaction edits upon `base`: each once, as it leaves it; what was before is not told.
    ///
    /// # Errors
    /// The transaction is refused with it.
    fn admit(&self, base: &Snapshot, written: &[Written]) -> Result<OnAppended>;

    /// The documents that have ended and hold what is to be alone that of one written here: they are deleted with it. Asked before
    /// [`CommitHook::admit`], if any have ended.
    ///
    /// # Errors
    /// The transaction is refused with it.
    fn displaced(&self, base: &Snapshot, written: &[Written]) -> Result<Vec<DocumentNumber>>;
}

/// Those who are asked, as long as they live.
#[derive(Default)]
pub(super) struct CommitHooks(RwLock<Vec<Weak<dyn CommitHook>>>);

impl CommitHooks {
    pub(super) fn add(&self, guard: Weak<dyn CommitHook>) {
        let mut guards = self.0.write();
        guards.retain(|guard| guard.strong_count() > 0);
        guards.push(guard);
    }

    /// Those who live.
    pub(super) fn present(&self) -> Vec<Arc<dyn CommitHook>> {
        let guards = self.0.read();
        // Mostly there are none, and an empty list takes no memory.
        guards.iter().filter_map(Weak::upgrade).collect()
    }
}
