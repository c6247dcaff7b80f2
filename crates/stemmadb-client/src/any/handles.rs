//! Groups of operations on an embedded or remote database.

use std::io::{self, Read, Seek, SeekFrom};

use stemmadb::handles::{Files, History, Indexes, Schemas};
use stemmadb::past::{At, Difference, PastRevision, Retention};
use stemmadb::{
    BlobReader, Document, DocumentId, Index, IndexInfo, Query, Result, Revision, Schema, Selector, Sequence,
};

use crate::declarations::{RemoteIndexes, RemoteSchemas};
use crate::files::{RemoteFile, RemoteFiles};
use crate::history::RemoteHistory;

/// Defines a group of operations of either database, with the methods that both have.
macro_rules! handle {
    ($(#[$doc:meta])+ $any:ident: $embedded:ident, $remote:ty;
     $($(#[$method_doc:meta])+ $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        $(#[$doc])+
        pub enum $any<'a> {
            /// Of an embedded one.
            Embedded($embedded<'a>),
            /// Of a remote one.
            Remote($remote),
        }

        impl $any<'_> {
            $($(#[$method_doc])+
            pub fn $name(&self, $($argument: $type),*) -> Result<$result> {
                match self {
                    $any::Embedded(handle) => handle.$name($($argument),*),
                    $any::Remote(handle) => handle.$name($($argument),*),
                }
            })+
        }
    };
}

handle! {
    /// Operations on files of either database. See [`Files`].
    AnyFiles: Files, RemoteFiles;
    /// Attaches a file. See [`Files::attach`].
    ///
    /// # Errors
    /// Those of [`Files::attach`].
    attach(id: &str, revision: &Revision, name: &str, content_type: &str, content: impl Read) -> Revision;
    /// Removes a file. See [`Files::detach`].
    ///
    /// # Errors
    /// Those of [`Files::detach`].
    detach(id: &str, revision: &Revision, name: &str) -> Revision;
}

impl AnyFiles<'_> {
    /// Opens a file. See [`Files::open`].
    ///
    /// # Errors
    /// Those of [`Files::open`].
    pub fn open(&self, id: &str, name: &str) -> Result<Option<AnyFile>> {
        Ok(match self {
            AnyFiles::Embedded(files) => files.open(id, name)?.map(|file| AnyFile::Embedded(Box::new(file))),
            AnyFiles::Remote(files) => files.open(id, name)?.map(|file| AnyFile::Remote(Box::new(file))),
        })
    }
}

/// A file of either database.
pub enum AnyFile {
    /// Of an embedded one.
    Embedded(Box<BlobReader>),
    /// Of a remote one.
    Remote(Box<RemoteFile>),
}

impl Read for AnyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            AnyFile::Embedded(file) => file.read(buffer),
            AnyFile::Remote(file) => file.read(buffer),
        }
    }
}

impl Seek for AnyFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            AnyFile::Embedded(file) => file.seek(to),
            AnyFile::Remote(file) => file.seek(to),
        }
    }
}

handle! {
    /// Operations on declared indexes of either database. See [`Indexes`].
    AnyIndexes: Indexes, RemoteIndexes;
    /// Declares an index and builds it. See [`Indexes::create`].
    ///
    /// # Errors
    /// Those of [`Indexes::create`].
    create(index: Index) -> ();
    /// Removes an index. See [`Indexes::remove`].
    ///
    /// # Errors
    /// Those of [`Indexes::remove`].
    remove(name: &str) -> ();
}

impl AnyIndexes<'_> {
    /// Lists the declared indexes. See [`Indexes::list`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub fn list(&self) -> Result<Vec<IndexInfo>> {
        match self {
            AnyIndexes::Embedded(indexes) => Ok(indexes.list()),
            AnyIndexes::Remote(indexes) => indexes.list(),
        }
    }
}

handle! {
    /// Operations on the schemas of either database. See [`Schemas`].
    AnySchemas: Schemas, RemoteSchemas;
    /// Requires documents to match a schema. See [`Schemas::require`].
    ///
    /// # Errors
    /// Those of [`Schemas::require`].
    require(collection: &str, schema: Schema) -> ();
    /// Removes a schema. See [`Schemas::remove`].
    ///
    /// # Errors
    /// Those of [`Schemas::remove`].
    remove(collection: &str) -> ();
    /// Returns documents that violate a schema. See [`Schemas::violations`].
    ///
    /// # Errors
    /// Those of [`Schemas::violations`].
    violations(collection: &str, limit: usize) -> Vec<(DocumentId, String)>;
}

impl AnySchemas<'_> {
    /// Lists the schemas. See [`Schemas::list`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub fn list(&self) -> Result<Vec<(String, Schema)>> {
        match self {
            AnySchemas::Embedded(schemas) => Ok(schemas.list()),
            AnySchemas::Remote(schemas) => schemas.list(),
        }
    }
}

handle! {
    /// Operations on the past of either database. See [`History`].
    AnyHistory: History, RemoteHistory;
    /// The stored revisions of a document. See [`History::revisions`].
    ///
    /// # Errors
    /// Those of [`History::revisions`].
    revisions(id: &str) -> Vec<PastRevision>;
    /// A document as it was. See [`History::document_at`].
    ///
    /// # Errors
    /// Those of [`History::document_at`].
    document_at(id: &str, at: impl Into<At>) -> Option<Document>;
    /// Writes a deleted document again. See [`History::undelete`].
    ///
    /// # Errors
    /// Those of [`History::undelete`].
    undelete(id: &str) -> Revision;
    /// Sets documents to an earlier state. See [`History::revert`].
    ///
    /// # Errors
    /// Those of [`History::revert`].
    revert(query: impl Into<Query>, to: impl Into<At>) -> u64;
    /// Counts what [`AnyHistory::revert`] would change. See [`History::count_reverts`].
    ///
    /// # Errors
    /// Those of [`History::revert`].
    count_reverts(query: impl Into<Query>, to: impl Into<At>) -> u64;
    /// Sets how much of the past is kept. See [`History::keep`].
    ///
    /// # Errors
    /// Those of [`History::keep`].
    keep(retention: Retention) -> ();
    /// Keeps a state readable. See [`History::pin`].
    ///
    /// # Errors
    /// Those of [`History::pin`].
    pin(name: &str, at: impl Into<At>) -> Sequence;
    /// Removes a pin. See [`History::release`].
    ///
    /// # Errors
    /// Those of [`History::release`].
    release(name: &str) -> ();
    /// The sequence of a point in the past. See [`History::sequence_at`].
    ///
    /// # Errors
    /// Those of [`History::sequence_at`].
    sequence_at(at: impl Into<At>) -> Sequence;
}

impl AnyHistory<'_> {
    /// The documents that differ between two states. See [`History::differences`].
    ///
    /// # Errors
    /// Those of [`History::differences`].
    pub fn differences(
        &self,
        from: impl Into<At>,
        to: impl Into<At>,
        selector: Option<&Selector>,
    ) -> Result<Vec<Difference>> {
        match self {
            AnyHistory::Embedded(history) => history.differences(from, to, selector)?.collect(),
            AnyHistory::Remote(history) => history.differences(from, to, selector)?.collect(),
        }
    }

    /// How much of the past is kept. See [`History::retention`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub fn retention(&self) -> Result<Retention> {
        match self {
            AnyHistory::Embedded(history) => Ok(history.retention()),
            AnyHistory::Remote(history) => history.retention(),
        }
    }

    /// The pins. See [`History::pins`].
    ///
    /// # Errors
    /// `Unavailable` if a server can't be reached.
    pub fn pins(&self) -> Result<Vec<(String, Sequence)>> {
        match self {
            AnyHistory::Embedded(history) => Ok(history.pins()),
            AnyHistory::Remote(history) => history.pins(),
        }
    }
}
