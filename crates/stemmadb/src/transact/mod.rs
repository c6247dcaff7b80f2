//! Did nobody interfere? Transactions that hold no lock while their code runs, and check what they read when they commit.
//!
//! An attempt reads a snapshot of what is published and remembers what it asked: ids, the selectors of queries, and views. To commit,
//! the changes since that snapshot are looked through: if one is of a document that was asked for, or if a document matches one of the
//! selectors, as it was or as it is, what the attempt saw is no longer so, and its code runs again on a new snapshot. Else the edits
//! are made anew upon what is there now, in an ordinary transaction, so that attempt and writer lock agree on every check.
//!
//! Concurrency: most of the looking through is done before the lock is taken; under it, only what was written meanwhile.

mod reads;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde::Serialize;

use crate::document::Document;
use crate::engine::{Edit, Store, Transaction};
use crate::options::Durability;
use crate::query::{Find, Query};
use crate::revision::{DocumentId, Revision};
use crate::value::Value;
use crate::{Error, Result};
use reads::Reads;
pub(crate) use reads::Test;

/// So often code runs before its transaction is given up.
const ATTEMPTS_MAX: u32 = 100;

/// An attempt at a transaction: reads of one state, and writes that take place if nobody interferes. It reads what it wrote.
pub struct Attempt<'a> {
    transaction: Transaction<'a>,
    reads: Reads,
    edits: Vec<Edit>,
}

impl Attempt<'_> {
    /// The document `id`, or none if there is none or it is deleted.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&mut self, id: &str) -> Result<Option<Document>> {
        if !self.transaction.wrote(id) {
            self.reads.id(id);
        }
        self.transaction.get(id)
    }

    /// What matches a selector or query. The transaction then depends on every document that matches its selector, also beyond a
    /// limit: the narrower the selector, the less can interfere.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong; `Corrupt` if stored bytes are damaged.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<Find> {
        let query = query.into();
        self.reads.selector(query.selector().matcher()?);
        Ok(self.transaction.snapshot()?.find(query))
    }

    /// The transaction that it would be.
    pub(crate) fn transaction(&self) -> &Transaction<'_> {
        &self.transaction
    }

    /// Notes that every document was read which this says yes of, as it was or as it is.
    pub(crate) fn depend(&mut self, is_read: reads::Test) {
        self.reads.test(is_read);
    }

    /// Creates the document `id`.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Invalid` for a bad id or body.
    pub fn insert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the revision that was read.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document; `Invalid` for a bad body.
    pub fn replace<B: Serialize + ?Sized>(&mut self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates the document or replaces whatever is current. It is not read by that, so nobody interferes who writes it too.
    ///
    /// # Errors
    /// `Invalid` for a bad id or body.
    pub fn upsert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Deletes the revision that was read; returns the revision of the deletion.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document.
    pub fn delete(&mut self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Applies one edit. The revision it returns is the one to come, unless the document was upserted and somebody else writes it first.
    ///
    /// # Errors
    /// As the method of the edit's name. An edit that fails leaves the transaction as it was.
    pub fn edit(&mut self, edit: Edit) -> Result<Revision> {
        // Whether there is a document, and which revision, is read here, except by edits that do whatever they find.
        if !matches!(edit, Edit::Upsert { .. } | Edit::Foreign { .. }) && !self.transaction.wrote(edit.id().as_str()) {
            self.reads.id(edit.id().as_str());
        }
        let revision = self.transaction.edit(edit.clone())?;
        self.edits.push(edit);
        Ok(revision)
    }
}

/// Whether what an attempt read is looked at again when it commits. Without it the anomalies come that it prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checking {
    Reads,
    Nothing,
}

/// Runs `work` as a transaction that holds no lock meanwhile, again and again until nobody interfered.
pub(crate) fn optimistic<T>(
    store: &Store,
    durability: Durability,
    checking: Checking,
    mut work: impl FnMut(&mut Attempt<'_>) -> Result<T>,
) -> Result<T> {
    for attempt_count in 0..ATTEMPTS_MAX {
        pause(attempt_count);
        let transaction = store.speculate()?;
        let mut attempt = Attempt { transaction, reads: Reads::default(), edits: Vec::new() };
        let result = work(&mut attempt)?;
        if attempt.edits.is_empty() || commit(store, durability, checking, attempt)? {
            return Ok(result);
        }
    }
    Err(Error::conflict(format!("others interfered with this transaction {ATTEMPTS_MAX} times, so it was given up"))
        .with_hint(
            "let it read less: a narrower selector, fewer documents; or use `write`, which holds others back meanwhile",
        ))
}

/// Makes the edits of an attempt, if nobody interfered.
fn commit(store: &Store, durability: Durability, checking: Checking, attempt: Attempt<'_>) -> Result<bool> {
    let Attempt { transaction, reads, edits } = attempt;
    let base = transaction.base();
    let prepared = edits.into_iter().map(|edit| store.parts.prepare(edit)).collect::<Result<Vec<_>>>()?;
    let is_checked = checking == Checking::Reads;
    let published = store.snapshot()?;
    if is_checked && reads.are_changed(base, base.sequence(), &published)? {
        return Ok(false);
    }
    store.write(durability, |transaction| {
        if is_checked && reads.are_changed(base, published.sequence(), transaction.base())? {
            return Ok(false);
        }
        prepared.into_iter().try_for_each(|edit| transaction.stage(edit).map(|_| ()))?;
        Ok(true)
    })
}

/// Waits longer, and by chance, the more often others interfered: whoever interfered may have gone by then.
fn pause(attempt_count: u32) {
    if attempt_count > 1 {
        let chance = RandomState::new().build_hasher().finish();
        let longest_us = 20 << attempt_count.min(9);
        std::thread::sleep(Duration::from_micros(chance % longest_us));
    }
}
