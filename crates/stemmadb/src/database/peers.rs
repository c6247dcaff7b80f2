//! What servers and replicas ask for.

use super::Database;
use crate::Result;
use crate::publish::Notifier;
use crate::revision::{Missing, Revision, Sequence};
use crate::value::Value;

impl Database {
    /// Which of these revisions of the document `id` are not known here, neither as leaves nor as ancestors.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn missing(&self, id: &str, revisions: &[Revision]) -> Result<Missing> {
        self.snapshot()?.missing(id, revisions)
    }

    /// Calls `notice` with the newest sequence whenever something was published, until what this returns is dropped; and once at first.
    ///
    /// It is called on the writers' threads, so it must not wait for anything, nor use the database. Several publications may be
    /// one call.
    pub fn notify(&self, notice: impl Fn(Sequence) + Send + Sync + 'static) -> Notifier {
        self.store().parts.publisher.notify(Box::new(notice))
    }

    /// How many revisions of a line of descent are remembered (not their bodies: ids only).
    pub fn revs_limit(&self) -> usize {
        self.store().parts.revs_limit()
    }

    /// Sets how many revisions of a line of descent are remembered, until the database is closed. It is heeded by each document when it
    /// is next written.
    pub fn set_revs_limit(&self, revs_limit: usize) {
        self.store().parts.set_revs_limit(revs_limit);
    }

    /// The `_local` documents whose ids begin with `prefix`, by id. The prefix has at most 400 bytes. Costs a read of the log for each,
    /// and memory for all.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn locals(&self, prefix: &str) -> Result<Vec<(String, Value)>> {
        Ok(self.snapshot()?.locals(prefix)?.into_iter().collect())
    }
}
