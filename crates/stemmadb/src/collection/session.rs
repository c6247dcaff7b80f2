//! The operations a collection needs from a database (one transaction per write), a transaction, or an attempt at one.

use super::database::{CollectionDatabase, CollectionFind};
use crate::document::Document;
use crate::engine::{Edit, Transaction};
use crate::query::{Find, Query};
use crate::revision::Revision;
use crate::transact::Attempt;
use crate::{Database, Result};

/// Reads and writes of a collection: implemented by [`Database`], [`Transaction`] and [`Attempt`]. See
/// [`Collection::within`](super::Collection::within) for an example.
pub trait Session: sealed::Sealed {
    /// A query of it.
    type Find: CollectionFind;

    /// Returns the document with this id, or `None`.
    ///
    /// # Errors
    /// `Corrupt` if the stored bytes are damaged.
    fn get(&mut self, id: &str) -> Result<Option<Document>>;

    /// Applies one edit.
    ///
    /// # Errors
    /// Those of the method with the edit's name.
    fn edit(&mut self, edit: Edit) -> Result<Revision>;

    /// Starts a query.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `Corrupt` if stored bytes are damaged.
    fn find(&mut self, query: Query) -> Result<Self::Find>;
}

/// A database as a session of which each operation is a transaction.
pub(super) struct OnDatabase<'a, D>(pub(super) &'a D);

impl<D: CollectionDatabase> Session for OnDatabase<'_, D> {
    type Find = D::Find;

    fn get(&mut self, id: &str) -> Result<Option<Document>> {
        self.0.get(id)
    }

    fn edit(&mut self, edit: Edit) -> Result<Revision> {
        self.0.edit(edit)
    }

    fn find(&mut self, query: Query) -> Result<D::Find> {
        Ok(self.0.find(query))
    }
}

impl Session for Database {
    type Find = Find;

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
    type Find = Find;

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
    type Find = Find;

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

    impl<D> Sealed for super::OnDatabase<'_, D> {}
    impl Sealed for crate::Database {}
    impl Sealed for crate::Transaction<'_> {}
    impl Sealed for crate::Attempt<'_> {}
}
