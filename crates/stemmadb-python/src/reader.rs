//! What queries read: a database, its past, or a transaction.

use std::sync::Arc;

use stemmadb::{Aggregation, Document, Error, Object, Query, Snapshot, Value};
use stemmadb_client::{AnyDatabase, AnyFind, RemotePast};

use crate::errors::Result;
use crate::transaction::OpenTransaction;

/// A state of a database that can be read. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Reader {
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
pub(crate) enum ReadyFind {
    Find(Box<AnyFind>),
    /// The rows of a query in a remote transaction, which the server has already returned.
    Rows(Vec<Document>),
}

impl Reader {
    /// Reads a document.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Document>> {
        match self {
            Reader::Database(database) => database.get(id),
            Reader::Snapshot(snapshot) => snapshot.get(id),
            Reader::RemotePast(past) => past.get(id),
            Reader::Transaction(transaction) => transaction.get(id),
        }
    }

    /// Binds a query to this state.
    pub(crate) fn find(&self, query: Query) -> Result<ReadyFind> {
        Ok(ReadyFind::Find(Box::new(match self {
            Reader::Database(database) => database.find(query),
            Reader::Snapshot(snapshot) => AnyFind::Embedded(snapshot.find(query)),
            Reader::RemotePast(past) => AnyFind::Remote(past.find(query)),
            Reader::Transaction(transaction) => return transaction.find(query),
        })))
    }

    /// Computes the figures of an aggregation, as [`Aggregation::parse`] reads it.
    pub(crate) fn aggregate(&self, aggregation: &Value) -> Result<Vec<(Value, Object)>> {
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
}

impl ReadyFind {
    /// The query, if it can still be refined.
    ///
    /// # Errors
    /// `Invalid` in a transaction of a remote database.
    pub(crate) fn find(self) -> Result<AnyFind> {
        match self {
            ReadyFind::Find(find) => Ok(*find),
            ReadyFind::Rows(_) => Err(Error::invalid("a transaction of a remote database can't compute this")
                .with_hint("read the documents and compute it from them, or ask the database outside the transaction")),
        }
    }

    pub(crate) fn count(self) -> Result<u64> {
        match self {
            ReadyFind::Find(find) => find.count(),
            ReadyFind::Rows(rows) => Ok(rows.len() as u64),
        }
    }

    pub(crate) fn exists(self) -> Result<bool> {
        match self {
            ReadyFind::Find(find) => find.exists(),
            ReadyFind::Rows(rows) => Ok(!rows.is_empty()),
        }
    }

    pub(crate) fn first(self) -> Result<Option<Document>> {
        match self {
            ReadyFind::Find(find) => find.first(),
            ReadyFind::Rows(rows) => Ok(rows.into_iter().next()),
        }
    }
}
