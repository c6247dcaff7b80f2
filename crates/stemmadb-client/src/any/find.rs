//! Queries on an embedded or remote database.

use std::time::Duration;

use stemmadb::aggregation::GroupPaths;
use stemmadb::{Cancellation, Document, DocumentId, Find, GroupBy, Number, QueryRows, Result, Summary, Value};

use crate::find::{RemoteFind, RemoteGroupBy, RemoteRows};

/// A query on either database.
#[must_use = "a query does nothing until it is run"]
pub enum AnyFind {
    /// On an embedded one.
    Embedded(Find),
    /// On a remote one.
    Remote(RemoteFind),
}

macro_rules! any_find {
    ($($(#[$doc:meta])+ $name:ident($($argument:ident: $kind:ty),*);)+) => {
        impl AnyFind {
            $($(#[$doc])+
            pub fn $name(self, $($argument: $kind),*) -> Self {
                match self {
                    AnyFind::Embedded(find) => AnyFind::Embedded(find.$name($($argument),*)),
                    AnyFind::Remote(find) => AnyFind::Remote(find.$name($($argument),*)),
                }
            })+
        }
    };
}

any_find! {
    /// Sorts ascending. See [`Find::sort`].
    sort(path: impl AsRef<str>);
    /// Sorts descending. See [`Find::sort_descending`].
    sort_descending(path: impl AsRef<str>);
    /// Limits the rows. See [`Find::limit`].
    limit(count: u64);
    /// Skips rows. See [`Find::skip`].
    skip(count: u64);
    /// Chooses fields. See [`Find::fields`].
    fields(paths: impl IntoIterator<Item = impl AsRef<str>>);
    /// Continues after a token. See [`Find::after`].
    after(token: impl Into<String>);
    /// Limits the time. See [`Find::time_limit`].
    time_limit(time: Duration);
    /// Refuses more rows. See [`Find::rows_max`].
    rows_max(count: u64);
    /// Stops when it is cancelled. See [`Find::cancelled_by`].
    cancelled_by(cancellation: &Cancellation);
}

impl AnyFind {
    /// Returns the documents. See [`Find::run`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn run(self) -> Result<AnyRows<Document>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.run()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.run()?)),
        })
    }

    /// Returns the ids. See [`Find::ids`].
    ///
    /// # Errors
    /// Those of [`Find::ids`].
    pub fn ids(self) -> Result<AnyRows<DocumentId>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.ids()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.ids()?)),
        })
    }

    /// Returns the chosen fields. See [`Find::values`].
    ///
    /// # Errors
    /// Those of [`Find::values`].
    pub fn values(self) -> Result<AnyRows<Value>> {
        Ok(match self {
            AnyFind::Embedded(find) => AnyRows::Embedded(find.values()?),
            AnyFind::Remote(find) => AnyRows::Remote(Box::new(find.values()?)),
        })
    }

    /// Returns all documents. See [`Find::documents`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// Returns the first document. See [`Find::first`].
    ///
    /// # Errors
    /// Those of [`Find::run`].
    pub fn first(self) -> Result<Option<Document>> {
        match self {
            AnyFind::Embedded(find) => find.first(),
            AnyFind::Remote(find) => find.first(),
        }
    }

    /// Counts the documents. See [`Find::count`].
    ///
    /// # Errors
    /// Those of [`Find::count`].
    pub fn count(self) -> Result<u64> {
        match self {
            AnyFind::Embedded(find) => find.count(),
            AnyFind::Remote(find) => find.count(),
        }
    }

    /// Returns the distinct values of a path. See [`Find::distinct`].
    ///
    /// # Errors
    /// Those of [`Find::distinct`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        match self {
            AnyFind::Embedded(find) => find.distinct(path),
            AnyFind::Remote(find) => find.distinct(path),
        }
    }

    /// Whether any document matches. See [`Find::exists`].
    ///
    /// # Errors
    /// Those of [`Find::exists`].
    pub fn exists(self) -> Result<bool> {
        match self {
            AnyFind::Embedded(find) => find.exists(),
            AnyFind::Remote(find) => find.exists(),
        }
    }

    /// Groups the documents that match. See [`Find::group_by`].
    pub fn group_by(self, paths: impl Into<GroupPaths>) -> AnyGroupBy {
        match self {
            AnyFind::Embedded(find) => AnyGroupBy::Embedded(find.group_by(paths)),
            AnyFind::Remote(find) => AnyGroupBy::Remote(find.group_by(paths)),
        }
    }
}

macro_rules! figures {
    ($($(#[$doc:meta])+ $name:ident -> $type:ty;)+) => {
        impl AnyFind {
            $($(#[$doc])+
            pub fn $name(self, path: impl AsRef<str>) -> Result<$type> {
                match self {
                    AnyFind::Embedded(find) => find.$name(path),
                    AnyFind::Remote(find) => find.$name(path),
                }
            })+
        }
    };
}

figures! {
    /// The smallest value at a path. See [`Find::min`].
    ///
    /// # Errors
    /// Those of [`Find::min`].
    min -> Option<Value>;
    /// The largest value at a path. See [`Find::max`].
    ///
    /// # Errors
    /// Those of [`Find::max`].
    max -> Option<Value>;
    /// Adds the numbers at a path. See [`Find::sum`].
    ///
    /// # Errors
    /// Those of [`Find::sum`].
    sum -> Number;
    /// The average of the numbers at a path. See [`Find::average`].
    ///
    /// # Errors
    /// Those of [`Find::average`].
    average -> Option<f64>;
    /// Count, sum, minimum and maximum of the numbers at a path. See [`Find::summary`].
    ///
    /// # Errors
    /// Those of [`Find::summary`].
    summary -> Summary;
}

/// Groups of a query on either database.
#[must_use = "a query does nothing until it is run"]
pub enum AnyGroupBy {
    /// On an embedded one.
    Embedded(GroupBy),
    /// On a remote one.
    Remote(RemoteGroupBy),
}

impl AnyGroupBy {
    /// Counts the documents of each group. See [`GroupBy::counts`].
    ///
    /// # Errors
    /// Those of [`GroupBy::counts`].
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        match self {
            AnyGroupBy::Embedded(groups) => groups.counts(),
            AnyGroupBy::Remote(groups) => groups.counts(),
        }
    }

    /// Summarizes the numbers at a path in each group. See [`GroupBy::summaries`].
    ///
    /// # Errors
    /// Those of [`GroupBy::summaries`].
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        match self {
            AnyGroupBy::Embedded(groups) => groups.summaries(path),
            AnyGroupBy::Remote(groups) => groups.summaries(path),
        }
    }
}

/// The rows of a query on either database.
pub enum AnyRows<T> {
    /// Of an embedded one.
    Embedded(QueryRows<T>),
    /// Of a remote one.
    Remote(Box<RemoteRows<T>>),
}

impl<T> AnyRows<T> {
    /// The token that continues after the last row. See [`QueryRows::token`].
    ///
    /// # Errors
    /// Those of [`QueryRows::token`].
    pub fn token(&self) -> Result<Option<String>> {
        match self {
            AnyRows::Embedded(rows) => rows.token(),
            AnyRows::Remote(rows) => rows.token(),
        }
    }
}

impl<T> Iterator for AnyRows<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            AnyRows::Embedded(rows) => rows.next(),
            AnyRows::Remote(rows) => rows.next(),
        }
    }
}
