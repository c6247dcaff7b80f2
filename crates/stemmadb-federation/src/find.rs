//! Queries over all members.

use std::time::{Duration, Instant};

use stemmadb::aggregation::GroupPaths;
use stemmadb::{Cancellation, Document, Number, Object, Query, Result, Selector, Sort, Summary, Value};

use crate::federation::{Federation, Terms};
use crate::figures;
use crate::missing::MissingMembers;
use crate::rows::FederatedRows;
use crate::virtual_database::VirtualPast;

/// A query over all members of a federation. Building it reads nothing.
///
/// Rows are in the order of the sort, ties in order of the ids, as in one database. Without a sort, they are in the
/// order of the members, and within a member as its own query returns them.
///
/// Cost, for `n` members: a sorted query with a limit of `k` takes `n` queries that read no documents, about `k + n`
/// row keys, and the `k` documents of the result. If members may have common documents (see
/// [`Federation::disjoint`]), every read first adds the changes since the last one to what is known about common
/// documents; the first read reads the ids and revisions of all documents. A count or an aggregation additionally looks
/// up each copy that does not count in the index of its member, once.
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # use stemmadb_federation::Federation;
/// # fn main() -> stemmadb::Result<()> {
/// # let (north, south) = (Database::in_memory(), Database::in_memory());
/// for (at, db) in [&north, &south, &north].into_iter().enumerate() {
///     db.insert(&format!("book-{at}"), &serde_json::json!({"year": 1960 + at}))?;
/// }
/// let books = Federation::over([north, south])?;
/// let mut page = books.find(Selector::everything()).sort("year").limit(2).run()?;
/// assert_eq!(page.by_ref().count(), 2);
/// let token = page.token()?.expect("a further page");
/// let rest = books.find(Selector::everything()).sort("year").after(token).documents()?;
/// assert_eq!(rest[0].id().as_str(), "book-2");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct FederatedFind {
    pub(crate) federation: Federation,
    pub(crate) query: Query,
    time: Option<Duration>,
    missing: Option<MissingMembers>,
}

impl FederatedFind {
    pub(crate) fn new(federation: Federation, query: Query) -> Self {
        FederatedFind { federation, query, time: None, missing: None }
    }

    fn with(self, change: impl FnOnce(Query) -> Query) -> Self {
        FederatedFind { query: change(self.query), ..self }
    }

    /// Sorts by the value at `path`, ascending; documents without a value come first. Further calls add further paths.
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort(path))
    }

    /// Sorts by the value at `path`, descending; documents without a value come last.
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_descending(path))
    }

    /// Replaces the sort order.
    pub fn order(self, sort: Sort) -> Self {
        self.with(|query| query.order(sort))
    }

    /// Returns at most `count` rows, of all members together.
    pub fn limit(self, count: u64) -> Self {
        self.with(|query| query.limit(count))
    }

    /// Skips the first `count` rows, of all members together.
    pub fn skip(self, count: u64) -> Self {
        self.with(|query| query.skip(count))
    }

    /// Sets the fields that [`FederatedFind::values`] returns.
    pub fn fields<P: AsRef<str>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|query| query.fields(paths))
    }

    /// Continues after the row that a token refers to: see [`FederatedRows::token`].
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|query| query.after(token))
    }

    /// Fails with `Stopped`, naming the member, if the answer takes longer than `time`. The time starts when a terminal
    /// method is called, and includes reading the rows.
    pub fn deadline(self, time: Duration) -> Self {
        FederatedFind { time: Some(time), ..self }
    }

    /// Leaves out members that fail or don't answer before the deadline, and adds them to `missing`, which has to be
    /// read after the answer. Without it, they are errors.
    pub fn partial(self, missing: &MissingMembers) -> Self {
        FederatedFind { missing: Some(missing.clone()), ..self }
    }

    /// Fails with `Stopped` once `cancellation` is cancelled.
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.with(|query| query.cancelled_by(cancellation))
    }

    /// Reads a virtual database as it was. Pages of the past name it again.
    pub fn as_of(self, past: &VirtualPast) -> Self {
        FederatedFind { federation: self.federation.at(past), ..self }
    }

    /// The deadline, from now on.
    pub(crate) fn terms(&self) -> Terms {
        let time = self.time.or(self.query.execution_limits().0);
        Terms { deadline: time.and_then(|time| Instant::now().checked_add(time)), missing: self.missing.clone() }
    }

    /// Returns the documents as an iterator.
    ///
    /// # Errors
    /// Those of [`Find::run`](stemmadb::Find::run), with the name of the member; `Invalid` for a token of another query
    /// or of other members.
    pub fn run(self) -> Result<FederatedRows> {
        FederatedRows::start(self)
    }

    /// Returns all documents.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// Returns the first document.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn first(self) -> Result<Option<Document>> {
        self.limit(1).run()?.next().transpose()
    }

    /// Returns the chosen fields of each document; without [`FederatedFind::fields`], whole documents with `_id` and
    /// `_rev`.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn values(self) -> Result<Vec<Value>> {
        let query = self.query.clone();
        self.run()?.map(|document| query.project(&document?)).collect()
    }

    /// Counts the documents that match. Ignores sort, limit and skip, as all methods that compute figures.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn count(self) -> Result<u64> {
        figures::count(&self)
    }

    /// Whether any document matches.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn exists(self) -> Result<bool> {
        Ok(self.order(Sort::default()).first()?.is_some())
    }

    /// The distinct values at `path`, in collation order. See [`Find::distinct`](stemmadb::Find::distinct).
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        figures::distinct(&self, path.as_ref())
    }

    /// The smallest value at `path` in collation order.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn min(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        figures::extreme(&self, path.as_ref(), false)
    }

    /// The largest value at `path` in collation order.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`].
    pub fn max(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        figures::extreme(&self, path.as_ref(), true)
    }

    /// Count, sum, minimum and maximum of the numbers at `path`. The sum is exact before it is rounded once.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`]; `Invalid` if the sum exceeds the range of a double.
    pub fn summary(self, path: impl AsRef<str>) -> Result<Summary> {
        figures::summary(&self, path.as_ref())
    }

    /// The sum of the numbers at `path`.
    ///
    /// # Errors
    /// Those of [`FederatedFind::summary`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<Number> {
        Ok(self.summary(path)?.sum.unwrap_or_else(|| Number::from(0)))
    }

    /// The average of the numbers at `path`; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`FederatedFind::summary`].
    pub fn average(self, path: impl AsRef<str>) -> Result<Option<f64>> {
        Ok(self.summary(path)?.average())
    }

    /// Groups the documents by the value at a path, or by the values at several.
    pub fn group_by(self, paths: impl Into<GroupPaths>) -> FederatedGroupBy {
        FederatedGroupBy { find: self, paths: paths.into() }
    }
}

/// The documents of a [`FederatedFind`], grouped by values. See [`GroupBy`](stemmadb::GroupBy).
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # use stemmadb_federation::Federation;
/// # fn main() -> stemmadb::Result<()> {
/// # let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({"city": "Oslo"}))?;
/// south.insert("b", &serde_json::json!({"city": "Oslo"}))?;
/// let all = Federation::over([north, south])?;
/// let cities = all.find(Selector::everything()).group_by("city").counts()?;
/// assert_eq!(cities, [("Oslo".into(), 2)]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a query does nothing until it is run"]
pub struct FederatedGroupBy {
    pub(crate) find: FederatedFind,
    pub(crate) paths: GroupPaths,
}

impl FederatedGroupBy {
    /// Each value in collation order with its number of documents, of all members together.
    ///
    /// # Errors
    /// Those of [`FederatedFind::run`]; `Invalid` if there is no path, or more than eight; `Stopped` above 100,000
    /// groups.
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        figures::group_counts(&self)
    }

    /// Each value in collation order with a summary of the numbers at `path` in its group.
    ///
    /// # Errors
    /// Those of [`FederatedGroupBy::counts`]; `Invalid` if a sum exceeds the range of a double.
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        figures::group_summaries(&self, path.as_ref())
    }
}

/// An aggregation over all members of a federation. Building it reads nothing.
///
/// ```
/// # use stemmadb::Database;
/// # use stemmadb_federation::{Federation, MissingMembers};
/// # fn main() -> stemmadb::Result<()> {
/// # let (north, south) = (Database::in_memory(), Database::in_memory());
/// north.insert("a", &serde_json::json!({"price": 5}))?;
/// # south.clone().close()?;
/// let request = r#"{"figures": {"total": {"sum": "price"}}}"#.parse()?;
/// let missing = MissingMembers::new();
/// let rows = Federation::over([north, south])?.aggregation(&request).partial(&missing).rows()?;
/// assert_eq!(rows[0].1.get("total").and_then(|total| total.as_u64()), Some(5));
/// assert!(!missing.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an aggregation does nothing until it is run"]
pub struct FederatedAggregation {
    federation: Federation,
    aggregation: Value,
    within: Option<Selector>,
    time: Option<Duration>,
    missing: Option<MissingMembers>,
}

impl FederatedAggregation {
    pub(crate) fn new(federation: Federation, aggregation: Value) -> Self {
        FederatedAggregation { federation, aggregation, within: None, time: None, missing: None }
    }

    /// Computes the figures of only those documents that also match `selector`.
    pub fn within(self, selector: Selector) -> Self {
        FederatedAggregation { within: Some(selector), ..self }
    }

    /// As [`FederatedFind::deadline`].
    pub fn deadline(self, time: Duration) -> Self {
        FederatedAggregation { time: Some(time), ..self }
    }

    /// As [`FederatedFind::partial`].
    pub fn partial(self, missing: &MissingMembers) -> Self {
        FederatedAggregation { missing: Some(missing.clone()), ..self }
    }

    /// As [`FederatedFind::as_of`].
    pub fn as_of(self, past: &VirtualPast) -> Self {
        FederatedAggregation { federation: self.federation.at(past), ..self }
    }

    /// Computes the rows: the key and the figures of each group.
    ///
    /// # Errors
    /// Those of [`Federation::aggregate`].
    pub fn rows(self) -> Result<Vec<(Value, Object)>> {
        let deadline = self.time.and_then(|time| Instant::now().checked_add(time));
        let terms = Terms { deadline, missing: self.missing };
        figures::aggregate(&self.federation, &self.aggregation, self.within, &terms)
    }
}
