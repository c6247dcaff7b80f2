//! Grouping by the value at one path.

use super::Find;
use crate::Result;
use crate::query::execute::aggregate::{self, Summary};
use crate::value::Value;

/// The matching documents of a [`Find`], grouped by the value at a path. Documents without a value there are in no
/// group. With `[]` in the path, such as `tags[]`, a document is in the group of each of its scalar
/// values, once in each.
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// # db.insert("a", &serde_json::json!({"city": "Oslo", "price": 5}))?;
/// # db.insert("b", &serde_json::json!({"city": "Oslo", "price": 7}))?;
/// let groups = db.find(Selector::everything()).group_by("city").summaries("price")?;
/// assert_eq!(groups.len(), 1);
/// assert_eq!(groups[0].1.average(), Some(6.0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct GroupBy {
    pub(super) find: Find,
    pub(super) path: String,
}

impl GroupBy {
    /// Returns each value in collation order with its number of documents. Computed from the index, as [`Find::count`].
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        let path = self.path;
        self.find.with_source(|source, query| aggregate::distinct(source, query, &path))
    }

    /// Returns each value in collation order with a [`Summary`] of the numbers at `path` in its group. If both paths
    /// enter the same array, they are paired by element: `lines[].price` summed by `lines[].product`. Computed from
    /// the index, unless so few documents match that reading them costs less.
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if a sum exceeds the range of a double.
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        let group = self.path;
        self.find.with_source(|source, query| aggregate::summaries(source, query, &group, path.as_ref()))
    }
}
