//! A question to a view on its way: narrowed step by step, then answered.

use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cell::{Cell, Reading};
use super::definition::View;
use super::reduce::row_value;
use super::registry::ViewRegistry;
use super::select::{self, RawGroups, RawRow, RawRows, RowRange, Select};
use super::within::{self, ViewSession};
use crate::Result;
use crate::document::Document;
use crate::engine::Progress;
use crate::revision::{DocumentId, Sequence};
use crate::value::Value;
use crate::value::collate::key;

/// Whether a view is brought up to date for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Before it answers. While a new version of a view is being made, the version before answers as it is.
    #[default]
    UpdateBefore,
    /// In the background, after it has answered with what it has.
    UpdateAfter,
    /// Not at all: it answers with what it has.
    NoUpdate,
}

/// A view of an open database: ask it with [`OpenView::query`]. Cheap to clone.
pub struct OpenView<V> {
    pub(super) views: Arc<ViewRegistry>,
    pub(super) cell: Arc<Cell>,
    types: PhantomData<fn() -> V>,
}

impl<V> Clone for OpenView<V> {
    fn clone(&self) -> Self {
        OpenView { views: self.views.clone(), cell: self.cell.clone(), types: PhantomData }
    }
}

/// What is known of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewInfo {
    /// Its name.
    pub name: String,
    /// How many rows it has.
    pub row_count: u64,
    /// Documents that could not be mapped, so that they have no rows.
    pub failed_count: u64,
    /// The first few of them, and why.
    pub failures: Vec<(DocumentId, String)>,
    /// Everything up to here is in it.
    pub sequence: Sequence,
    /// How far the making of its rows has come, in changes; none once they are made.
    pub progress: Option<Progress>,
}

/// Failures that are told.
const FAILURES_MAX: usize = 10;

impl<V: View> OpenView<V> {
    pub(super) fn new(views: Arc<ViewRegistry>, cell: Arc<Cell>) -> Self {
        OpenView { views, cell, types: PhantomData }
    }

    /// A query for all of its rows: narrow it, then ask for rows, reductions or groups.
    pub fn query(&self) -> ViewQuery<V> {
        ViewQuery {
            view: self.clone(),
            select: Select::default(),
            access: Access::default(),
            with_documents: false,
            failed: None,
            within: None,
        }
    }

    /// Brings it up to date, however long that takes: also a version that is being made in the background.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Unavailable` if files can't be written.
    pub fn update(&self) -> Result<()> {
        self.views.update(&self.cell)
    }

    /// What is known of it, without bringing it up to date.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn info(&self) -> Result<ViewInfo> {
        self.views.info(&self.cell, FAILURES_MAX)
    }
}

/// A question to a view. Nothing is read before it is asked.
#[must_use = "a query does nothing until it is run"]
pub struct ViewQuery<V> {
    view: OpenView<V>,
    select: Select,
    access: Access,
    with_documents: bool,
    failed: Option<crate::Error>,
    /// As a transaction sees it.
    within: Option<Reading>,
}

impl<V: View> ViewQuery<V> {
    fn among(mut self, ranges: Result<Vec<RowRange>>) -> Self {
        match ranges {
            Ok(ranges) => self.select.ranges = Some(ranges),
            Err(error) => self.failed = Some(error),
        }
        self
    }

    /// Only rows with this key. Of key, keys, range and prefix, the last one counts.
    pub fn key<Q: Serialize>(self, key: Q) -> Self {
        self.among(select::of_key(&key).map(|range| vec![range]))
    }

    /// Only rows with one of these keys, in the order given.
    pub fn keys<Q: Serialize>(self, keys: impl IntoIterator<Item = Q>) -> Self {
        self.among(keys.into_iter().map(|key| select::of_key(&key)).collect())
    }

    /// Only rows whose key lies in the range: `"a".."b"`, `(1960,)..=(1969, 12)`.
    pub fn range<Q: Serialize>(self, range: impl RangeBounds<Q>) -> Self {
        self.among(select::of_range(range.start_bound(), range.end_bound()).map(|range| vec![range]))
    }

    /// Only rows whose key begins so: with this text, or, where keys are lists or tuples, with these elements.
    pub fn prefix<Q: Serialize>(self, prefix: Q) -> Self {
        self.among(select::of_prefix(&prefix).map(|range| vec![range]))
    }

    /// From the last key to the first.
    pub fn descending(mut self) -> Self {
        self.select.descending = true;
        self
    }

    /// At most `count` rows or groups.
    pub fn limit(mut self, count: u64) -> Self {
        self.select.limit = Some(count);
        self
    }

    /// Leaves out the first `count` rows or groups.
    pub fn skip(mut self, count: u64) -> Self {
        self.select.skip = count;
        self
    }

    /// Whether the view is brought up to date for this.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// As a transaction sees it, or an attempt at one, with what it has written so far: exactly what the view would say of those documents. What
    /// it writes later shows when it is asked again. An attempt then depends on every document that has rows in the view, or gets some.
    ///
    /// Nothing is kept of this. It maps what was written since the view was last brought up to date, so do that before, outside:
    /// of a view that was never asked all documents are mapped.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// # let db = Database::in_memory();
    /// let stock = db.views().define("stock", &serde_json::json!({"key": "article", "value": "count", "reduce": "_sum"}))?;
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
        match within::reading(&self.view.cell, session) {
            Ok(reading) => self.within = Some(reading),
            Err(error) => self.failed = Some(error),
        }
        self
    }

    /// Each row with its document; where the value is an object with an `_id`, with the document of that id.
    pub fn with_documents(mut self) -> Self {
        self.with_documents = true;
        self
    }

    fn reading(&mut self) -> Result<Reading> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if let Some(reading) = self.within.take() {
            return Ok(reading);
        }
        self.view.views.read(&self.view.cell, self.access)
    }

    /// The rows, in the order of their keys, those of one key in the order in which their documents were first inserted; streamed.
    ///
    /// # Errors
    /// `Invalid` for keys that are none, or what a custom reducer refuses; `Corrupt` if stored bytes are damaged.
    pub fn rows(mut self) -> Result<ViewRows<V>> {
        let reading = self.reading()?;
        let is_stale = reading.is_stale;
        let with_documents = self.with_documents;
        Ok(ViewRows { rows: self.select.rows(reading), with_documents, is_stale, types: PhantomData })
    }

    /// The first row.
    ///
    /// # Errors
    /// As [`ViewQuery::rows`].
    pub fn first(self) -> Result<Option<ViewRow<V>>> {
        self.limit(1).rows()?.next().transpose()
    }

    /// How many rows there are; limit and skip play no part. With the reduction `_count` in O(log n), else by walking them.
    ///
    /// # Errors
    /// As [`ViewQuery::rows`].
    pub fn count(mut self) -> Result<u64> {
        let reading = self.reading()?;
        self.select.count(&reading)
    }

    /// What the rows come to; none if there are none. Limit and skip play no part. However many rows there are, this costs some tens of
    /// look-ups.
    ///
    /// # Errors
    /// As [`ViewQuery::rows`]; `Invalid` if the view has no reduction.
    pub fn reduce(mut self) -> Result<Option<V::Reduced>> {
        let reading = self.reading()?;
        self.select.reduce(&reading)?.map(|value| value.deserialize_into()).transpose()
    }

    /// The rows in groups of one key, each with what it comes to; streamed.
    ///
    /// # Errors
    /// As [`ViewQuery::reduce`].
    pub fn group(mut self) -> Result<Groups<V::Key, V::Reduced>> {
        let reading = self.reading()?;
        reading.reducer()?;
        Ok(Groups { groups: self.select.groups(reading, None), types: PhantomData })
    }

    /// The rows in groups: keys that are lists (or tuples) by their first `level` elements, which are the group's key; others whole.
    ///
    /// # Errors
    /// As [`ViewQuery::reduce`].
    pub fn group_level(mut self, level: usize) -> Result<Groups<Value, V::Reduced>> {
        let reading = self.reading()?;
        reading.reducer()?;
        Ok(Groups { groups: self.select.groups(reading, Some(level)), types: PhantomData })
    }
}

/// A row of a view.
#[derive(Debug, Clone)]
pub struct ViewRow<V: View> {
    /// The document that emitted it.
    pub id: DocumentId,
    /// What it was emitted under.
    pub key: V::Key,
    /// What was emitted.
    pub value: V::Value,
    /// The document, or the one that the value links to, if documents were asked for and it is there.
    pub document: Option<Document>,
}

/// The rows of an answer, in order. After an error there are no further rows.
pub struct ViewRows<V: View> {
    rows: RawRows,
    with_documents: bool,
    is_stale: bool,
    types: PhantomData<fn() -> V>,
}

impl<V: View> ViewRows<V> {
    /// Whether documents were changed since, or rows are of an older version of the view.
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

/// The groups of an answer, in order: key and reduction. After an error there are no further groups.
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
