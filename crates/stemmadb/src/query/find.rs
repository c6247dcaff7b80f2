//! The fluent query interface: builds a query and runs it against one snapshot.

mod group_by;
mod keys;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::execute::aggregate::{self, Summary, canonical};
use super::execute::explain::{self, Explanation};
use super::execute::hints;
use super::execute::rows::{self, Rows};
use super::language::document::{self, value_at};
use super::language::field::field;
use super::language::page_token;
use super::language::selector::Selector;
use super::language::sort::Sort;
use super::plan::catalog::CatalogVersion;
use super::plan::request::Query;
use super::source::limits::{Cancellation, LimitedSource};
use crate::Result;
use crate::cache::CachedResult;
use crate::document::Document;
use crate::engine::{Store, Transaction};
use crate::read::Snapshot;
use crate::revision::DocumentId;
use crate::value::{ElementPath, Number, Path, Value};

pub(in crate::query) use group_by::GROUP_PATHS_MAX;
pub use group_by::{GroupBy, GroupPaths};
pub use keys::KeyRows;

/// A query bound to one snapshot of the database. Building it reads nothing; [`Find::run`] and the other terminal
/// methods execute it.
///
/// The snapshot is taken when the `Find` is created, so all results of one `Find` are consistent. A query may be
/// narrowed, sorted and limited step by step:
///
/// ```
/// # use stemmadb::{Database, field};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// # db.insert("dune", &serde_json::json!({"title": "Dune", "year": 1965}))?;
/// # db.insert("solaris", &serde_json::json!({"title": "Solaris", "year": 1961}))?;
/// let sixties = || db.find(field("year").ge(1960).and(field("year").lt(1970)));
/// assert_eq!(sixties().count()?, 2);
/// let first = sixties().sort("year").limit(10).first()?.expect("two books match");
/// assert_eq!(first.id().as_str(), "solaris");
/// # Ok(())
/// # }
/// ```
#[must_use = "a query does nothing until it is run"]
pub struct Find {
    source: FindSource,
    query: Query,
}

/// Where the rows of a query come from.
enum FindSource {
    Snapshot(Snapshot),
    /// The newest snapshot of a store. A page is read as of the sequence that its token names instead.
    Newest(Result<Snapshot>, Arc<Store>),
    /// A cached result that is still valid. If the terminal method needs more than it contains, the newest snapshot of
    /// the store is read instead.
    Cached(CachedResult, Arc<Store>),
}

impl Find {
    /// Queries the newest state of a store.
    pub(crate) fn newest(store: &Arc<Store>, query: Query) -> Self {
        let source = match store.cached_lookup(&query) {
            Some(answer) => FindSource::Cached(answer, store.clone()),
            None => FindSource::Newest(store.snapshot(), store.clone()),
        };
        Find { source, query }
    }

    fn with(self, change: impl FnOnce(Query) -> Query) -> Self {
        Find { query: change(self.query), ..self }
    }

    /// Runs `ask` with the snapshot, within the limits of the query.
    pub(super) fn with_source<T>(
        self,
        execute: impl FnOnce(LimitedSource<Snapshot>, &Query) -> Result<T>,
    ) -> Result<T> {
        let snapshot = match self.source {
            FindSource::Snapshot(snapshot) => snapshot,
            FindSource::Newest(newest, store) => match self.query.token() {
                Some(token) => store.page_snapshot(token, newest?)?,
                None => newest?,
            },
            FindSource::Cached(_, store) => store.snapshot()?,
        };
        execute(LimitedSource::new(snapshot, self.query.limits()), &self.query)
    }

    fn extreme(self, path: &str, descending: bool) -> Result<Option<Value>> {
        if ElementPath::is_in(path) {
            let values = self.distinct(path)?;
            return Ok(if descending { values.into_iter().next_back() } else { values.into_iter().next() });
        }
        let has_value = field(path).exists();
        let query = self.query.narrowed(has_value);
        let query = if descending { query.sort_descending(path) } else { query.sort(path) };
        let found = Find { query: query.limit(1), ..self }.first()?;
        let Some(found) = found else { return Ok(None) };
        let value = value_at(&Path::parse(path)?, document::DocumentView::of(&found)?)?;
        value.map(|value| Ok(canonical(&value)?.1)).transpose()
    }

    /// Sorts by the value at `path`, ascending; documents without a value come first.
    ///
    /// Further calls add further sort paths, which break the ties of the earlier ones; the document id breaks the
    /// remaining ties. An unsorted query returns documents in order of their first insertion or, if it has a limit, in
    /// the order that finds its rows fastest.
    pub fn sort(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort(path))
    }

    /// Sorts by the value at `path`, descending; documents without a value come last. See [`Find::sort`].
    pub fn sort_descending(self, path: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_descending(path))
    }

    /// Sorts by the value at `path`, ascending, with strings in the collation order of a language: a BCP 47 tag such as
    /// `de`, or `und` for the root collation. See [`Query::sort_collated`].
    pub fn sort_collated(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_collated(path, language))
    }

    /// As [`Find::sort_collated`], descending.
    pub fn sort_collated_descending(self, path: impl AsRef<str>, language: impl AsRef<str>) -> Self {
        self.with(|query| query.sort_collated_descending(path, language))
    }

    /// Replaces the sort order by `sort`.
    pub fn order(self, sort: Sort) -> Self {
        self.with(|query| query.order(sort))
    }

    /// Returns at most `count` rows. Without a sort these are any `count` matching documents.
    pub fn limit(self, count: u64) -> Self {
        self.with(|query| query.limit(count))
    }

    /// Skips the first `count` rows.
    pub fn skip(self, count: u64) -> Self {
        self.with(|query| query.skip(count))
    }

    /// Sets the fields that [`Find::values`] returns of each document.
    pub fn fields<P: AsRef<str>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|query| query.fields(paths))
    }

    /// Continues after the row that a continuation token refers to; see [`QueryRows::token`].
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|query| query.after(token))
    }

    /// Fails with `Stopped` if execution takes longer than `time`. The time starts when a terminal method such as
    /// [`Find::run`] is called.
    pub fn time_limit(self, time: Duration) -> Self {
        self.with(|query| query.time_limit(time))
    }

    /// Fails with `Stopped` if there are more than `count` rows. Unlike [`Find::limit`], it never truncates the result
    /// silently.
    pub fn rows_max(self, count: u64) -> Self {
        self.with(|query| query.rows_max(count))
    }

    /// Fails with `Stopped` if a sort, a grouping or a set of documents would need more than about `bytes` of memory.
    pub fn memory_max(self, bytes: usize) -> Self {
        self.with(|query| query.memory_max(bytes))
    }

    /// Fails with `Stopped` once `cancellation` is cancelled.
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.with(|query| query.cancelled_by(cancellation))
    }

    /// Returns the matching documents as an iterator that reads them in batches.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `Stopped` if it reaches a limit; `Corrupt` if stored bytes are damaged.
    pub fn run(self) -> Result<QueryRows<Document>> {
        match self.source {
            FindSource::Cached(answer, _) if self.query.is_lookup() => {
                Ok(QueryRows(QueryRowsInner::cached(answer, self.query.into_selector())))
            }
            source => Find { source, ..self }.read(rows::documents),
        }
    }

    fn read<T>(
        self,
        open: impl FnOnce(LimitedSource<Snapshot>, &Query) -> Result<Rows<LimitedSource<Snapshot>, T>>,
    ) -> Result<QueryRows<T>> {
        Ok(QueryRows(QueryRowsInner::Executed(Box::new(self.with_source(open)?))))
    }

    /// Returns all matching documents in one vector.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// Returns the first matching document, or `None` if no document matches.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn first(self) -> Result<Option<Document>> {
        self.limit(1).run()?.next().transpose()
    }

    /// Returns the ids of the matching documents as an iterator. Reads a document only if the index cannot decide
    /// whether it matches.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn ids(self) -> Result<QueryRows<DocumentId>> {
        self.read(rows::ids)
    }

    /// Returns the selected fields of each matching document as an iterator; without [`Find::fields`], whole documents
    /// with `_id` and `_rev`.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn values(self) -> Result<QueryRows<Value>> {
        self.read(rows::values)
    }

    /// Returns the number of matching documents. Ignores sort, limit and skip.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn count(self) -> Result<u64> {
        self.with_source(rows::count)
    }

    /// Returns whether any document matches. Stops at the first match.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn exists(self) -> Result<bool> {
        let first = Find { query: self.query.unordered().limit(1), ..self }.ids()?.next().transpose()?;
        Ok(first.is_some())
    }

    /// Returns the distinct values at `path` of the matching documents, in collation order.
    ///
    /// Documents without a value contribute nothing. In a path, `[]` stands for each element of an array, of which
    /// scalars count: `tags[]` gives all tags. Equal values (`1` and `1.0`) are one value, and whole numbers are
    /// returned as integers. Ignores sort, limit and skip, as do all aggregating methods.
    ///
    /// Cost: one step per distinct value in the index, or reading the matching documents if that is cheaper.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        Ok(self.group_by(path.as_ref()).counts()?.into_iter().map(|(value, _)| value).collect())
    }

    /// Returns the smallest value at `path` of the matching documents in collation order, or `None` if no document has
    /// one.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn min(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), false)
    }

    /// Returns the largest value at `path` of the matching documents in collation order, or `None` if no document has
    /// one.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn max(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), true)
    }

    /// Returns count, sum, minimum and maximum of the numbers at `path`. Computed from the index, without reading
    /// documents that the index decides.
    ///
    /// Cost: for a query that matches every document, the database maintains the sum, so it takes two lookups, and one
    /// step per number written since the last checkpoint. For other queries it takes one step per distinct number at
    /// the path.
    ///
    /// ```
    /// # use stemmadb::{Database, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// # db.insert("a", &serde_json::json!({"price": 5}))?;
    /// # db.insert("b", &serde_json::json!({"price": 2.5}))?;
    /// let prices = db.find(field("price").gt(0)).summary("price")?;
    /// assert_eq!((prices.count, prices.average()), (2, Some(3.75)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Find::run`]; `Invalid` if the sum exceeds the range of a double.
    pub fn summary(self, path: impl AsRef<str>) -> Result<Summary> {
        self.with_source(|source, query| aggregate::summary(source, query, path.as_ref()))
    }

    /// Returns the sum of the numbers at `path`: an integer if it is a whole number that fits 64 bits, otherwise the
    /// double nearest to the exact sum; 0 if there are no numbers.
    ///
    /// # Errors
    /// As [`Find::summary`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<Number> {
        self.with_source(|source, query| aggregate::sum(source, query, path.as_ref()))
    }

    /// Returns the average of the numbers at `path`: their sum as a double divided by their count, or `None` if there
    /// are no numbers.
    ///
    /// # Errors
    /// As [`Find::summary`].
    pub fn average(self, path: impl AsRef<str>) -> Result<Option<f64>> {
        Ok(self.summary(path)?.average())
    }

    /// Groups the matching documents by the value at a path, or by the values at several; see [`GroupBy`].
    pub fn group_by(self, paths: impl Into<GroupPaths>) -> GroupBy {
        GroupBy { find: self, paths: paths.into() }
    }

    /// Returns the plan of the query and the estimated number of documents of each step, without running it. Reads a
    /// few index entries and no document. See [`Explanation`].
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain(self) -> Result<Explanation> {
        self.with_source(|source, query| explain::explain(source, query, false))
    }

    /// Returns a hint for each path of the query that no document has, although it leads to values through an array:
    /// `files.path` where the documents have `files[].path`. Reads no documents; useful when a query finds nothing.
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn hints(self) -> Result<Vec<String>> {
        self.with_source(|source, query| hints::hints(&source, query))
    }

    /// Runs the query and returns its plan with the actual row counts and times of each step. See [`Explanation`].
    ///
    /// # Errors
    /// As [`Find::run`].
    pub fn explain_analyze(self) -> Result<Explanation> {
        self.with_source(|source, query| explain::explain(source, query, true))
    }
}

impl Snapshot {
    /// Builds a query on this snapshot from a selector or a whole [`Query`]. See [`Find`] for an example.
    pub fn find(&self, query: impl Into<Query>) -> Find {
        Find { source: FindSource::Snapshot(self.clone()), query: query.into() }
    }
}

impl Transaction<'_> {
    /// Builds a query that sees this transaction's own writes, from a selector or a whole [`Query`].
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn find(&self, query: impl Into<Query>) -> Result<Find> {
        Ok(self.snapshot()?.find(query))
    }
}

impl fmt::Debug for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Find").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Store {
    /// Returns the snapshot that a page is read from: as of the sequence that its token names if the past is kept,
    /// otherwise `newest`.
    pub(crate) fn page_snapshot(&self, token: &str, newest: Snapshot) -> Result<Snapshot> {
        match page_token::sequence_of(token) {
            Some(at) if at != newest.sequence() && self.history_rules().keeps_past() => self.as_of(at),
            _ => Ok(newest),
        }
    }

    /// Returns the cached result of a query, if the query is prepared, looks up a single term, was answered recently,
    /// and no write has changed its result since.
    fn cached_lookup(&self, query: &Query) -> Option<CachedResult> {
        self.parts.refuse_if_closed().ok()?;
        let catalog = CatalogVersion::new(&self.parts.paths, self.parts.declared_generation());
        query.with_cached_term(catalog, |path, key| self.parts.cached_result(path, key))
    }
}

/// The rows of a query result, in order. An iterator; after an error it returns no further rows.
///
/// [`QueryRows::token`] returns a token with which a later query continues:
///
/// ```
/// # use stemmadb::{Database, Selector};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// # for id in ["a", "b", "c"] {
/// #     db.insert(id, &serde_json::json!({}))?;
/// # }
/// let mut page = db.find(Selector::everything()).sort("_id").limit(2).ids()?;
/// assert_eq!(page.by_ref().count(), 2);
/// let token = page.token()?.expect("a further page");
/// assert_eq!(db.find(Selector::everything()).sort("_id").after(token).ids()?.count(), 1);
/// # Ok(())
/// # }
/// ```
pub struct QueryRows<T>(QueryRowsInner<T>);

enum QueryRowsInner<T> {
    Executed(Box<Rows<LimitedSource<Snapshot>, T>>),
    Cached { answer: CachedResult, next: usize, make: fn(&Document) -> T, selector: Selector },
}

impl QueryRowsInner<Document> {
    fn cached(answer: CachedResult, selector: Selector) -> Self {
        QueryRowsInner::Cached { answer, next: 0, make: Document::clone, selector }
    }
}

impl<T> QueryRows<T> {
    /// Returns the token that continues after the last returned row: `None` before the first row and at the end of the
    /// result. It survives a restart; pass it to [`Find::after`] of the same query.
    ///
    /// # Errors
    /// `Invalid` if the selector cannot be serialized, which the token's query hash requires.
    pub fn token(&self) -> Result<Option<String>> {
        match &self.0 {
            QueryRowsInner::Executed(rows) => rows.token(),
            QueryRowsInner::Cached { answer, next, selector, .. } => rows::token_after(answer, *next, selector),
        }
    }

    /// Returns the number of documents read so far, to check or to return them.
    pub fn documents_read(&self) -> u64 {
        match &self.0 {
            QueryRowsInner::Executed(rows) => rows.documents_read(),
            QueryRowsInner::Cached { .. } => 0,
        }
    }
}

impl<T> Iterator for QueryRows<T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            QueryRowsInner::Executed(rows) => rows.next(),
            QueryRowsInner::Cached { answer, next, make, .. } => {
                let Some((_, document)) = answer.get(*next) else {
                    // There is no token after the end.
                    *next = usize::MAX;
                    return None;
                };
                *next += 1;
                Some(Ok(make(document)))
            }
        }
    }
}
