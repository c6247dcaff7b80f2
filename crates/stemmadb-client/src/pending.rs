//! Requests that were sent and whose answers are read later, so that several servers work at the same time.

use std::time::{Duration, Instant};

use stemmadb::merging::{PartialAggregation, RowKey};
use stemmadb::past::At;
use stemmadb::{Aggregation, Document, Object, Result, Sequence, Value};
use stemmadb_wire::{Item, Operation};

use crate::connection::{Connection, Failure};
use crate::convert::{at_value, document_of, missing_field, object, optional_document};
use crate::database::{RemoteDatabase, RemotePast};
use crate::find::RemoteFind;
use crate::pool::Redirects;

/// A request that was sent. [`Pending::wait`] reads its answer; dropping it closes the connection that it used.
#[must_use = "the answer has to be read"]
pub struct Pending<T> {
    database: RemoteDatabase,
    operation: Operation,
    arguments: Value,
    /// The connection and the request, or why it was not sent.
    sent: Option<std::result::Result<(Connection, u32), Failure>>,
    read: fn(&RemoteDatabase, Vec<Item>, Value) -> Result<T>,
    has_rows: bool,
}

/// The keys of a page of a sorted query on a remote database.
#[derive(Debug)]
#[non_exhaustive]
pub struct RemoteRowKeys {
    /// The keys, in order.
    pub keys: Vec<RowKey>,
    /// The sequence as of which further pages can be read, if the database keeps its past.
    pub page_sequence: Option<Sequence>,
}

impl<T> Pending<T> {
    fn send(
        database: RemoteDatabase,
        operation: Operation,
        arguments: Value,
        has_rows: bool,
        read: fn(&RemoteDatabase, Vec<Item>, Value) -> Result<T>,
    ) -> Self {
        let mut pending = Pending { database, operation, arguments, sent: None, read, has_rows };
        pending.sent = Some(pending.begin());
        pending
    }

    fn begin(&self) -> std::result::Result<(Connection, u32), Failure> {
        let shared = &self.database.shared;
        let mut connection = shared.check_out(&self.database.name, shared.deadline())?;
        let sent = connection.queue(self.operation, &self.database.name, None, &self.arguments);
        match sent.and_then(|id| connection.flush().map(|()| id)) {
            Ok(id) => Ok((connection, id)),
            Err(failure) => {
                shared.give_back(connection, &failure);
                Err(failure)
            }
        }
    }

    /// Waits for the answer at most until `deadline`, and never longer than the client's timeout. A lost connection is
    /// opened again, and the request repeated.
    ///
    /// # Errors
    /// Those of the operation; `Unavailable` if there is no answer in time.
    pub fn wait(mut self, deadline: Option<Instant>) -> Result<T> {
        let limit = self.database.shared.deadline();
        let deadline = deadline.map_or(limit, |deadline| deadline.min(limit));
        let (mut wait, mut lost_at, mut redirects) = (Duration::from_millis(10), None, Redirects::default());
        loop {
            let failure = match self.attempt(deadline) {
                Ok((items, value)) => return (self.read)(&self.database, items, value),
                Err(Failure::Answer(error)) => return Err(error),
                Err(Failure::Moved(moved)) => {
                    let RemoteDatabase { shared, name, .. } = &self.database;
                    redirects.follow(shared, name, moved, deadline).map_err(Failure::into_error)?;
                    continue;
                }
                Err(Failure::Lost(error)) => error,
            };
            let lost_for = lost_at.get_or_insert_with(Instant::now).elapsed();
            if Instant::now() + wait >= deadline || lost_for >= self.database.shared.options().reconnect_time {
                return Err(failure);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }

    fn attempt(&mut self, deadline: Instant) -> std::result::Result<(Vec<Item>, Value), Failure> {
        let (mut connection, id) = match self.sent.take() {
            Some(sent) => sent?,
            None => self.begin()?,
        };
        let shared = &self.database.shared;
        match connection.result(id, deadline) {
            Ok((mut items, reply)) => {
                shared.check_in(connection);
                let (last, value) = match self.has_rows {
                    true => reply.into_rows().map_err(Failure::Answer)?,
                    false => (vec![reply.into_item().map_err(Failure::Answer)?], Value::Null),
                };
                items.extend(last);
                Ok((items, value))
            }
            Err(failure) => {
                shared.give_back(connection, &failure);
                Err(failure)
            }
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(Ok((mut connection, id))) = self.sent.take() {
            // The answer would be read as that of a later request's stream.
            connection.cancel(id);
            self.database.shared.give_up(&connection);
        }
    }
}

fn single(items: Vec<Item>) -> Result<Value> {
    items.into_iter().next().ok_or_else(|| missing_field("value"))?.into_value()
}

impl RemoteFind {
    fn send<T>(
        self,
        operation: Operation,
        shape: Option<&str>,
        read: fn(&RemoteDatabase, Vec<Item>, Value) -> Result<T>,
    ) -> Result<Pending<T>> {
        let mut arguments = self.arguments()?;
        if let Some(shape) = shape {
            arguments.insert("shape", shape);
        }
        Ok(Pending::send(self.into_database(), operation, Value::Object(arguments), shape.is_some(), read))
    }

    /// Sends the query and returns without waiting; the answer holds the keys of all rows within the limit.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn send_keys(self) -> Result<Pending<RemoteRowKeys>> {
        self.send(Operation::Find, Some("keys"), |_, items, rest| {
            let key = |item: Item| RowKey::from_value(&item.into_value()?);
            let page_sequence = rest.get("at").and_then(Value::as_u64).map(Sequence::new);
            Ok(RemoteRowKeys { keys: items.into_iter().map(key).collect::<Result<_>>()?, page_sequence })
        })
    }

    /// Sends the query and returns without waiting; the answer holds all documents within the limit.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn send_documents(self) -> Result<Pending<Vec<Document>>> {
        self.send(Operation::Find, Some("documents"), |database, items, _| {
            items.into_iter().map(|item| document_of(&database.shared.factory, item)).collect()
        })
    }

    /// Sends the query and returns without waiting; the answer is the number of documents that match.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn send_count(self) -> Result<Pending<u64>> {
        self.send(Operation::Count, None, |_, items, _| single(items)?.as_u64().ok_or_else(|| missing_field("count")))
    }
}

impl RemoteDatabase {
    /// Sends a read of the document `id` and returns without waiting.
    pub fn send_get(&self, id: &str) -> Pending<Option<Document>> {
        let read = |database: &RemoteDatabase, items: Vec<Item>, _| {
            let item = items.into_iter().next().ok_or_else(|| missing_field("document"))?;
            optional_document(&database.shared.factory, item)
        };
        Pending::send(self.clone(), Operation::Get, object([("id", id.into())]), false, read)
    }

    /// Sends an aggregation, given as [`Aggregation::parse`] reads it, and returns without waiting; the answer is its
    /// state, for merging it with that of other databases. With `time`, the server stops after it.
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn send_aggregation(&self, aggregation: &Value, time: Option<Duration>) -> Result<Pending<PartialAggregation>> {
        self.send_aggregation_at(aggregation, time, None)
    }

    fn send_aggregation_at(
        &self,
        aggregation: &Value,
        time: Option<Duration>,
        at: Option<At>,
    ) -> Result<Pending<PartialAggregation>> {
        Aggregation::parse(aggregation)?;
        let mut arguments: Object =
            [("aggregation", aggregation.clone()), ("partial", true.into())].into_iter().collect();
        if let Some(time) = time {
            arguments.insert("time_ms", u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(at) = at {
            arguments.insert("as_of", at_value(at));
        }
        let read = |_: &RemoteDatabase, items, _| PartialAggregation::from_value(&single(items)?);
        Ok(Pending::send(self.clone(), Operation::Aggregate, Value::Object(arguments), false, read))
    }
}

impl RemotePast {
    /// As [`RemoteDatabase::send_aggregation`].
    ///
    /// # Errors
    /// `Invalid` if it is malformed.
    pub fn send_aggregation(&self, aggregation: &Value, time: Option<Duration>) -> Result<Pending<PartialAggregation>> {
        self.database.send_aggregation_at(aggregation, time, Some(self.at))
    }
}
