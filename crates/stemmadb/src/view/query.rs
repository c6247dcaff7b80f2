//! Queries of views, built step by step.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::definition::View;
use super::materialized::{MaterializedView, ViewReading};
use super::reduce::row_value;
use super::registry::ViewRegistry;
use super::select::{self, RawGroups, RawRow, RawRows, RowRange, Select};
use super::transaction::{self, ViewSession};
use crate::Result;
use crate::document::Document;
use crate::options::Progress;
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::value::Value;
use crate::value::collate::key;

/// Whether a query updates the view; set with [`ViewQuery::access`]. See [`View`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Update before answering. While a new version of a view is being built, the previous version answers without an
    /// update.
    #[default]
    UpdateBefore,
    /// Answer from the current contents, and update in the background.
    UpdateAfter,
    /// Answer from the current contents without an update.
    NoUpdate,
}

/// A view of an open database; query it with [`OpenView::query`]. Cheap to clone. See [`View`] for an example.
pub struct OpenView<V> {
    pub(super) views: Arc<ViewRegistry>,
    pub(super) materialized: Arc<MaterializedView>,
    types: PhantomData<fn() -> V>,
}

impl<V> Clone for OpenView<V> {
    fn clone(&self) -> Self {
        OpenView { views: self.views.clone(), materialized: self.materialized.clone(), types: PhantomData }
    }
}

/// Counts, errors and position of a view; returned by [`OpenView::info`]. See [`View`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewInfo {
    /// The view's name.
    pub name: String,
    /// The number of rows.
    pub row_count: u64,
    /// The number of documents that could not be mapped and therefore have no rows.
    pub failed_count: u64,
    /// The first few of these documents, with the errors.
    pub failures: Vec<(DocumentId, String)>,
    /// The sequence up to which changes are included.
    pub sequence: Sequence,
    /// Progress of building the rows, in changes; `None` once they are built.
    pub progress: Option<Progress>,
}

impl ViewInfo {
    /// What another process, such as a server, knows of a view without mapping errors.
    pub fn new(name: &str, row_count: u64, sequence: Sequence, progress: Option<Progress>) -> Self {
        let (failed_count, failures) = (0, Vec::new());
        ViewInfo { name: name.to_owned(), row_count, failed_count, failures, sequence, progress }
    }
}

/// Maximum number of mapping errors reported.
const FAILURES_MAX: usize = 10;

impl<V: View> OpenView<V> {
    pub(super) fn new(views: Arc<ViewRegistry>, materialized: Arc<MaterializedView>) -> Self {
        OpenView { views, materialized, types: PhantomData }
    }

    /// Starts a query for all rows.
    pub fn query(&self) -> ViewQuery<V> {
        ViewQuery {
            view: self.clone(),
            select: Select::default(),
            access: Access::default(),
            with_documents: false,
            failed: None,
            within: None,
            as_of: None,
        }
    }

    /// Updates the view to the newest published sequence; blocks until a version that is being built in the background
    /// is complete.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if files can't be written.
    pub fn update(&self) -> Result<()> {
        self.views.update(&self.materialized)
    }

    /// Returns row counts, mapping errors and position, without updating the view.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<ViewInfo> {
        self.views.info(&self.materialized, FAILURES_MAX)
    }
}

/// A query of a view, built step by step. Nothing is read before it is run. See [`View`] for an example.
#[must_use = "a query does nothing until it is run"]
pub struct ViewQuery<V> {
    view: OpenView<V>,
    select: Select,
    access: Access,
    with_documents: bool,
    failed: Option<crate::Error>,
    /// The view as a transaction sees it.
    within: Option<ViewReading>,
    as_of: Option<Snapshot>,
}

impl<V: View> ViewQuery<V> {
    fn with_ranges(mut self, ranges: Result<Vec<RowRange>>) -> Self {
        match ranges {
            Ok(ranges) => self.select.ranges = Some(ranges),
            Err(error) => self.failed = Some(error),
        }
        self
    }

    /// Selects the rows with this key. Of `key`, `keys`, `range` and `prefix`, the last call takes effect.
    pub fn key<Q: Serialize>(self, key: Q) -> Self {
        self.with_ranges(select::range_for_key(&key).map(|range| vec![range]))
    }

    /// Selects the rows with any of these keys, in the given order.
    pub fn keys<Q: Serialize>(self, keys: impl IntoIterator<Item = Q>) -> Self {
        self.with_ranges(keys.into_iter().map(|key| select::range_for_key(&key)).collect())
    }

    /// Selects the rows with keys in the range: `"a".."b"`, `(1960,)..=(1969, 12)`.
    pub fn range<Q: Serialize>(self, range: impl RangeBounds<Q>) -> Self {
        self.with_ranges(select::range_for_bounds(range.start_bound(), range.end_bound()).map(|range| vec![range]))
    }

    /// Selects the rows with keys that begin with this string or, if keys are arrays or tuples, with these elements.
    pub fn prefix<Q: Serialize>(self, prefix: Q) -> Self {
        self.with_ranges(select::range_for_prefix(&prefix).map(|range| vec![range]))
    }

    /// Returns rows from the last key to the first.
    pub fn descending(mut self) -> Self {
        self.select.descending = true;
        self
    }

    /// Returns at most `count` rows or groups.
    pub fn limit(mut self, count: u64) -> Self {
        self.select.limit = Some(count);
        self
    }

    /// Skips the first `count` rows or groups.
    pub fn skip(mut self, count: u64) -> Self {
        self.select.skip = count;
        self
    }

    /// Sets whether the view is updated for this query. Default: [`Access::UpdateBefore`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Reads the view as a transaction or an attempt at one sees it, including its own writes so far. Later writes are
    /// visible to later queries only. An attempt then depends on every document that has or gets rows in the view.
    ///
    /// The result is computed for this query and not stored. It maps every document written since the view was last
    /// updated, so update the view before the transaction: for a view that was never built, all documents are mapped.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let definition = serde_json::json!({"key": "article", "value": "count", "reduce": "_sum"});
    /// let stock = db.views().define("stock", &definition)?;
    /// db.write(|tx| {
    ///     tx.insert("delivery:1", &serde_json::json!({"article": "apple", "count": 5}))?;
    ///     let sum = stock.query().key("apple").within(tx).reduce()?;
    ///     assert_eq!(sum, Some(5.into()));
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn within<S: ViewSession>(mut self, session: &mut S) -> Self {
        match transaction::reading(&self.view.materialized, session) {
            Ok(reading) => self.within = Some(reading),
            Err(error) => self.failed = Some(error),
        }
        self
    }

    /// Reads the view as of a snapshot, also one of the [past](crate::Database::as_of): the rows that today's
    /// definition gives for the documents of then. [`ViewQuery::within`] has precedence.
    ///
    /// The result is computed for this query and not stored: costs reading and mapping each document that was changed
    /// since, besides what the query costs.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let definition = serde_json::json!({"key": "article", "value": "count", "reduce": "_sum"});
    /// let stock = db.views().define("stock", &definition)?;
    /// let delivery = db.insert("delivery:1", &serde_json::json!({"article": "apple", "count": 5}))?;
    /// let then = db.sequence();
    /// db.delete("delivery:1", &delivery)?;
    /// assert_eq!(stock.query().reduce()?, None);
    /// assert_eq!(stock.query().as_of(&db.as_of(then)?).reduce()?, Some(5.into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_of(mut self, snapshot: &Snapshot) -> Self {
        self.as_of = Some(snapshot.clone());
        self
    }

    /// Returns each row with its document or, if the value is an object with an `_id`, with the document of that id.
    pub fn with_documents(mut self) -> Self {
        self.with_documents = true;
        self
    }

    fn reading(&mut self) -> Result<ViewReading> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if let Some(reading) = self.within.take() {
            return Ok(reading);
        }
        match self.as_of.take() {
            Some(snapshot) => self.view.views.read_as_of(&self.view.materialized, self.access, &snapshot),
            None => self.view.views.read(&self.view.materialized, self.access),
        }
    }

    /// Streams the rows in key order, rows with equal keys in the order in which their documents were first inserted.
    ///
    /// # Errors
    /// `Invalid` if a key can't be serialized, or a custom reducer returns it; `Corrupt` if stored bytes are damaged.
    pub fn rows(mut self) -> Result<ViewRows<V>> {
        let reading = self.reading()?;
        let is_stale = reading.is_stale;
        let with_documents = self.with_documents;
        Ok(ViewRows { rows: self.select.rows(reading), with_documents, is_stale, types: PhantomData })
    }

    /// Returns the first row.
    ///
    /// # Errors
    /// Those of [`ViewQuery::rows`].
    pub fn first(self) -> Result<Option<ViewRow<V>>> {
        self.limit(1).rows()?.next().transpose()
    }

    /// Counts the rows; ignores limit and skip. O(log n) with the reduction `_count`, otherwise a scan.
    ///
    /// # Errors
    /// Those of [`ViewQuery::rows`].
    pub fn count(mut self) -> Result<u64> {
        let reading = self.reading()?;
        self.select.count(&reading)
    }

    /// Reduces the rows; `None` if there are none. Ignores limit and skip. Costs some tens of lookups, however many
    /// rows there are.
    ///
    /// # Errors
    /// Those of [`ViewQuery::rows`]; `Invalid` if the view has no reduction.
    pub fn reduce(mut self) -> Result<Option<V::Reduced>> {
        let reading = self.reading()?;
        self.select.reduce(&reading)?.map(|value| value.deserialize_into()).transpose()
    }

    /// Groups the rows by key and reduces each group; streamed.
    ///
    /// # Errors
    /// Those of [`ViewQuery::reduce`].
    pub fn group(mut self) -> Result<Groups<V::Key, V::Reduced>> {
        let reading = self.reading()?;
        reading.reducer()?;
        Ok(Groups { groups: self.select.groups(reading, None), types: PhantomData })
    }

    /// Groups the rows and reduces each group. Array and tuple keys are grouped by their first `level` elements, which
    /// are the group's key; other keys by the whole key.
    ///
    /// # Errors
    /// Those of [`ViewQuery::reduce`].
    pub fn group_level(mut self, level: usize) -> Result<Groups<Value, V::Reduced>> {
        let reading = self.reading()?;
        reading.reducer()?;
        Ok(Groups { groups: self.select.groups(reading, Some(level)), types: PhantomData })
    }
}

/// A row of a view. See [`View`] for an example.
#[derive(Debug, Clone)]
pub struct ViewRow<V: View> {
    /// Id of the document that emitted the row.
    pub id: DocumentId,
    /// The emitted key.
    pub key: V::Key,
    /// The emitted value.
    pub value: V::Value,
    /// The document, or the one that the value links to, if documents were requested and it exists.
    pub document: Option<Document>,
}

/// The rows of a query in order. Iteration ends after an error. See [`View`] for an example.
pub struct ViewRows<V: View> {
    rows: RawRows,
    with_documents: bool,
    is_stale: bool,
    types: PhantomData<fn() -> V>,
}

impl<V: View> ViewRows<V> {
    /// Whether documents changed since, or the rows are those of an older version of the view.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    fn read(&mut self) -> Result<Option<ViewRow<V>>> {
        let Some(RawRow { key, document, value }) = self.rows.next()? else { return Ok(None) };
        let snapshot = &self.rows.reading.snapshot;
        let id = snapshot.id(document)?;
        let value = row_value(&value)?;
        let document = match (self.with_documents, value.get("_id")) {
            (false, _) => None,
            (true, Some(linked)) => linked.as_str().map_or(Ok(None), |linked| snapshot.get(linked))?,
            (true, None) => snapshot.get(id.as_str())?,
        };
        Ok(Some(ViewRow {
            id,
            key: key::decode(&key)?.0.deserialize_into()?,
            value: value.deserialize_into()?,
            document,
        }))
    }
}

impl<V: View> Iterator for ViewRows<V> {
    type Item = Result<ViewRow<V>>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.rows.end();
        }
        read.transpose()
    }
}

/// The groups of a query in order: key and reduction. Iteration ends after an error. See [`View`] for an example.
pub struct Groups<K, R> {
    groups: RawGroups,
    types: PhantomData<fn() -> (K, R)>,
}

impl<K: DeserializeOwned, R: DeserializeOwned> Iterator for Groups<K, R> {
    type Item = Result<(K, R)>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.groups.next().and_then(|group| {
            let Some((key, reduced)) = group else { return Ok(None) };
            Ok(Some((key.deserialize_into()?, reduced.deserialize_into()?)))
        });
        if next.is_err() {
            self.groups.end();
        }
        next.transpose()
    }
}
