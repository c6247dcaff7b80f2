//! Views of a remote database.

use std::ops::{Bound, RangeBounds};

use serde::Serialize;
use stemmadb::past::At;
use stemmadb::views::{ViewInfo, ViewRow};
use stemmadb::{Access, DeclaredView, DocumentId, Object, Result, Sequence, Value};
use stemmadb_wire::{Item, Operation};

use crate::convert::{at_value, document, into_text, missing_field, number, object, pair, progress, text};
use crate::database::RemoteDatabase;
use crate::find::RemoteRows;

/// Operations on the views of a remote database, with the methods of [`stemmadb::handles::Views`].
#[derive(Debug, Clone)]
pub struct RemoteViews {
    pub(crate) database: RemoteDatabase,
}

impl RemoteViews {
    /// Stores a view's definition (see [`DeclaredView`]) in a design document under `name`, and opens the view.
    ///
    /// # Errors
    /// `Invalid` if the definition is wrong; `Conflict` if the view's keys must be unique and documents share one;
    /// `Forbidden` if the user is no administrator of the database.
    pub fn define<D: Serialize + ?Sized>(&self, name: &str, definition: &D) -> Result<RemoteView> {
        let definition = Value::from_serialize(definition)?;
        self.database.request(Operation::ViewDefine, &object([("name", name.into()), ("definition", definition)]))?;
        Ok(self.view(name))
    }

    /// Opens the view `name`. One of JavaScript functions is named by its design document and view: `sales/by_author`.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Invalid` if its definition is wrong.
    pub fn open(&self, name: &str) -> Result<RemoteView> {
        let view = self.view(name);
        view.query().limit(0).access(Access::NoUpdate).rows()?.for_each(drop);
        Ok(view)
    }

    fn view(&self, name: &str) -> RemoteView {
        RemoteView { database: self.database.clone(), name: name.to_owned() }
    }

    /// Lists the stored definitions by name.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn definitions(&self) -> Result<Vec<(String, Value)>> {
        let (rows, _) = self.database.call_rows(Operation::ViewList, &Value::Null)?;
        let read = |row| pair(row).and_then(|(name, definition)| Ok((into_text(name)?, definition)));
        rows.into_iter().map(read).collect()
    }

    /// Removes a view: its rows, and its definition.
    ///
    /// # Errors
    /// `NotFound` if there is no such view; `Forbidden` if the user is no administrator of the database.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.database.request(Operation::ViewRemove, &object([("name", name.into())])).map(drop)
    }
}

/// A view of a remote database.
#[derive(Debug, Clone)]
pub struct RemoteView {
    database: RemoteDatabase,
    name: String,
}

impl RemoteView {
    /// Starts a query for all rows.
    pub fn query(&self) -> RemoteViewQuery {
        let arguments = [("name", Value::from(self.name.as_str()))].into_iter().collect();
        RemoteViewQuery { database: self.database.clone(), arguments, failed: None }
    }

    fn state(&self, update: bool) -> Result<Value> {
        let arguments = object([("name", self.name.as_str().into()), ("update", update.into())]);
        self.database.request(Operation::ViewInfo, &arguments)
    }

    /// Updates the view to the newest sequence.
    ///
    /// # Errors
    /// `NotFound` if there is no such view.
    pub fn update(&self) -> Result<()> {
        self.state(true).map(drop)
    }

    /// Returns row counts, mapping errors and position, without updating the view.
    ///
    /// # Errors
    /// `NotFound` if there is no such view.
    pub fn info(&self) -> Result<ViewInfo> {
        let state = self.state(false)?;
        let at = state.get("progress").and_then(progress);
        let sequence = Sequence::new(number(&state, "seq")?);
        let mut info = ViewInfo::new(&self.name, number(&state, "rows")?, sequence, at);
        info.failed_count = number(&state, "failed")?;
        for failure in state.get("failures").and_then(Value::as_array).unwrap_or_default() {
            let (id, error) = pair(failure.clone())?;
            info.failures.push((DocumentId::new(into_text(id)?)?, into_text(error)?));
        }
        Ok(info)
    }
}

/// A query of a remote view, with the methods of [`stemmadb::ViewQuery`].
#[must_use = "a query does nothing until it is run"]
pub struct RemoteViewQuery {
    database: RemoteDatabase,
    arguments: Object,
    failed: Option<stemmadb::Error>,
}

/// The arguments that select rows, of which one is in effect.
const SELECTIONS: [&str; 7] = ["key", "keys", "prefix", "start", "end", "start_excluded", "end_excluded"];

impl RemoteViewQuery {
    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    /// Sets an argument that selects rows, instead of those before.
    fn select<Q: Serialize>(mut self, name: &str, key: &Q) -> Self {
        SELECTIONS.iter().for_each(|name| drop(self.arguments.remove(name)));
        self.add(name, key)
    }

    fn add<Q: Serialize>(mut self, name: &str, key: &Q) -> Self {
        match Value::from_serialize(key) {
            Ok(key) => return self.set(name, key),
            Err(error) => self.failed = Some(error),
        }
        self
    }

    /// Selects the rows with this key. Of `key`, `keys`, `range` and `prefix`, the last call takes effect.
    pub fn key<Q: Serialize>(self, key: Q) -> Self {
        self.select("key", &key)
    }

    /// Selects the rows with any of these keys, in the given order.
    pub fn keys<Q: Serialize>(self, keys: impl IntoIterator<Item = Q>) -> Self {
        self.select("keys", &keys.into_iter().collect::<Vec<_>>())
    }

    /// Selects the rows with keys in the range.
    pub fn range<Q: Serialize>(self, range: impl RangeBounds<Q>) -> Self {
        let mut query = match range.start_bound() {
            Bound::Unbounded => SELECTIONS.iter().fold(self, |mut query, name| {
                query.arguments.remove(name);
                query
            }),
            Bound::Included(key) => self.select("start", key),
            Bound::Excluded(key) => self.select("start", key).set("start_excluded", true),
        };
        query = match range.end_bound() {
            Bound::Unbounded => query,
            Bound::Included(key) => query.add("end", key),
            Bound::Excluded(key) => query.add("end", key).set("end_excluded", true),
        };
        query
    }

    /// Selects the rows with keys that begin with this string or, if keys are arrays, with these elements.
    pub fn prefix<Q: Serialize>(self, prefix: Q) -> Self {
        self.select("prefix", &prefix)
    }

    /// Returns rows from the last key to the first.
    pub fn descending(self) -> Self {
        self.set("descending", true)
    }

    /// Returns at most `count` rows or groups.
    pub fn limit(self, count: u64) -> Self {
        self.set("limit", count)
    }

    /// Skips the first `count` rows or groups.
    pub fn skip(self, count: u64) -> Self {
        self.set("skip", count)
    }

    /// Sets whether the view is updated for this query. Default: [`Access::UpdateBefore`].
    pub fn access(self, access: Access) -> Self {
        self.set(
            "access",
            match access {
                Access::UpdateBefore => "update_before",
                Access::UpdateAfter => "update_after",
                Access::NoUpdate => "no_update",
            },
        )
    }

    /// Reads the view as of a point in the past. See [`stemmadb::ViewQuery::as_of`].
    pub fn as_of(self, at: impl Into<At>) -> Self {
        self.set("as_of", at_value(at.into()))
    }

    /// Returns each row with its document or, if the value is an object with an `_id`, with the document of that id.
    pub fn with_documents(self) -> Self {
        self.set("documents", true)
    }

    fn shaped(mut self, shape: &str) -> Result<(RemoteDatabase, Value)> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let RemoteViewQuery { database, arguments, .. } = self.set("shape", shape);
        Ok((database, Value::Object(arguments)))
    }

    /// Streams the rows in key order.
    ///
    /// # Errors
    /// `NotFound` if there is no such view; `Invalid` if a key can't be serialized.
    pub fn rows(self) -> Result<RemoteRows<ViewRow<DeclaredView>>> {
        let (database, arguments) = self.shaped("rows")?;
        RemoteRows::start(database, Operation::ViewQuery, &arguments, None, view_row)
    }

    /// Returns the first row.
    ///
    /// # Errors
    /// Those of [`RemoteViewQuery::rows`].
    pub fn first(self) -> Result<Option<ViewRow<DeclaredView>>> {
        self.limit(1).rows()?.next().transpose()
    }

    /// Counts the rows; ignores limit and skip.
    ///
    /// # Errors
    /// Those of [`RemoteViewQuery::rows`].
    pub fn count(self) -> Result<u64> {
        let (database, arguments) = self.shaped("count")?;
        database.request(Operation::ViewQuery, &arguments)?.as_u64().ok_or_else(|| missing_field("count"))
    }

    /// Reduces the rows; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`RemoteViewQuery::rows`]; `Invalid` if the view has no reduction.
    pub fn reduce(self) -> Result<Option<Value>> {
        let (database, arguments) = self.shaped("reduce")?;
        match database.request(Operation::ViewQuery, &arguments)? {
            Value::Array(mut reduced) => Ok(reduced.pop()),
            _ => Err(missing_field("reduction")),
        }
    }

    /// Groups the rows by key and reduces each group; streamed.
    ///
    /// # Errors
    /// Those of [`RemoteViewQuery::reduce`].
    pub fn group(self) -> Result<RemoteRows<(Value, Value)>> {
        let (database, arguments) = self.shaped("groups")?;
        RemoteRows::start(database, Operation::ViewQuery, &arguments, None, |_, row| pair(row.into_value()?))
    }

    /// Groups the rows by the first `level` elements of array keys, and reduces each group.
    ///
    /// # Errors
    /// Those of [`RemoteViewQuery::reduce`].
    pub fn group_level(self, level: usize) -> Result<RemoteRows<(Value, Value)>> {
        self.set("level", level as u64).group()
    }
}

fn view_row(database: &RemoteDatabase, row: Item) -> Result<ViewRow<DeclaredView>> {
    let mut row = row.into_value()?;
    let id = DocumentId::new(text(&row, "id")?)?;
    let document = row.get("document").map(|value| document(&database.shared.factory, value)).transpose()?;
    let mut take = |name| row.as_object_mut().and_then(|row| row.remove(name)).ok_or_else(|| missing_field(name));
    Ok(ViewRow { id, key: take("key")?, value: take("value")?, document })
}
