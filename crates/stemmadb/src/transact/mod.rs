//! Optimistic transactions: user code runs without a lock, and its reads are validated at commit.
//!
//! An attempt reads a published snapshot and records its read set: ids, selectors of queries, and views. Validation at
//! commit examines every change since that snapshot. If a changed document is in the read set by id, or matches a
//! selector in its old or new version, the attempt conflicts, and the code runs again on a new snapshot. Otherwise its
//! edits are applied again to the current state in an ordinary transaction, which makes all other checks under the
//! writer lock.
//!
//! Concurrency: changes up to a recent snapshot are validated before the writer lock is taken; only later ones under
//! it.

mod matching;
mod read_set;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use serde::Serialize;

use crate::document::Document;
use crate::engine::{Edit, Store, Transaction};
use crate::options::Durability;
use crate::query::{Aggregation, Find, Query};
use crate::revision::{DocumentId, Revision};
use crate::value::{Object, Patch, Value};
use crate::{Error, Result};
pub(crate) use matching::{delete_where, update_where};
pub(crate) use read_set::ReadPredicate;
use read_set::ReadSet;

/// The maximum number of attempts of a transaction.
const ATTEMPTS_MAX: u32 = 100;

/// One attempt of an optimistic transaction: it reads one snapshot and its own writes, and commits if no other
/// transaction changed what it read.
pub struct Attempt<'a> {
    transaction: Transaction<'a>,
    reads: ReadSet,
    edits: Vec<Edit>,
    /// The `_local` documents that are written with the edits.
    locals: Vec<(String, Value)>,
}

impl Attempt<'_> {
    /// The document `id`; `None` if it does not exist or is deleted.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&mut self, id: &str) -> Result<Option<Document>> {
        if !self.transaction.wrote(id) {
            self.reads.add_id(id);
        }
        self.transaction.get(id)
    }

    /// Runs a query. The transaction then depends on every document that matches the selector, even beyond a limit: a
    /// narrower selector causes fewer conflicts.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `Corrupt` if stored bytes are damaged.
    pub fn find(&mut self, query: impl Into<Query>) -> Result<Find> {
        let query = query.into();
        self.reads.add_selector(query.selector().matcher()?);
        Ok(self.transaction.snapshot()?.find(query))
    }

    /// Computes an aggregation, of what this transaction wrote too. The transaction then depends on every document that
    /// matches the selector.
    ///
    /// ```
    /// # use stemmadb::{Aggregation, Database, Value};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let total = Aggregation::parse(&r#"{"figures": {"total": {"sum": "price"}}}"#.parse()?)?;
    /// db.optimistic(|tx| {
    ///     tx.insert("solaris", &serde_json::json!({"price": 12}))?;
    ///     let rows = tx.aggregate(&total)?;
    ///     assert_eq!(rows[0].1.get("total"), Some(&Value::from(12)));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Aggregation::rows`].
    pub fn aggregate(&mut self, aggregation: &Aggregation) -> Result<Vec<(Value, Object)>> {
        self.reads.add_selector(aggregation.selector().matcher()?);
        aggregation.rows(&self.transaction.snapshot()?)
    }

    /// The speculative transaction of this attempt.
    pub(crate) fn transaction(&self) -> &Transaction<'_> {
        &self.transaction
    }

    /// Adds all documents to the read set for which `is_read` returns true, in their old or new version.
    pub(crate) fn depend(&mut self, is_read: ReadPredicate) {
        self.reads.add_predicate(is_read);
    }

    /// Creates the document `id`.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Invalid` if the id or the body is malformed.
    pub fn insert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Insert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Replaces the revision that was read.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if the document does not exist; `Invalid` if the body is
    /// malformed.
    pub fn replace<B: Serialize + ?Sized>(&mut self, id: &str, revision: &Revision, body: &B) -> Result<Revision> {
        self.edit(Edit::Replace { id: DocumentId::new(id)?, revision: *revision, body: Value::from_serialize(body)? })
    }

    /// Creates the document or replaces its current revision. This does not add the document to the read set, so
    /// concurrent writes of it are no conflict.
    ///
    /// # Errors
    /// `Invalid` if the id or the body is malformed.
    pub fn upsert<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<Revision> {
        self.edit(Edit::Upsert { id: DocumentId::new(id)?, body: Value::from_serialize(body)? })
    }

    /// Changes parts of the document `id`; returns the new revision, or the current one if nothing changes.
    ///
    /// # Errors
    /// `NotFound` if the document does not exist; `Invalid` if the patch is malformed or doesn't fit the body.
    pub fn update(&mut self, id: &str, patch: &Patch) -> Result<Revision> {
        self.edit(Edit::Update { id: DocumentId::new(id)?, revision: None, patch: patch.clone() })
    }

    /// Deletes the revision that was read; returns the revision of the deletion.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if the document does not exist.
    pub fn delete(&mut self, id: &str, revision: &Revision) -> Result<Revision> {
        self.edit(Edit::Delete { id: DocumentId::new(id)?, revision: *revision })
    }

    /// Writes the `_local` document `id` with the transaction, whatever its current revision.
    ///
    /// # Errors
    /// `Invalid` if the id doesn't begin with `_local/`, or the body is not an object.
    pub fn put_local<B: Serialize + ?Sized>(&mut self, id: &str, body: &B) -> Result<()> {
        let body = Value::from_serialize(body)?;
        if !DocumentId::new(id)?.is_local() || body.as_object().is_none() {
            return Err(Error::invalid(format!("`{id}` can't be written as a local document with this body"))
                .with_hint("its id begins with `_local/`, and its body is an object"));
        }
        self.locals.push((id.to_owned(), body));
        Ok(())
    }

    /// Applies one edit and returns its revision. The revision is final, except that of an upsert whose document
    /// another transaction writes first.
    ///
    /// # Errors
    /// As the method with the name of the edit. A failed edit leaves the transaction unchanged.
    pub fn edit(&mut self, edit: Edit) -> Result<Revision> {
        // An edit reads whether the document exists and its revision, unless its effect does not depend on them.
        if !matches!(edit, Edit::Upsert { .. } | Edit::Foreign { .. } | Edit::Depart { .. })
            && !self.transaction.wrote(edit.id().as_str())
        {
            self.reads.add_id(edit.id().as_str());
        }
        let revision = self.transaction.edit(edit.clone())?;
        self.edits.push(edit);
        Ok(revision)
    }
}

/// Whether the read set of an attempt is validated at commit. Tests disable it to show the anomalies that it prevents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadValidation {
    Enabled,
    #[cfg(any(test, feature = "testing", fuzzing))]
    Disabled,
}

/// Runs `work` as an optimistic transaction, repeatedly until it commits without a conflict.
pub(crate) fn optimistic<T>(
    store: &Store,
    durability: Durability,
    validation: ReadValidation,
    mut work: impl FnMut(&mut Attempt<'_>) -> Result<T>,
) -> Result<T> {
    for attempt_count in 0..ATTEMPTS_MAX {
        back_off(attempt_count);
        let transaction = store.speculate()?;
        let mut attempt = Attempt { transaction, reads: ReadSet::default(), edits: Vec::new(), locals: Vec::new() };
        let result = work(&mut attempt)?;
        if attempt.edits.is_empty() && attempt.locals.is_empty() || commit(store, durability, validation, attempt)? {
            return Ok(result);
        }
    }
    Err(Error::conflict(format!("this transaction conflicted with others {ATTEMPTS_MAX} times, so it was given up"))
        .with_hint(
            "let it read less: a narrower selector, fewer documents; or use `write`, which locks out other writers",
        ))
}

/// Commits the edits of an attempt. Returns false if its read set was changed.
fn commit(store: &Store, durability: Durability, validation: ReadValidation, attempt: Attempt<'_>) -> Result<bool> {
    let Attempt { transaction, reads, edits, locals } = attempt;
    let base = transaction.base();
    let prepared = edits.into_iter().map(|edit| store.parts.prepare(edit)).collect::<Result<Vec<_>>>()?;
    let is_validated = validation == ReadValidation::Enabled;
    let published = store.snapshot()?;
    if is_validated && reads.is_changed(base, base.sequence(), &published)? {
        return Ok(false);
    }
    store.write(durability, |transaction| {
        if is_validated && reads.is_changed(base, published.sequence(), transaction.base())? {
            return Ok(false);
        }
        prepared.into_iter().try_for_each(|edit| transaction.stage(edit).map(|_| ()))?;
        locals.iter().try_for_each(|(id, body)| transaction.put_local(id, None, Some(body)).map(|_| ()))?;
        Ok(true)
    })
}

/// Waits for a random time that grows with the number of failed attempts, so that conflicting transactions separate.
fn back_off(attempt_count: u32) {
    if attempt_count > 1 {
        let random = RandomState::new().build_hasher().finish();
        let longest_us = 20 << attempt_count.min(9);
        std::thread::sleep(Duration::from_micros(random % longest_us));
    }
}
