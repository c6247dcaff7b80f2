//! A query on its way: narrowed step by step, then run against one snapshot.

use super::explain::{self, Explanation};
use super::request::Query;
use super::rows::{self, Rows};
use super::sort::Sort;
use crate::Result;
use crate::revision::DocumentId;
use crate::store::{Document, Snapshot};
use crate::value::Value;

/// A query bound to the state of the database when it was begun. Nothing is read before it is run.
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct Find {
    snapshot: Result<Snapshot>,
    query: Query,
}

impl Find {
    pub(crate) fn new(snapshot: Result<Snapshot>, query: Query) -> Self {
        Find { snapshot, query }
    }

    fn with(self, change: impl FnOnce(Query) -> Query) -> Self {
        Find { query: change(self.query), ..self }
    }

    /// Orders by the value at `path`, ascending; documents without one come first. Where earlier paths leave a tie, this one
    /// decides, and at last the document id. Without any order, rows come as their documents were first inserted, or, with a limit, in
    /// whichever order finds them soonest.
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort(path))
    }

    /// Orders by the value at `path`, descending; documents without one come last.
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_descending(path))
    }

    /// Orders as `sort` says, whatever was asked before.
    pub fn order(self, sort: Sort) -> Self {
        self.with(|query| query.order(sort))
    }

    /// At most `count` rows. Without a sort, any so many.
    pub fn limit(self, count: u64) -> Self {
        self.with(|query| query.limit(count))
    }

    /// Leaves out the first `count` rows.
    pub fn skip(self, count: u64) -> Self {
        self.with(|query| query.skip(count))
    }

    /// What [`Find::values`] returns of each document.
    pub fn fields<P: AsRef<str>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|query| query.fields(paths))
    }

    /// Continues after the row that a continuation token stands for.
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|query| query.after(token))
    }

    /// The matching documents, streamed.
    ///
    /// # Errors
    /// `Invalid` if the query can't be run as it is; `Corrupt` if stored bytes are damaged.
    pub fn run(self) -> Result<Found<Document>> {
        Ok(Found(rows::documents(self.snapshot?, &self.query)?))
    }

    /// The matching documents, all at once.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// The first matching document.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn first(self) -> Result<Option<Document>> {
        self.limit(1).run()?.next().transpose()
    }

    /// The ids of the matching documents, streamed; bodies are read only where the index can't decide.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn ids(self) -> Result<Found<DocumentId>> {
        Ok(Found(rows::ids(self.snapshot?, &self.query)?))
    }

    /// The fields asked for of each matching document, streamed; whole documents with `_id` and `_rev` if none were.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn values(self) -> Result<Found<Value>> {
        Ok(Found(rows::values(self.snapshot?, &self.query)?))
    }

    /// How many documents match; sort, limit and skip play no part.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn count(self) -> Result<u64> {
        rows::count(self.snapshot?, &self.query)
    }

    /// How the query would be answered.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain(self) -> Result<Explanation> {
        explain::explain(self.snapshot?, &self.query, false)
    }

    /// How the query is answered: runs it and tells what each step found and took.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain_analyze(self) -> Result<Explanation> {
        explain::explain(self.snapshot?, &self.query, true)
    }
}

impl Snapshot {
    /// What matches a selector (or a whole [`Query`]) in this state of the database.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        Find::new(Ok(self.clone()), query.into())
    }
}

/// The rows of a result, in order. After an error there are no further rows.
pub struct Found<T>(Rows<Snapshot, T>);

impl<T> Found<T> {
    /// The token that continues after the row returned last: none before the first row, and none at the end. It survives a
    /// restart; pass it to [`Find::after`] of the same query.
    ///
    /// # Errors
    /// `Invalid` if the query can't be told from others.
    pub fn token(&self) -> Result<Option<String>> {
        self.0.token()
    }

    /// How many documents were read so far, to decide or to return.
    pub fn documents_read(&self) -> u64 {
        self.0.documents_read()
    }
}

impl<T> Iterator for Found<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}
