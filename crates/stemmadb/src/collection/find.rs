//! Queries whose rows are of your types.

use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::entry::{Entry, entry};
use crate::Result;
use crate::document::Document;
use crate::query::{Cancellation, Find, Found};

/// A query in a collection, narrowed step by step.
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct FindEntries<T> {
    find: Find,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> FindEntries<T> {
    pub(super) fn new(find: Find, prefix: String) -> Self {
        FindEntries { find, prefix, content: PhantomData }
    }

    fn with(self, change: impl FnOnce(Find) -> Find) -> Self {
        FindEntries { find: change(self.find), ..self }
    }

    /// As [`Find::sort`].
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.with(|find| find.sort(path))
    }

    /// As [`Find::sort_descending`].
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.with(|find| find.sort_descending(path))
    }

    /// As [`Find::limit`].
    pub fn limit(self, count: u64) -> Self {
        self.with(|find| find.limit(count))
    }

    /// As [`Find::skip`].
    pub fn skip(self, count: u64) -> Self {
        self.with(|find| find.skip(count))
    }

    /// As [`Find::after`].
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|find| find.after(token))
    }

    /// As [`Find::time_limit`].
    pub fn time_limit(self, time: Duration) -> Self {
        self.with(|find| find.time_limit(time))
    }

    /// As [`Find::cancelled_by`].
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.with(|find| find.cancelled_by(cancellation))
    }

    /// The rows, one after the other.
    ///
    /// # Errors
    /// As [`Find::run`]; of each row, `Invalid` if a document does not fit the type.
    pub fn run(self) -> Result<FoundEntries<T>> {
        Ok(FoundEntries { found: self.find.run()?, prefix: self.prefix, content: PhantomData })
    }

    /// All rows.
    ///
    /// # Errors
    /// As [`FindEntries::run`].
    pub fn entries(self) -> Result<Vec<Entry<T>>> {
        self.run()?.collect()
    }

    /// The first row, if there is one.
    ///
    /// # Errors
    /// As [`FindEntries::run`].
    pub fn first(self) -> Result<Option<Entry<T>>> {
        self.limit(1).run()?.next().transpose()
    }

    /// How many there are.
    ///
    /// # Errors
    /// As [`Find::count`].
    pub fn count(self) -> Result<u64> {
        self.find.count()
    }

    /// Whether there is one.
    ///
    /// # Errors
    /// As [`Find::exists`].
    pub fn exists(self) -> Result<bool> {
        self.find.exists()
    }

    /// The same query, untyped: for sums, groups, single fields, ids, and how it is answered.
    pub fn documents(self) -> Find {
        self.find
    }
}

/// The rows of a query in a collection, in order. After an error there are no further rows.
pub struct FoundEntries<T> {
    found: Found<Document>,
    prefix: String,
    content: PhantomData<fn() -> T>,
}

impl<T> FoundEntries<T> {
    /// The token that continues after the row returned last, as [`Found::token`].
    ///
    /// # Errors
    /// `Invalid` if the query can't be told from others.
    pub fn token(&self) -> Result<Option<String>> {
        self.found.token()
    }
}

impl<T: DeserializeOwned> Iterator for FoundEntries<T> {
    type Item = Result<Entry<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.found.next()?.and_then(|document| entry(&self.prefix, &document)))
    }
}
