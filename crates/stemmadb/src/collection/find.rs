//! Typed queries over a collection.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::database::{CollectionFind, CollectionRows, Refinement};
use super::entry::{Entry, entry_from};
use crate::Result;
use crate::document::Document;
use crate::query::{Cancellation, Find, QueryRows};

/// A query over a collection, built step by step; created by [`Collection::find`](super::Collection::find). See
/// [`Collection`](crate::Collection) for an example.
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct FindEntries<T, F = Find> {
    find: F,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned, F: CollectionFind> FindEntries<T, F> {
    pub(super) fn new(find: F, prefix: String) -> Self {
        FindEntries { find, prefix, content: PhantomData }
    }

    fn refine(self, refinement: Refinement<'_>) -> Self {
        FindEntries { find: self.find.refine(refinement), ..self }
    }

    /// See [`Find::sort`].
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.refine(Refinement::Sort(path.as_ref()))
    }

    /// See [`Find::sort_descending`].
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.refine(Refinement::SortDescending(path.as_ref()))
    }

    /// See [`Find::limit`].
    pub fn limit(self, count: u64) -> Self {
        self.refine(Refinement::Limit(count))
    }

    /// See [`Find::skip`].
    pub fn skip(self, count: u64) -> Self {
        self.refine(Refinement::Skip(count))
    }

    /// See [`Find::after`].
    pub fn after(self, token: impl Into<String>) -> Self {
        self.refine(Refinement::After(token.into()))
    }

    /// See [`Find::time_limit`].
    pub fn time_limit(self, time: Duration) -> Self {
        self.refine(Refinement::TimeLimit(time))
    }

    /// See [`Find::cancelled_by`].
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.refine(Refinement::CancelledBy(cancellation))
    }

    /// Runs the query and streams its entries in order.
    ///
    /// # Errors
    /// As [`Find::run`]. Each entry can fail with `Invalid` if its document does not fit the type.
    pub fn run(self) -> Result<FoundEntries<T, F::Rows>> {
        Ok(FoundEntries { found: self.find.run()?, prefix: self.prefix, content: PhantomData })
    }

    /// Runs the query and collects all entries.
    ///
    /// # Errors
    /// As [`FindEntries::run`].
    pub fn entries(self) -> Result<Vec<Entry<T>>> {
        self.run()?.collect()
    }

    /// Returns the first entry, if there is one.
    ///
    /// # Errors
    /// As [`FindEntries::run`].
    pub fn first(self) -> Result<Option<Entry<T>>> {
        self.limit(1).run()?.next().transpose()
    }

    /// Counts the matching documents.
    ///
    /// # Errors
    /// As [`Find::count`].
    pub fn count(self) -> Result<u64> {
        self.find.count()
    }

    /// Whether any document matches.
    ///
    /// # Errors
    /// As [`Find::exists`].
    pub fn exists(self) -> Result<bool> {
        self.find.exists()
    }

    /// Returns the same query over untyped documents: for sums, groups, single fields, ids and [`Find::explain`].
    pub fn documents(self) -> F {
        self.find
    }
}

/// The entries that a query found, in order. Iteration ends after an error. See [`Collection`](crate::Collection) for
/// an example.
pub struct FoundEntries<T, R = QueryRows<Document>> {
    found: R,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T, R: CollectionRows> FoundEntries<T, R> {
    /// Returns a token that continues after the last returned entry; see [`QueryRows::token`].
    ///
    /// # Errors
    /// `Invalid` if the query has no unique representation to bind the token to.
    pub fn token(&self) -> Result<Option<String>> {
        self.found.token()
    }
}

impl<T: DeserializeOwned, R: CollectionRows> Iterator for FoundEntries<T, R> {
    type Item = Result<Entry<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.found.next()?.and_then(|document| entry_from(&self.prefix, &document)))
    }
}
