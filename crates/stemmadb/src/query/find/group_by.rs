//! Grouping by the values at one or several paths.

use super::Find;
use crate::query::execute::aggregate::{self, FigurePath, MissingGroup, Summary};
use crate::query::execute::hints;
use crate::value::Value;
use crate::{Error, Result};

/// The most paths to group by at once.
pub(in crate::query) const GROUP_PATHS_MAX: usize = 8;

/// The matching documents of a [`Find`], grouped by the values at one or several paths. Documents without a value at
/// one of them are in no group. With `[]` in a path, such as `tags[]`, a document is in the group of each of its scalar
/// values, once in each.
///
/// The value of a group by several paths is an array. Paths that enter the same array are paired by its elements:
/// `["lines[].product", "lines[].color"]` gives the combinations that occur in one line.
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// # db.insert("a", &serde_json::json!({"city": "Oslo", "year": 1, "price": 5}))?;
/// # db.insert("b", &serde_json::json!({"city": "Oslo", "year": 2, "price": 7}))?;
/// let groups = db.find(Selector::everything()).group_by("city").summaries("price")?;
/// assert_eq!(groups.len(), 1);
/// assert_eq!(groups[0].1.average(), Some(6.0));
/// let years = db.find(Selector::everything()).group_by(["city", "year"]).counts()?;
/// assert_eq!(years[1].0.to_json(), r#"["Oslo",2]"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct GroupBy {
    pub(super) find: Find,
    pub(super) paths: GroupPaths,
}

/// The paths of [`Find::group_by`]: one path, or an array, slice or vector of up to eight.
#[derive(Debug, Clone)]
pub struct GroupPaths(Vec<String>);

impl GroupBy {
    /// Returns each value in collation order with its number of documents. For one path, computed from the index, as
    /// [`Find::count`]; several paths read the matching documents.
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if there is no path, or more than eight.
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        let paths = self.paths.checked()?;
        self.find.with_source(|source, query| match paths.as_slice() {
            [path] => aggregate::distinct(source, query, path),
            paths => {
                let groups = aggregate::combined_groups(source, query, paths, &[])?;
                Ok(groups.into_iter().map(|group| (group.key, group.document_count)).collect())
            }
        })
    }

    /// Returns each value in collation order with a [`Summary`] of the numbers at `path` in its group. If both paths
    /// enter the same array, they are paired by element: `lines[].price` summed by `lines[].product`. For one path,
    /// computed from the index, unless so few documents match that reading them costs less; several paths read the
    /// matching documents.
    ///
    /// # Errors
    /// As [`GroupBy::counts`]; `Invalid` if a sum exceeds the range of a double.
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        let (paths, path) = (self.paths.checked()?, path.as_ref());
        self.find.with_source(|source, query| match paths.as_slice() {
            [group] => aggregate::summaries(source, query, group, path, MissingGroup::Omit),
            paths => {
                let figure = FigurePath { path, has_distinct: false };
                let groups = aggregate::combined_groups(source, query, paths, &[figure])?;
                groups.into_iter().map(|group| Ok((group.key, group.figures[0].numbers.finish(path)?))).collect()
            }
        })
    }

    /// Returns a hint for each path of the groups and the query that no document has, although it leads to values
    /// through an array; see [`Find::hints`].
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn hints(self) -> Result<Vec<String>> {
        let paths = self.paths.checked()?;
        self.find.with_source(|source, query| hints::hints_of(&source, query, &paths))
    }
}

impl GroupPaths {
    /// The paths, in order.
    pub fn paths(&self) -> &[String] {
        &self.0
    }

    /// The paths, in order, of which there are enough and not too many.
    ///
    /// # Errors
    /// `Invalid` if there is no path, or more than eight.
    pub fn checked(self) -> Result<Vec<String>> {
        match self.0.len() {
            0 => Err(Error::invalid("there is no path to group by")),
            1..=GROUP_PATHS_MAX => Ok(self.0),
            _ => Err(Error::invalid(format!("there are more than {GROUP_PATHS_MAX} paths to group by"))),
        }
    }
}

impl From<&str> for GroupPaths {
    fn from(path: &str) -> Self {
        GroupPaths(vec![path.to_owned()])
    }
}

impl From<&String> for GroupPaths {
    fn from(path: &String) -> Self {
        GroupPaths(vec![path.clone()])
    }
}

impl From<String> for GroupPaths {
    fn from(path: String) -> Self {
        GroupPaths(vec![path])
    }
}

impl<P: AsRef<str>, const N: usize> From<[P; N]> for GroupPaths {
    fn from(paths: [P; N]) -> Self {
        GroupPaths::from(paths.as_slice())
    }
}

impl<P: AsRef<str>> From<&[P]> for GroupPaths {
    fn from(paths: &[P]) -> Self {
        GroupPaths(paths.iter().map(|path| path.as_ref().to_owned()).collect())
    }
}

impl<P: AsRef<str>> From<Vec<P>> for GroupPaths {
    fn from(paths: Vec<P>) -> Self {
        GroupPaths::from(paths.as_slice())
    }
}
