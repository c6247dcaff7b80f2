//! Expiration (TTL) of documents: [`Database::expiration`].

use std::time::Duration;

use crate::index::Expiry;
use crate::options::Progress;
use crate::revision::Revision;
use crate::{Database, Result};

/// Operations on document expiration (TTL). Made by [`Database::expiration`]; cheap.
#[derive(Debug, Clone, Copy)]
pub struct Expiration<'a> {
    database: &'a Database,
}

impl<'a> Expiration<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Expiration { database }
    }

    /// Adds an expiration rule: documents expire at the time found at a path in their body.
    ///
    /// From that millisecond on no reader sees the document, and a background sweep deletes it. The rule applies to
    /// existing and future documents until [`Expiration::remove_rule`]. If several rules apply, the earliest time
    /// counts. Adding an identical rule again costs nothing, so a program may add its rules at every start. Costs one
    /// read of every document, and then one lookup per rule in each query.
    ///
    /// # Errors
    /// `Invalid` if the path or the collection's name is wrong.
    pub fn add_rule(&self, rule: Expiry) -> Result<()> {
        self.add_rule_with_progress(rule, |_| ())
    }

    /// Same as [`Expiration::add_rule`]; calls `progress` during the initial read, counting documents.
    ///
    /// # Errors
    /// Those of [`Expiration::add_rule`].
    pub fn add_rule_with_progress(&self, rule: Expiry, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.database.store().expire_by(rule.check()?, &mut progress)
    }

    /// Removes an expiration rule. Documents that expired by it and are not deleted yet become visible again.
    ///
    /// # Errors
    /// `NotFound` if there is no such rule.
    pub fn remove_rule(&self, rule: &Expiry) -> Result<()> {
        self.database.store().drop_expiry(rule.check()?)
    }

    /// Lists the expiration rules in the order they were added.
    pub fn rules(&self) -> Vec<Expiry> {
        self.database.store().expiries()
    }

    /// Sets the time to live of the document `id` by the first rule that applies to it, in one transaction; `None`
    /// means it never expires. Returns the document's new revision, or `None` if there is no such document.
    ///
    /// # Errors
    /// `Invalid` if no rule applies to it, or if its body has a non-object where the time must be stored.
    pub fn expire(&self, id: &str, time_to_live: Option<Duration>) -> Result<Option<Revision>> {
        self.database.write(|tx| tx.expire(id, time_to_live))
    }

    /// Deletes the documents that have expired; returns how many. A background sweep does this too, so calling it is
    /// optional.
    ///
    /// # Errors
    /// `Unavailable` or `Closed` if the log can't be written.
    pub fn delete_expired(&self) -> Result<u64> {
        self.database.store().delete_expired()
    }
}
