//! `_local` documents: [`Database::local_documents`].

use serde::Serialize;

use super::Database;
use crate::Result;
use crate::value::Value;

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
