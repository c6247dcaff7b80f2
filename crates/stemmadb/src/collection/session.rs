//! Where a collection reads and writes: the database, each write a transaction of its own; a transaction; or an attempt at one.

use crate::document::Document;
use crate::engine::{Edit, Transaction};
use crate::query::{Find, Query};
use crate::revision::Revision;
use crate::transact::Attempt;
use crate::{Database, Result};

/// What a collection works upon: a [`Database`], a [`Transaction`] or an [`Attempt`].
pub trait Session: sealed::Sealed {
    /// The document `id`, or none.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    fn get(&mut self, id: &str) -> Result<Option<Document>>;

    /// Applies one edit.
    ///
    /// # Errors
    /// As the method of the edit's name.
    fn edit(&mut self, edit: Edit) -> Result<Revision>;

    /// What matches a query.
    ///
    /// # Errors
    /// `Invalid` if the query is wrong; `Corrupt` if stored bytes are damaged.
    fn find(&mut self, query: Query) -> Result<Find>;
}

impl Session for Database {
    fn get(&mut self, id: &str) -> Result<Option<Document>> {
        Database::get(self, id)
    }

    fn edit(&mut self, edit: Edit) -> Result<Revision> {
        Database::edit(self, edit)
    }

    fn find(&mut self, query: Query) -> Result<Find> {
        Ok(Database::find(self, query))
    }
}

impl Session for Transaction<'_> {
    fn get(&mut self, id: &str) -> Result<Option<Document>> {
        Transaction::get(self, id)
    }

    fn edit(&mut self, edit: Edit) -> Result<Revision> {
        Transaction::edit(self, edit)
    }

    fn find(&mut self, query: Query) -> Result<Find> {
        Transaction::find(self, query)
    }
}

impl Session for Attempt<'_> {
    fn get(&mut self, id: &str) -> Result<Option<Document>> {
        Attempt::get(self, id)
    }

    fn edit(&mut self, edit: Edit) -> Result<Revision> {
        Attempt::edit(self, edit)
    }

    fn find(&mut self, query: Query) -> Result<Find> {
        Attempt::find(self, query)
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for crate::Database {}
    impl Sealed for crate::Transaction<'_> {}
    impl Sealed for crate::Attempt<'_> {}
}
