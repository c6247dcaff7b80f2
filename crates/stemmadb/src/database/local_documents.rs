//! `_local` documents: [`Database::local_documents`].

use serde::Serialize;

use super::Database;
use crate::engine::Edit;
use crate::revision::Revision;
use crate::value::Value;
use crate::{Error, Result};

/// Operations on `_local` documents, which are neither indexed, nor in the changes feed, nor replicated. Made by
/// [`Database::local_documents`]; cheap.
#[derive(Debug, Clone, Copy)]
pub struct LocalDocuments<'a> {
    database: &'a Database,
}

impl<'a> LocalDocuments<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        LocalDocuments { database }
    }

    /// Returns the revision number and the body of the document `id` (`_local/…`), if it exists.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn get(&self, id: &str) -> Result<Option<(u64, Value)>> {
        self.database.snapshot()?.local_value(id)
    }

    /// Writes the document `id` and returns its new revision number. `expected` is the current number, or `None` to
    /// overwrite.
    ///
    /// # Errors
    /// `Conflict` if the current number is not `expected`; `Invalid` for a bad id or body.
    pub fn put<B: Serialize + ?Sized>(&self, id: &str, expected: Option<u64>, body: &B) -> Result<u64> {
        let body = Value::from_serialize(body)?;
        self.database.write(|transaction| transaction.put_local(id, expected, Some(&body)))
    }

    /// Deletes the document `id`. `expected` is the current revision number, or `None` to delete any.
    ///
    /// # Errors
    /// `NotFound` if it doesn't exist; `Conflict` if the current number is not `expected`.
    pub fn delete(&self, id: &str, expected: Option<u64>) -> Result<()> {
        self.database.write(|transaction| transaction.put_local(id, expected, None).map(|_| ()))
    }

    /// Applies edits independently, as [`Database::bulk`] does, and writes the document `id` in the same transaction.
    /// Stops after an edit that fails with an error for which `continues` returns false. Returns the outcomes so far,
    /// from which `body` makes the document; if it makes none, only the edits are written.
    ///
    /// The document can thus record how far a series of bulk writes got, and agrees with them after a crash.
    ///
    /// ```
    /// # use stemmadb::{Database, DocumentId, Edit, Value};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let body = Value::from_serialize(&serde_json::json!({"n": 1}))?;
    /// let edits = vec![Edit::Insert { id: DocumentId::new("line-1")?, body }];
    /// let position = |outcomes: &[stemmadb::Result<_>]| Some(serde_json::json!({"line": outcomes.len()}));
    /// let outcomes = db.local_documents().put_with("_local/position", edits, |_| true, position)?;
    /// assert!(outcomes[0].is_ok() && db.local_documents().get("_local/position")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// For the whole call: `Invalid` for a bad id or body of the document, and those of [`Database::write`]. For each
    /// edit: those of the method with the edit's name.
    pub fn put_with<B: Serialize>(
        &self,
        id: &str,
        edits: Vec<Edit>,
        continues: impl Fn(&Error) -> bool,
        body: impl FnOnce(&[Result<Revision>]) -> Option<B>,
    ) -> Result<Vec<Result<Revision>>> {
        self.database.store().bulk_with(self.database.durability, edits, continues, |transaction, outcomes| {
            let Some(body) = body(outcomes) else { return Ok(()) };
            transaction.put_local(id, None, Some(&Value::from_serialize(&body)?)).map(|_| ())
        })
    }

    /// Lists the documents whose ids begin with `prefix` (at most 400 bytes), sorted by id, with their bodies.
    ///
    /// Costs one log read per document, and holds all of them in memory.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    pub fn list(&self, prefix: &str) -> Result<Vec<(String, Value)>> {
        Ok(self.database.snapshot()?.locals(prefix)?.into_iter().collect())
    }
}
