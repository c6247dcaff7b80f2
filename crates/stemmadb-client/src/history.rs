//! The past of a remote database.

use std::time::{Duration, UNIX_EPOCH};

use stemmadb::past::{At, Difference, PastRevision, Retention};
use stemmadb::{Document, Object, Query, Result, Revision, Selector, Sequence, Value};
use stemmadb_wire::{Item, Operation};

use crate::convert::{at_value, document, missing_field, number, object, revision_of};
use crate::database::RemoteDatabase;
use crate::find::RemoteRows;

/// Operations on the past of a remote database, with the methods of [`stemmadb::handles::History`]. Those that write
/// take an administrator of the database.
#[derive(Debug, Clone)]
pub struct RemoteHistory {
    pub(crate) database: RemoteDatabase,
}

impl RemoteHistory {
    /// The stored revisions of a document, deletions included, the newest first, each with its body and time.
    ///
    /// # Errors
    /// `NotFound` if the document never existed.
    pub fn revisions(&self, id: &str) -> Result<Vec<PastRevision>> {
        let (rows, _) = self.database.call_rows(Operation::Revisions, &object([("id", id.into())]))?;
        let read = |row: &Value| {
            let stored = row.get("document").ok_or_else(|| missing_field("document"))?;
            let stored = document(&self.database.shared.factory, stored)?;
            let time = row.get("time_us").and_then(Value::as_u64).map(|us| UNIX_EPOCH + Duration::from_micros(us));
            let author = row.get("author").and_then(Value::as_str).map(str::to_owned);
            Ok(PastRevision::new(stored, Sequence::new(number(row, "seq")?), time, author))
        };
        rows.iter().map(read).collect()
    }

    /// A document as it was at a point in the past, found by its own revisions.
    ///
    /// # Errors
    /// `NotFound` if its revision of then is not kept; `Invalid` for a sequence in the future.
    pub fn document_at(&self, id: &str, at: impl Into<At>) -> Result<Option<Document>> {
        let arguments = object([("id", id.into()), ("at", at_value(at.into()))]);
        self.database.request_document(Operation::DocumentAt, &arguments)
    }

    /// The documents that differ between two points in the past, in the order of their last changes; streamed.
    ///
    /// # Errors
    /// `Invalid` if `from` is after `to`; `NotFound` if a state is not kept.
    pub fn differences(
        &self,
        from: impl Into<At>,
        to: impl Into<At>,
        selector: Option<&Selector>,
    ) -> Result<RemoteRows<Difference>> {
        let mut arguments: Object =
            [("start", at_value(from.into())), ("end", at_value(to.into()))].into_iter().collect();
        if let Some(selector) = selector {
            arguments.insert("selector", selector.to_value()?);
        }
        RemoteRows::start(self.database.clone(), Operation::Differences, &Value::Object(arguments), None, difference)
    }

    /// Writes the last revision of a deleted document again, with its files; returns the new revision.
    ///
    /// # Errors
    /// `Conflict` if the document is not deleted; `NotFound` if its last revision is not kept.
    pub fn undelete(&self, id: &str) -> Result<Revision> {
        let arguments = self.database.durable(object([("id", id.into())]));
        revision_of(&self.database.request(Operation::Undelete, &arguments)?)
    }

    fn revert_arguments(query: Query, to: At) -> Result<Object> {
        Ok([("query", query.to_value()?), ("to", at_value(to))].into_iter().collect())
    }

    /// Sets every document that matches a query, now or then, to its state as of `to`; returns how many changed.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `NotFound` if the state is not kept.
    pub fn revert(&self, query: impl Into<Query>, to: impl Into<At>) -> Result<u64> {
        self.database.count_of_write(Operation::Revert, Self::revert_arguments(query.into(), to.into())?)
    }

    /// How many documents [`RemoteHistory::revert`] would change, without changing any.
    ///
    /// # Errors
    /// Those of [`RemoteHistory::revert`].
    pub fn count_reverts(&self, query: impl Into<Query>, to: impl Into<At>) -> Result<u64> {
        let mut arguments = Self::revert_arguments(query.into(), to.into())?;
        arguments.insert("count_only", true);
        self.database.count_of_write(Operation::Revert, arguments)
    }

    /// Sets how much of the past is kept from now on.
    ///
    /// # Errors
    /// `Forbidden` if the user is no administrator of the database.
    pub fn keep(&self, retention: Retention) -> Result<()> {
        self.database.request(Operation::Keep, &object([("retention", retention.to_value())])).map(drop)
    }

    /// Sets how much of the past is kept of documents whose ids begin with `prefix`; `None`: as of all others.
    ///
    /// # Errors
    /// `Invalid` for a bad prefix; `Forbidden` if the user is no administrator of the database.
    pub fn keep_of_prefix(&self, prefix: &str, retention: Option<Retention>) -> Result<()> {
        let retention = retention.map_or(Value::Null, Retention::to_value);
        self.database.request(Operation::Keep, &object([("prefix", prefix.into()), ("retention", retention)])).map(drop)
    }

    /// How much of the past is kept.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn retention(&self) -> Result<Retention> {
        let state = self.database.request(Operation::Retention, &Value::Null)?;
        Retention::parse(state.get("retention").ok_or_else(|| missing_field("retention"))?)
    }

    /// The prefixes that have a retention of their own, sorted.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn prefixes(&self) -> Result<Vec<(String, Retention)>> {
        let state = self.database.request(Operation::Retention, &Value::Null)?;
        let prefixes = state.get("prefixes").and_then(Value::as_object).ok_or_else(|| missing_field("prefixes"))?;
        prefixes.iter().map(|(prefix, kept)| Ok((prefix.to_owned(), Retention::parse(kept)?))).collect()
    }

    /// Bytes of the history files.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn byte_count(&self) -> Result<u64> {
        number(&self.database.request(Operation::Retention, &Value::Null)?, "bytes")
    }

    /// The lowest sequence as of which the database can be read.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn oldest(&self) -> Result<Sequence> {
        Ok(Sequence::new(number(&self.database.request(Operation::Retention, &Value::Null)?, "oldest")?))
    }

    /// Keeps the database readable as of `at`, whatever the retention, until the pin is released.
    ///
    /// # Errors
    /// `Conflict` if there is a pin with this name; `NotFound` if the state is not kept any more.
    pub fn pin(&self, name: &str, at: impl Into<At>) -> Result<Sequence> {
        let arguments = object([("name", name.into()), ("at", at_value(at.into()))]);
        let sequence = self.database.request(Operation::Pin, &arguments)?;
        sequence.as_u64().map(Sequence::new).ok_or_else(|| missing_field("sequence"))
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// `NotFound` if there is no such pin.
    pub fn release(&self, name: &str) -> Result<()> {
        self.database.request(Operation::Release, &object([("name", name.into())])).map(drop)
    }

    /// The pins, by name.
    ///
    /// # Errors
    /// `NotFound` if there is no such database.
    pub fn pins(&self) -> Result<Vec<(String, Sequence)>> {
        let state = self.database.request(Operation::Retention, &Value::Null)?;
        let pins = state.get("pins").and_then(Value::as_object).ok_or_else(|| missing_field("pins"))?;
        let pin = |(name, at): (&str, &Value)| Some((name.to_owned(), Sequence::new(at.as_u64()?)));
        pins.iter().map(pin).collect::<Option<_>>().ok_or_else(|| missing_field("pins"))
    }

    /// The sequence of the last transaction up to a point in the past.
    ///
    /// # Errors
    /// `NotFound` if it is not known any more.
    pub fn sequence_at(&self, at: impl Into<At>) -> Result<Sequence> {
        let sequence = self.database.request(Operation::SequenceAt, &object([("at", at_value(at.into()))]))?;
        sequence.as_u64().map(Sequence::new).ok_or_else(|| missing_field("sequence"))
    }
}

fn difference(database: &RemoteDatabase, row: Item) -> Result<Difference> {
    let row = row.into_value()?;
    let state = |name| row.get(name).map(|value| document(&database.shared.factory, value)).transpose();
    match (state("before")?, state("after")?) {
        (Some(before), Some(after)) => {
            let paths = row.get("paths").and_then(Value::as_array).unwrap_or_default();
            let paths = paths.iter().map(|path| path.as_str().map(str::to_owned)).collect::<Option<_>>();
            Ok(Difference::Changed { before, after, paths: paths.ok_or_else(|| missing_field("paths"))? })
        }
        (None, Some(after)) => Ok(Difference::Added(after)),
        (Some(before), None) => Ok(Difference::Removed(before)),
        (None, None) => Err(missing_field("difference")),
    }
}
