//! Queries on a remote database.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stemmadb::aggregation::GroupPaths;
use stemmadb::past::At;
use stemmadb::{Cancellation, Document, DocumentId, Error, Number, Object, Query, Result, Sort, Summary, Value};
use stemmadb_wire::{Item, Operation};

use crate::connection::{Answer, Cancelling, Connection, Failure};
use crate::convert::{at_value, document_of, missing_field, pair, summary};
use crate::database::RemoteDatabase;
use crate::pool::Redirects;

/// A query on a remote database, with the methods of [`stemmadb::Find`].
#[must_use = "a query does nothing until it is run"]
pub struct RemoteFind {
    database: RemoteDatabase,
    query: Query,
    /// The state to read, if it is not the newest: the name of an argument, and its value.
    state: Option<(&'static str, Value)>,
}

impl RemoteFind {
    pub(crate) fn new(database: RemoteDatabase, query: Query) -> Self {
        RemoteFind { database, query, state: None }
    }

    /// Reads an open snapshot.
    pub(crate) fn in_snapshot(self, number: u64) -> Self {
        RemoteFind { state: Some(("snapshot", number.into())), ..self }
    }

    /// Reads the state at a point in the past.
    pub(crate) fn at_point(self, at: At) -> Self {
        RemoteFind { state: Some(("as_of", at_value(at))), ..self }
    }

    fn with(self, change: impl FnOnce(Query) -> Query) -> Self {
        RemoteFind { query: change(self.query), ..self }
    }

    /// Sorts by the value at `path`, ascending; documents without a value come first.
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

    /// Returns at most `count` rows.
    pub fn limit(self, count: u64) -> Self {
        self.with(|query| query.limit(count))
    }

    /// Skips the first `count` rows.
    pub fn skip(self, count: u64) -> Self {
        self.with(|query| query.skip(count))
    }

    /// Returns only these paths of each document, with [`RemoteFind::values`].
    pub fn fields<P: AsRef<str>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.with(|query| query.fields(paths))
    }

    /// Continues after the row that a token refers to.
    pub fn after(self, token: impl Into<String>) -> Self {
        self.with(|query| query.after(token))
    }

    /// Fails with `Stopped` if execution takes longer.
    pub fn time_limit(self, time: Duration) -> Self {
        self.with(|query| query.time_limit(time))
    }

    /// Fails with `Stopped` if there are more rows.
    pub fn rows_max(self, count: u64) -> Self {
        self.with(|query| query.rows_max(count))
    }

    /// Fails with `Stopped` if execution needs more memory.
    pub fn memory_max(self, bytes: usize) -> Self {
        self.with(|query| query.memory_max(bytes))
    }

    /// Fails with `Stopped` once `cancellation` is cancelled; the server stops, too.
    pub fn cancelled_by(self, cancellation: &Cancellation) -> Self {
        self.with(|query| query.cancelled_by(cancellation))
    }

    pub(crate) fn into_database(self) -> RemoteDatabase {
        self.database
    }

    pub(crate) fn arguments(&self) -> Result<Object> {
        let mut arguments = Object::new();
        arguments.insert("query", self.query.to_value()?);
        let (time, rows, memory) = self.query.execution_limits();
        if let Some(time) = time {
            arguments.insert("time_ms", u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        }
        if let Some(rows) = rows {
            arguments.insert("rows_max", rows);
        }
        if let Some(bytes) = memory {
            arguments.insert("memory_max", bytes as u64);
        }
        if let Some(key) = self.query.first_after() {
            arguments.insert("after_key", key.to_value());
        }
        if let Some((name, state)) = &self.state {
            arguments.insert(*name, state.clone());
        }
        Ok(arguments)
    }

    fn rows<T>(self, shape: &str, read: Reader<T>) -> Result<RemoteRows<T>> {
        let mut arguments = self.arguments()?;
        arguments.insert("shape", shape);
        let cancellation = self.query.cancellation().cloned();
        let time = self.query.execution_limits().0;
        RemoteRows::start_within(time, self.database, Operation::Find, &Value::Object(arguments), cancellation, read)
    }

    /// Runs the query; returns its documents.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `Stopped` if it exceeds a limit.
    pub fn run(self) -> Result<RemoteRows<Document>> {
        self.rows("documents", |database, row| document_of(&database.shared.factory, row))
    }

    /// Runs the query; returns all its documents.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn documents(self) -> Result<Vec<Document>> {
        self.run()?.collect()
    }

    /// Returns the first document.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn first(self) -> Result<Option<Document>> {
        self.limit(1).run()?.next().transpose()
    }

    /// Runs the query; returns the ids of its documents.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn ids(self) -> Result<RemoteRows<DocumentId>> {
        self.rows("ids", |_, row| DocumentId::new(row.into_value()?.as_str().ok_or_else(|| missing_field("id"))?))
    }

    /// Runs the query; returns the chosen fields of its documents.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn values(self) -> Result<RemoteRows<Value>> {
        self.rows("values", |_, row| row.into_value())
    }

    /// Sends a request that ends when the query is cancelled.
    fn request(&self, operation: Operation, arguments: Object) -> Result<Value> {
        let request = || self.database.request(operation, &Value::Object(arguments));
        match self.query.cancellation() {
            Some(cancellation) => cancellation.during(request),
            None => request(),
        }
    }

    /// Counts the documents that match.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn count(self) -> Result<u64> {
        let count = self.request(Operation::Count, self.arguments()?)?;
        count.as_u64().ok_or_else(|| missing_field("count"))
    }

    /// Whether any document matches.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn exists(self) -> Result<bool> {
        Ok(self.limit(1).ids()?.next().transpose()?.is_some())
    }

    /// The distinct values at a path, in collation order.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn distinct(self, path: impl AsRef<str>) -> Result<Vec<Value>> {
        match self.request(Operation::Distinct, self.with_path(path.as_ref())?)? {
            Value::Array(values) => Ok(values),
            _ => Err(missing_field("values")),
        }
    }

    fn with_path(&self, path: &str) -> Result<Object> {
        let mut arguments = self.arguments()?;
        arguments.insert("path", path);
        Ok(arguments)
    }

    fn extreme(self, path: &str, largest: bool) -> Result<Option<Value>> {
        let mut arguments = self.with_path(path)?;
        arguments.insert("largest", largest);
        match self.request(Operation::Extreme, arguments)? {
            Value::Array(mut values) => Ok(values.pop()),
            _ => Err(missing_field("value")),
        }
    }

    /// The smallest value at a path in collation order; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn min(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), false)
    }

    /// The largest value at a path in collation order; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn max(self, path: impl AsRef<str>) -> Result<Option<Value>> {
        self.extreme(path.as_ref(), true)
    }

    /// Count, sum, minimum and maximum of the numbers at a path.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn summary(self, path: impl AsRef<str>) -> Result<Summary> {
        summary(&self.request(Operation::Summary, self.with_path(path.as_ref())?)?)
    }

    /// The sum of the numbers at a path.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<Number> {
        self.summary(path)?.sum.ok_or_else(|| missing_field("sum"))
    }

    /// The average of the numbers at a path; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn average(self, path: impl AsRef<str>) -> Result<Option<f64>> {
        Ok(self.summary(path)?.average())
    }

    /// Groups the documents that match by the value at a path, or by the values at several.
    pub fn group_by(self, paths: impl Into<GroupPaths>) -> RemoteGroupBy {
        RemoteGroupBy { find: self, paths: paths.into() }
    }

    /// The plan of the query, as text.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn explain(self) -> Result<String> {
        let plan = self.request(Operation::Explain, self.arguments()?)?;
        plan.as_str().map(str::to_owned).ok_or_else(|| missing_field("plan"))
    }
}

/// The documents that match a remote query, grouped by values; with the methods of [`stemmadb::GroupBy`].
#[must_use = "a query does nothing until it is run"]
pub struct RemoteGroupBy {
    find: RemoteFind,
    paths: GroupPaths,
}

impl RemoteGroupBy {
    fn groups<T>(self, summary: Option<&str>, read: impl Fn(&Value) -> Result<T>) -> Result<Vec<(Value, T)>> {
        let mut arguments = self.find.arguments()?;
        arguments.insert("paths", self.paths.paths().iter().map(String::as_str).map(Value::from).collect::<Vec<_>>());
        if let Some(path) = summary {
            arguments.insert("summary", path);
        }
        let (rows, _) = self.find.database.call_rows(Operation::GroupBy, &Value::Object(arguments))?;
        let group = |row| pair(row).and_then(|(key, value)| Ok((key, read(&value)?)));
        rows.into_iter().map(group).collect()
    }

    /// Each value in collation order with its number of documents.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`]; `Invalid` if there is no path, or more than eight.
    pub fn counts(self) -> Result<Vec<(Value, u64)>> {
        self.groups(None, |count| count.as_u64().ok_or_else(|| missing_field("count")))
    }

    /// Each value in collation order with a summary of the numbers at `path` in its group.
    ///
    /// # Errors
    /// Those of [`RemoteGroupBy::counts`].
    pub fn summaries(self, path: impl AsRef<str>) -> Result<Vec<(Value, Summary)>> {
        self.groups(Some(path.as_ref()), summary)
    }
}

/// How a row is read.
pub(crate) type Reader<T> = fn(&RemoteDatabase, Item) -> Result<T>;

/// The rows of a remote query, in order. An iterator; after an error it returns no further rows.
///
/// Rows arrive while they are read; the server is at most about a megabyte ahead. Dropping it stops the server.
pub struct RemoteRows<T> {
    database: RemoteDatabase,
    operation: Operation,
    read: Reader<T>,
    rows: VecDeque<Item>,
    /// The connection and the request, while the server has more rows.
    stream: Option<(Connection, u32)>,
    cancelling: Cancelling,
    token: Option<String>,
    documents_read: u64,
    is_stale: bool,
}

impl<T> RemoteRows<T> {
    pub(crate) fn start(
        database: RemoteDatabase,
        operation: Operation,
        arguments: &Value,
        cancellation: Option<Cancellation>,
        read: Reader<T>,
    ) -> Result<Self> {
        Self::start_within(None, database, operation, arguments, cancellation, read)
    }

    /// As [`RemoteRows::start`], where the first rows have to arrive within a time.
    pub(crate) fn start_within(
        time: Option<Duration>,
        database: RemoteDatabase,
        operation: Operation,
        arguments: &Value,
        cancellation: Option<Cancellation>,
        read: Reader<T>,
    ) -> Result<Self> {
        let mut rows = RemoteRows {
            database,
            operation,
            read,
            rows: VecDeque::new(),
            stream: None,
            cancelling: Cancelling::new(cancellation.or_else(Cancellation::current)),
            token: None,
            documents_read: 0,
            is_stale: false,
        };
        // Until the first rows have arrived, the query can be repeated.
        let limit = rows.database.shared.deadline();
        let within = time.and_then(|time| Instant::now().checked_add(time));
        let deadline = within.map_or(limit, |within| within.min(limit));
        let (mut wait, mut redirects) = (Duration::from_millis(10), Redirects::default());
        loop {
            let attempt = rows.begin(arguments, deadline);
            match attempt {
                Ok(()) => return Ok(rows),
                Err(Failure::Moved(moved)) => {
                    let RemoteDatabase { shared, name, .. } = &rows.database;
                    redirects.follow(shared, name, moved, deadline).map_err(Failure::into_error)?;
                }
                Err(Failure::Lost(_)) if Instant::now() + wait < deadline => {
                    rows.rows.clear();
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    fn begin(&mut self, arguments: &Value, deadline: Instant) -> Result<(), Failure> {
        let shared = self.database.shared.clone();
        let mut connection = shared.check_out(&self.database.name, deadline)?;
        let sent = connection.queue(self.operation, &self.database.name, None, arguments);
        let sent = sent.and_then(|id| connection.flush().map(|()| id));
        match sent {
            Ok(id) => {
                self.stream = Some((connection, id));
                self.receive(deadline)
            }
            Err(failure) => {
                shared.give_back(connection, &failure);
                Err(failure)
            }
        }
    }

    /// Receives the next rows, or the end.
    fn receive(&mut self, deadline: Instant) -> Result<(), Failure> {
        let shared = self.database.shared.clone();
        let Some((mut connection, id)) = self.stream.take() else { return Ok(()) };
        loop {
            match connection.answer_or_cancel(id, deadline, &mut self.cancelling) {
                Ok(None) => {}
                Ok(Some(Answer::Items(rows))) => {
                    self.rows.extend(rows);
                    if let Err(failure) = connection.grant(id) {
                        shared.give_up(&connection);
                        return Err(failure);
                    }
                    self.stream = Some((connection, id));
                    return Ok(());
                }
                Ok(Some(Answer::Reply(reply))) => {
                    shared.check_in(connection);
                    let (rows, result) = reply.into_rows().map_err(Failure::Answer)?;
                    self.rows.extend(rows);
                    self.token = result.get("token").and_then(Value::as_str).map(str::to_owned);
                    self.is_stale = result.get("stale").and_then(Value::as_bool).unwrap_or(false);
                    self.documents_read = result.get("read").and_then(Value::as_u64).unwrap_or(0);
                    return Ok(());
                }
                Ok(Some(Answer::Data(_))) => {
                    shared.give_up(&connection);
                    return Err(Failure::Lost(missing_field("rows")));
                }
                Err(failure) => {
                    shared.give_back(connection, &failure);
                    return Err(failure);
                }
            }
        }
    }

    /// The token that continues after the last row; `None` before all rows were read, and at the end of the result.
    ///
    /// # Errors
    /// None at present; the embedded method has some.
    pub fn token(&self) -> Result<Option<String>> {
        Ok(if self.rows.is_empty() && self.stream.is_none() { self.token.clone() } else { None })
    }

    /// Of a view: whether documents changed since, or the rows are those of an older version. Known once all rows were
    /// returned.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// The number of documents that the server read, once all rows were returned.
    pub fn documents_read(&self) -> u64 {
        self.documents_read
    }
}

impl<T> Iterator for RemoteRows<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.rows.is_empty() && self.stream.is_some() {
            let deadline = self.database.shared.deadline();
            if let Err(failure) = self.receive(deadline) {
                let error: Error = failure.into_error();
                return Some(Err(error));
            }
        }
        let row = self.rows.pop_front()?;
        Some((self.read)(&self.database, row))
    }
}

impl<T> Drop for RemoteRows<T> {
    fn drop(&mut self) {
        if let Some((mut connection, id)) = self.stream.take() {
            // The rest is not worth waiting for: the server stops, and the connection is closed.
            connection.cancel(id);
            self.database.shared.give_up(&connection);
        }
    }
}
