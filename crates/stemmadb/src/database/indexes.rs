//! Declared secondary indexes and the automatic path index: [`Database::indexes`].

use super::Database;
use crate::Result;
use crate::engine::{Duplicates, IndexInfo};
use crate::index::Index;
use crate::options::Progress;
use crate::read::PathInfo;

/// Operations on secondary indexes. Made by [`Database::indexes`]; cheap.
///
/// Every field is indexed without any declaration; a declared index adds uniqueness, or serves several fields at once.
#[derive(Debug, Clone, Copy)]
pub struct Indexes<'a> {
    database: &'a Database,
}

impl<'a> Indexes<'a> {
    pub(super) fn new(database: &'a Database) -> Self {
        Indexes { database }
    }

    /// Declares an index and builds it; the index is complete on return.
    ///
    /// Other threads read and write during the build, and a crash only delays it. Declaring an identical index again
    /// costs nothing, so a program may declare its indexes at every start. Costs one read of every document, and one
    /// index row for each distinct value.
    ///
    /// ```
    /// # use stemmadb::{Database, ErrorKind, Index};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// db.indexes().create(Index::on("email").unique())?;
    /// db.insert("ada", &serde_json::json!({"email": "ada@example.org"}))?;
    /// let duplicate = db.insert("eve", &serde_json::json!({"email": "ada@example.org"})).unwrap_err();
    /// assert_eq!(duplicate.kind(), ErrorKind::Duplicate);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the definition is wrong, or a different index has this name; `Duplicate` if the index is unique and
    /// two documents share a value (the index is not declared then).
    pub fn create(&self, index: Index) -> Result<()> {
        self.create_with_progress(index, |_| ())
    }

    /// Same as [`Indexes::create`]; calls `progress` during the build, counting documents.
    ///
    /// # Errors
    /// Those of [`Indexes::create`].
    pub fn create_with_progress(&self, index: Index, mut progress: impl FnMut(Progress)) -> Result<()> {
        self.database.store().create_index(&index, &mut progress)
    }

    /// Removes a declared index. Queries stop using it at once; its space is freed in the background.
    ///
    /// # Errors
    /// `NotFound` if there is no index of this name.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.database.store().drop_index(name)
    }

    /// Lists the declared indexes in the order of declaration, and whether each is complete.
    pub fn list(&self) -> Vec<IndexInfo> {
        self.database.store().indexes()
    }

    /// Lists the documents that share a value in a unique index, grouped by value.
    ///
    /// Local writes are refused if they would create such a duplicate, but replicated revisions
    /// ([`Edit::Foreign`](crate::Edit::Foreign)) are always accepted, so that replicas converge. Costs a scan of the
    /// index.
    ///
    /// # Errors
    /// `NotFound` if there is no unique index of this name; `Corrupt` if stored bytes are damaged.
    pub fn duplicates(&self, name: &str) -> Result<Vec<Duplicates>> {
        self.database.store().duplicates(name)
    }

    /// Lists the indexed paths that occur in documents, sorted, with the number of documents that have each.
    ///
    /// Costs a read of the index entries of paths within arrays, and little for the others.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn paths(&self) -> Result<Vec<PathInfo>> {
        self.database.snapshot()?.path_infos()
    }
}
