//! What queries read: a database, its past, or a transaction.

use std::sync::Arc;

use stemmadb::{Aggregation, Document, Error, Object, Query, Result, Snapshot, Value};

use super::OpenTransaction;
use crate::{AnyDatabase, AnyFind, RemotePast};

/// A state of a database that can be read. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Reader {
    /// The newest state.
    Database(AnyDatabase),
    /// An earlier state, or a snapshot.
    Snapshot(Snapshot),
    /// An earlier state of a remote database.
    RemotePast(RemotePast),
    /// What a transaction sees.
    Transaction(Arc<OpenTransaction>),
}

/// A query that is ready to run.
pub enum ReadyFind {
    /// A query of the library.
    Find(Box<AnyFind>),
    /// The rows of a query in a remote transaction, which the server has already returned.
    Rows(Vec<Document>),
}

impl Reader {
    /// Reads a document.
    ///
    /// # Errors
    /// Those of [`AnyDatabase::get`].
    pub fn get(&self, id: &str) -> Result<Option<Document>> {
        match self {
            Reader::Database(database) => database.get(id),
            Reader::Snapshot(snapshot) => snapshot.get(id),
            Reader::RemotePast(past) => past.get(id),
            Reader::Transaction(transaction) => transaction.get(id),
        }
    }

    /// Binds a query to this state.
    ///
    /// # Errors
    /// Those of a transaction.
    pub fn find(&self, query: Query) -> Result<ReadyFind> {
        Ok(ReadyFind::Find(Box::new(match self {
            Reader::Database(database) => database.find(query),
            Reader::Snapshot(snapshot) => AnyFind::Embedded(snapshot.find(query)),
            Reader::RemotePast(past) => AnyFind::Remote(past.find(query)),
            Reader::Transaction(transaction) => return transaction.find(query),
        })))
    }

    /// Computes the figures of an aggregation, as [`Aggregation::parse`] reads it.
    ///
    /// # Errors
    /// `Invalid` if the aggregation is malformed, and in a transaction of a remote database.
    pub fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
        match self {
            Reader::Database(AnyDatabase::Embedded(database)) => {
                Aggregation::parse(aggregation)?.rows(&database.snapshot()?)
            }
            Reader::Database(AnyDatabase::Remote(database)) => database.aggregate(aggregation),
            Reader::Snapshot(snapshot) => Aggregation::parse(aggregation)?.rows(snapshot),
            Reader::RemotePast(past) => past.aggregate(aggregation),
            Reader::Transaction(transaction) => transaction.aggregate(aggregation),
        }
    }

    /// The database itself.
    ///
    /// # Errors
    /// `Invalid` for an earlier state and in a transaction.
    pub fn database(&self) -> Result<&AnyDatabase> {
        match self {
            Reader::Database(database) => Ok(database),
            _ => Err(Error::invalid("only the database itself can do this")
                .with_hint("call it on what `open` returned, not on a transaction or an earlier state")),
        }
    }

    /// A database of this process.
    ///
    /// # Errors
    /// `Invalid` for a remote one.
    pub fn embedded(&self) -> Result<&stemmadb::Database> {
        match self.database()? {
            AnyDatabase::Embedded(database) => Ok(database),
            AnyDatabase::Remote(_) => Err(Error::invalid("only a database in this process can do this")
                .with_hint("use the command `stemma` where the server is")),
        }
    }
}

impl ReadyFind {
    /// The query, if it can still be refined.
    ///
    /// # Errors
    /// `Invalid` in a transaction of a remote database.
    pub fn find(self) -> Result<AnyFind> {
        match self {
            ReadyFind::Find(find) => Ok(*find),
            ReadyFind::Rows(_) => Err(Error::invalid("a transaction of a remote database can't compute this")
                .with_hint("read the documents and compute it from them, or ask the database outside the transaction")),
        }
    }

    /// The number of rows.
    ///
    /// # Errors
    /// Those of [`AnyFind::count`].
    pub fn count(self) -> Result<u64> {
        match self {
            ReadyFind::Find(find) => find.count(),
            ReadyFind::Rows(rows) => Ok(rows.len() as u64),
        }
    }

    /// Whether there is a row.
    ///
    /// # Errors
    /// Those of [`AnyFind::exists`].
    pub fn exists(self) -> Result<bool> {
        match self {
            ReadyFind::Find(find) => find.exists(),
            ReadyFind::Rows(rows) => Ok(!rows.is_empty()),
        }
    }

    /// The first row.
    ///
    /// # Errors
    /// Those of [`AnyFind::first`].
    pub fn first(self) -> Result<Option<Document>> {
        match self {
            ReadyFind::Find(find) => find.first(),
            ReadyFind::Rows(rows) => Ok(rows.into_iter().next()),
        }
    }
}
