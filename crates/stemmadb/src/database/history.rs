//! The past of a database: [`Database::history`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::document::Document;
use crate::history::{self, At, Differences, PastRevision};
use crate::query::{Query, Selector};
use crate::read::Snapshot;
use crate::retention::Retention;
use crate::revision::{Revision, Sequence};
use crate::{Database, Result};

/// Operations on the past of a database. Made by [`Database::history`]; cheap.
///
/// Replaced and deleted revisions stay in the log until compaction removes their segment. [`History::keep`] has them
/// moved to compressed history files instead, so that [`Database::as_of`] and the methods here reach further back.
///
/// ```
/// use stemmadb::{Database, past::Retention};
///
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// db.history().keep(Retention::Everything)?;
/// let first = db.insert("solaris", &serde_json::json!({"year": 1960}))?;
/// let then = db.sequence();
/// let second = db.replace("solaris", &first, &serde_json::json!({"year": 1961}))?;
/// db.delete("solaris", &second)?;
///
/// assert_eq!(db.as_of(then)?.get("solaris")?.unwrap().to_json()?, r#"{"year":1960}"#);
/// assert_eq!(db.history().revisions("solaris")?.len(), 3);
/// db.history().undelete("solaris")?;
/// assert_eq!(db.get("solaris")?.unwrap().to_json()?, r#"{"year":1961}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct History<'a> {
    database: &'a Database,
}

impl<'a> History<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        History { database }
    }

    /// Sets how much of the past is kept from now on, with the database. Default: [`Retention::Nothing`].
    ///
    /// History that the new retention does not cover is removed. Waits for a running compaction.
    ///
    /// # Errors
    /// Those of a write.
    pub fn keep(&self, retention: Retention) -> Result<()> {
        self.database.store().set_retention(retention)
    }

    /// Sets how much of the past is kept of the documents whose ids begin with `prefix`, such as those of a collection:
    /// `None` for as much as of all others. The longest prefix of an id counts.
    ///
    /// [`Database::as_of`] reaches as far back as the retention of the database says. Documents of which less is kept
    /// are missing from earlier states; those of which more is kept are found by [`History::revisions`] and
    /// [`History::document_at`].
    ///
    /// ```
    /// # use stemmadb::{Database, past::Retention};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.history().keep(Retention::Revisions(5))?;
    /// db.history().keep_of_prefix("invoice:", Some(Retention::Everything))?;
    /// db.history().keep_of_prefix("session:", Some(Retention::Nothing))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for an empty prefix or one of more than 200 bytes, for more than 1,000 prefixes, and for
    /// [`Retention::Bytes`]; those of a write.
    pub fn keep_of_prefix(&self, prefix: &str, retention: Option<Retention>) -> Result<()> {
        self.database.store().set_prefix_retention(prefix, retention)
    }

    /// The prefixes that have a retention of their own, sorted.
    pub fn prefixes(&self) -> Vec<(String, Retention)> {
        self.database.store().history_rules().prefixes.into_iter().collect()
    }

    /// How much of the past is kept.
    pub fn retention(&self) -> Retention {
        self.database.store().history_rules().retention
    }

    /// The lowest sequence as of which the database can be read.
    pub fn oldest(&self) -> Sequence {
        self.database.store().parts.history_floor()
    }

    /// Bytes of the history files.
    pub fn byte_count(&self) -> u64 {
        self.database.store().parts.log.history().files().iter().map(|file| file.bytes).sum()
    }

    /// Keeps the database readable as of `at`, whatever the retention, until the pin is released.
    ///
    /// # Errors
    /// `Conflict` if there is a pin with this name; `NotFound` if `at` is before [`History::oldest`].
    pub fn pin(&self, name: &str, at: impl Into<At>) -> Result<Sequence> {
        let store = self.database.store();
        let at = at.into().sequence(store)?;
        store.pin_history(name, at).map(|()| at)
    }

    /// Removes a pin; what only it kept is removed.
    ///
    /// # Errors
    /// `NotFound` if there is no such pin.
    pub fn release(&self, name: &str) -> Result<()> {
        self.database.store().release_pin(name)
    }

    /// The pins, by name.
    pub fn pins(&self) -> Vec<(String, Sequence)> {
        let pins = self.database.store().history_rules().pins;
        pins.into_iter().map(|(name, at)| (name, Sequence::new(at))).collect()
    }

    /// The sequence of the last transaction up to a point in the past. Within the history files of retired segments,
    /// times have a precision of a millisecond.
    pub fn sequence_at(&self, at: impl Into<At>) -> Result<Sequence> {
        at.into().sequence(self.database.store())
    }

    /// When the transaction with this sequence was committed; `None` if that is not known, as of transactions that were
    /// written before format 2. Within the history files of retired segments, times have a precision of a millisecond.
    ///
    /// # Errors
    /// `Io` or `Corrupt` if the times of a segment can't be read.
    pub fn time_of(&self, sequence: Sequence) -> Result<Option<SystemTime>> {
        let time_us = self.database.store().parts.log.time_of(sequence)?;
        Ok(time_us.map(|time_us| UNIX_EPOCH + Duration::from_micros(time_us)))
    }

    /// A snapshot from which the page of a continuation token is read, so that all pages of a result agree: as of the
    /// sequence that the token names if the database [keeps its past](History::keep), otherwise the newest.
    /// [`Database::find`] does this by itself; a page that is read from any other snapshot continues as of that one.
    ///
    /// # Errors
    /// Those of [`Database::as_of`].
    pub fn page_snapshot(&self, token: &str) -> Result<Snapshot> {
        let store = self.database.store();
        store.page_snapshot(token, store.snapshot()?)
    }

    /// The revisions of a document that are stored, deletions included, the newest first, each with its body and time.
    /// Costs one read of the log for each.
    ///
    /// # Errors
    /// `NotFound` if the document never existed.
    pub fn revisions(&self, id: &str) -> Result<Vec<PastRevision>> {
        history::past_revisions(self.database.store(), id)
    }

    /// A document as it was at a point in the past, found by its own revisions: also where the database as a whole
    /// can't be read any more. `None` if it did not exist or was deleted then. Costs one read of the log for each later
    /// revision.
    ///
    /// ```
    /// # use stemmadb::{Database, past::At};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// db.upsert("emma", &serde_json::json!({"year": 1816}))?;
    /// let then = db.sequence();
    /// db.upsert("emma", &serde_json::json!({"year": 1815}))?;
    /// assert_eq!(db.history().document_at("emma", then)?.unwrap().to_json()?, r#"{"year":1816}"#);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` if its revision of then is not kept; `Invalid` for a sequence in the future.
    pub fn document_at(&self, id: &str, at: impl Into<At>) -> Result<Option<Document>> {
        let store = self.database.store();
        history::document_at(store, id, at.into().sequence(store)?)
    }

    /// The documents that differ between two points in the past, in the order of their last changes. With a selector,
    /// those that match it in at least one of the two states.
    ///
    /// # Errors
    /// `Invalid` if `from` is after `to`; those of [`Database::as_of`].
    pub fn differences(
        &self,
        from: impl Into<At>,
        to: impl Into<At>,
        selector: Option<&Selector>,
    ) -> Result<Differences> {
        let store = self.database.store();
        let (from, to) = (from.into().sequence(store)?, to.into().sequence(store)?);
        history::differences(store, from, to, selector)
    }

    /// Writes the last revision of a deleted document again, with its attachments; returns the new revision.
    ///
    /// # Errors
    /// `Conflict` if the document is not deleted; `NotFound` if its last revision is not kept.
    pub fn undelete(&self, id: &str) -> Result<Revision> {
        history::undelete(self.database.store(), self.database.durability, id)
    }

    /// Sets every document that matches a query, now or then, to its state as of `to`, by new revisions, in one
    /// transaction. Documents that did not exist then are deleted. Returns how many documents changed.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; those of [`Database::as_of`] and [`Database::write`].
    pub fn revert(&self, query: impl Into<Query>, to: impl Into<At>) -> Result<u64> {
        let store = self.database.store();
        let to = to.into().sequence(store)?;
        history::revert(store, self.database.durability, &query.into(), to)
    }

    /// Sets every document that matches a query, here or in `copy`, to its state in `copy`, by new revisions: for
    /// example to that of a restored backup. Documents that `copy` does not have are deleted. Returns how many
    /// documents changed.
    ///
    /// The changes are made in transactions of up to 200 documents. Replicas receive them like any others.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; those of [`Database::write`] and of reading `copy`.
    pub fn revert_to_copy(&self, query: impl Into<Query>, copy: &Database) -> Result<u64> {
        history::revert_to_copy(self.database.store(), self.database.durability, &query.into(), copy.store())
    }

    /// How many documents [`History::revert`] would change, without changing any.
    ///
    /// # Errors
    /// Those of [`History::revert`].
    pub fn count_reverts(&self, query: impl Into<Query>, to: impl Into<At>) -> Result<u64> {
        let store = self.database.store();
        let to = to.into().sequence(store)?;
        history::count_reverts(store, &query.into(), to)
    }
}
