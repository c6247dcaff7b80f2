//! Documents that end: the rules by which they do, and how one is given an end.

use std::time::Duration;

use crate::engine::Progress;
use crate::index::Expiry;
use crate::revision::Revision;
use crate::{Database, Result};

impl Database {
    /// Lets documents end at the time that stands at a path of theirs: from that millisecond on nobody sees them, and a sweep in the
    /// background deletes them. Holds for every document that is there and to come, until [`Database::drop_expiry`]. A rule that is in force
    /// already costs nothing, so a program may declare its rules whenever it starts.
    ///
    /// By several rules a document ends at the first of its ends. Costs a read of every document, and from then on each query a look-up
    /// for each rule.
    ///
    /// # Errors
    /// `Invalid` if the path or the collection's name is wrong.
    pub fn expire_by(&self, rule: Expiry) -> Result<()> {
        self.expire_by_showing(rule, |_| ())
    }

    /// As [`Database::expire_by`]; `progress` hears of it, in documents.
    ///
    /// # Errors
    /// As [`Database::expire_by`].
    pub fn expire_by_showing(&self, rule: Expiry, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.store().expire_by(rule.check()?, &mut progress)
    }

    /// Takes a rule of expiry back. What has ended by it and was not deleted yet is there again.
    ///
    /// # Errors
    /// `NotFound` if there is no such rule.
    pub fn drop_expiry(&self, rule: &Expiry) -> Result<()> {
        self.store().drop_expiry(rule.check()?)
    }

    /// The rules of expiry, in the order they were declared.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.store().expiries()
    }

    /// Lets the document `id` end after `time`, or, with none, never, by the first rule that is for it; returns its new revision, or none if
    /// there is no such document. One transaction.
    ///
    /// # Errors
    /// `Invalid` if no rule is for it, or its body has something else where the time should stand.
    pub fn expire(&self, id: &str, time: Option<Duration>) -> Result<Option<Revision>> {
        self.write(|tx| tx.expire(id, time))
    }

    /// Deletes the documents that have ended; returns how many. Never needed: it happens by itself.
    ///
    /// # Errors
    /// `Unavailable` or `Closed` if the log can't be written.
    pub fn sweep_expired(&self) -> Result<u64> {
        self.store().sweep_ended()
    }
}
