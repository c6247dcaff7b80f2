//! Files attached to documents: [`Database::files`].

use std::io::Read;
use std::sync::Arc;

use super::Database;
use crate::Result;
use crate::engine::{Edit, SweepReport};
use crate::log::{Blob, BlobReader};
use crate::revision::{DocumentId, Revision};

/// Operations on the files attached to documents. Made by [`Database::files`]; cheap.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    database: &'a Database,
}

impl<'a> Files<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Files { database }
    }

    /// Stores file content and returns a handle to it.
    ///
    /// The content becomes part of a document with [`Transaction::attach`](crate::Transaction::attach), and is kept for
    /// at least as long as the handle lives. Equal content is stored once. Memory use is constant, whatever the length.
    ///
    /// Content of up to 64 KiB stays in the handle, without any I/O, until a transaction that refers to it writes it.
    /// Longer content is flushed to a file before this returns; so is content beyond the 32 MiB that all handles hold.
    ///
    /// # Errors
    /// Read errors of `content`; `Unavailable` if the disk is full or can't be written.
    pub fn store(&self, mut content: impl Read) -> Result<Arc<Blob>> {
        self.database.store().store_content(&mut content)
    }

    /// Attaches a file to a document, or replaces the file of that name; returns the document's new revision.
    ///
    /// Memory use is constant, whatever the length.
    ///
    /// ```
    /// # use std::io::Read;
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let first = db.insert("solaris", &serde_json::json!({"title": "Solaris"}))?;
    /// db.files().attach("solaris", &first, "cover.txt", "text/plain", &b"an ocean"[..])?;
    /// let mut cover = String::new();
    /// db.files().open("solaris", "cover.txt")?.expect("just attached").read_to_string(&mut cover)?;
    /// assert_eq!(cover, "an ocean");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Files::store`] and [`Transaction::attach`](crate::Transaction::attach).
    pub fn attach(
        &self,
        id: &str,
        revision: &Revision,
        name: &str,
        content_type: &str,
        content: impl Read,
    ) -> Result<Revision> {
        let content = self.store(content)?;
        let (name, content_type) = (name.to_owned(), content_type.to_owned());
        self.database.edit(Edit::Attach { id: DocumentId::new(id)?, revision: *revision, name, content_type, content })
    }

    /// Removes a file from a document; returns the document's new revision. Content that no document refers to is
    /// deleted later.
    ///
    /// # Errors
    /// `Conflict` if `revision` is not current; `NotFound` if there is no such document or file.
    pub fn detach(&self, id: &str, revision: &Revision, name: &str) -> Result<Revision> {
        self.database.edit(Edit::Detach { id: DocumentId::new(id)?, revision: *revision, name: name.to_owned() })
    }

    /// Opens the file `name` of the document `id` for reading and seeking, or returns `None` if there is no such file.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged or lost; `Unavailable` if it can't be read.
    pub fn open(&self, id: &str, name: &str) -> Result<Option<BlobReader>> {
        let snapshot = self.database.snapshot()?;
        match snapshot.get(id)? {
            Some(document) => snapshot.open_attachment(&document, name),
            None => Ok(None),
        }
    }

    /// Deletes file content that no document refers to. Background upkeep does this too, so calling it is optional.
    ///
    /// # Errors
    /// `Unavailable` if the disk can't be written; `Corrupt` if stored bytes are damaged.
    pub fn sweep(&self) -> Result<SweepReport> {
        self.database.store().sweep_content()
    }
}
