//! Groups of matching documents with one value each.

use super::Find;
use crate::Result;
use crate::query::execute::aggregate::{self, Summary};
use crate::value::Value;

/// What matches, in groups of documents with one value at a path. Documents without a value there are in no group.
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct GroupBy {
    pub(super) find: Find,
    pub(super) path: String,
}

impl GroupBy {
    /// Each value in order, with how many documents have it. From the index, like [`Find::count`].
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        let path = self.path;
        self.find.with_source(|source, query| aggregate::distinct(source, query, &path))
    }

    /// Each value in order, with what the numbers at `path` come to in its group. From the index, unless there are so few
    /// documents that reading them costs less.
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if a sum is beyond the numbers.
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        let group = self.path;
        self.find.with_source(|source, query| aggregate::summaries(source, query, &group, path.as_ref()))
    }
}
