//! Queries on a remote database.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use stemmadb::{Cancellation, Document, DocumentId, Error, Object, Query, Result, Sequence, Sort, Value};
use stemmadb_wire::Operation;

use crate::connection::{Answer, Connection, Failure};
use crate::convert::{document, missing_field};
use crate::database::RemoteDatabase;

/// A query on a remote database, with the methods of [`stemmadb::Find`].
#[must_use = "a query does nothing until it is run"]
pub struct RemoteFind {
    database: RemoteDatabase,
    query: Query,
    /// The state to read, if it is not the newest: the name of an argument, and its value.
    state: Option<(&'static str, u64)>,
}

impl RemoteFind {
    pub(crate) fn new(database: RemoteDatabase, query: Query) -> Self {
        RemoteFind { database, query, state: None }
    }

    /// Reads an open snapshot.
    pub(crate) fn in_snapshot(self, number: u64) -> Self {
        RemoteFind { state: Some(("snapshot", number)), ..self }
    }

    /// Reads the state at a sequence.
    pub(crate) fn at_sequence(self, sequence: Sequence) -> Self {
        RemoteFind { state: Some(("as_of", sequence.get())), ..self }
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

    fn arguments(&self) -> Result<Object> {
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
        if let Some((name, state)) = self.state {
            arguments.insert(name, state);
        }
        Ok(arguments)
    }

    fn rows<T>(self, shape: &str, read: Reader<T>) -> Result<RemoteRows<T>> {
        let mut arguments = self.arguments()?;
        arguments.insert("shape", shape);
        let cancellation = self.query.cancellation().cloned();
        RemoteRows::start(self.database, &Value::Object(arguments), cancellation, read)
    }

    /// Runs the query; returns its documents.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed; `Stopped` if it exceeds a limit.
    pub fn run(self) -> Result<RemoteRows<Document>> {
        self.rows("documents", |database, value| document(&database.shared.factory, &value))
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
        self.rows("ids", |_, value| DocumentId::new(value.as_str().ok_or_else(|| missing_field("id"))?))
    }

    /// Runs the query; returns the chosen fields of its documents.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn values(self) -> Result<RemoteRows<Value>> {
        self.rows("values", |_, value| Ok(value))
    }

    /// Counts the documents that match.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn count(self) -> Result<u64> {
        let count = self.database.call(Operation::Count, &Value::Object(self.arguments()?))?;
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
        let mut arguments = self.arguments()?;
        arguments.insert("path", path.as_ref());
        match self.database.call(Operation::Distinct, &Value::Object(arguments))? {
            Value::Array(values) => Ok(values),
            _ => Err(missing_field("values")),
        }
    }

    /// One figure of the matching documents, such as `{"sum": "price"}`.
    fn figure(self, function: &str, path: &str) -> Result<Value> {
        let query = self.query.to_value()?;
        let selector = query.get("selector").cloned().unwrap_or_default();
        let figure: Object = [(function, Value::from(path))].into_iter().collect();
        let figures: Object = [("figure", Value::Object(figure))].into_iter().collect();
        let aggregation: Object = [("selector", selector), ("figures", Value::Object(figures))].into_iter().collect();
        let rows = self.database.aggregate(&Value::Object(aggregation))?;
        let figure = rows.into_iter().next().and_then(|(_, mut figures)| figures.remove("figure"));
        figure.ok_or_else(|| missing_field("figure"))
    }

    /// The sum of the numbers at a path.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn sum(self, path: impl AsRef<str>) -> Result<stemmadb::Number> {
        self.figure("sum", path.as_ref())?.as_number().ok_or_else(|| missing_field("sum"))
    }

    /// The average of the numbers at a path; `None` if there are none.
    ///
    /// # Errors
    /// Those of [`RemoteFind::run`].
    pub fn average(self, path: impl AsRef<str>) -> Result<Option<f64>> {
        Ok(self.figure("average", path.as_ref())?.as_f64())
    }

    /// The plan of the query, as text.
    ///
    /// # Errors
    /// `Invalid` if the query is malformed.
    pub fn explain(self) -> Result<String> {
        let plan = self.database.call(Operation::Explain, &Value::Object(self.arguments()?))?;
        plan.as_str().map(str::to_owned).ok_or_else(|| missing_field("plan"))
    }
}

type Reader<T> = fn(&RemoteDatabase, Value) -> Result<T>;

/// How often a wait for rows looks whether the query was cancelled.
const CANCELLATION_POLL: Duration = Duration::from_millis(20);

/// The rows of a remote query, in order. An iterator; after an error it returns no further rows.
///
/// Rows arrive while they are read; the server is at most about a megabyte ahead. Dropping it stops the server.
pub struct RemoteRows<T> {
    database: RemoteDatabase,
    read: Reader<T>,
    rows: VecDeque<Value>,
    /// The connection and the request, while the server has more rows.
    stream: Option<(Connection, u32)>,
    cancellation: Option<Cancellation>,
    token: Option<String>,
    documents_read: u64,
}

impl<T> RemoteRows<T> {
    fn start(
        database: RemoteDatabase,
        arguments: &Value,
        cancellation: Option<Cancellation>,
        read: Reader<T>,
    ) -> Result<Self> {
        let mut rows = RemoteRows {
            database,
            read,
            rows: VecDeque::new(),
            stream: None,
            cancellation,
            token: None,
            documents_read: 0,
        };
        // Until the first rows have arrived, the query can be repeated.
        let deadline = rows.database.shared.deadline();
        let mut wait = Duration::from_millis(10);
        loop {
            let attempt = rows.begin(arguments, deadline);
            match attempt {
                Ok(()) => return Ok(rows),
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
        let mut connection = shared.check_out(deadline)?;
        let sent = connection.queue(Operation::Find, &self.database.name, None, arguments);
        let sent = sent.and_then(|id| connection.flush().map(|()| id));
        match sent {
            Ok(id) => {
                self.stream = Some((connection, id));
                self.receive(deadline)
            }
            Err(failure) => {
                match &failure {
                    Failure::Lost(_) => shared.give_up(&connection),
                    Failure::Answer(_) => shared.check_in(connection),
                }
                Err(failure)
            }
        }
    }

    /// Receives the next rows, or the end.
    fn receive(&mut self, deadline: Instant) -> Result<(), Failure> {
        let shared = self.database.shared.clone();
        let Some((mut connection, id)) = self.stream.take() else { return Ok(()) };
        let mut is_cancelled = false;
        loop {
            let until = match &self.cancellation {
                Some(cancellation) if !is_cancelled => {
                    if cancellation.is_cancelled() {
                        connection.cancel(id);
                        is_cancelled = true;
                    }
                    deadline.min(Instant::now() + CANCELLATION_POLL)
                }
                _ => deadline,
            };
            match connection.answer(id, until) {
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
                Ok(Some(Answer::Reply(mut result))) => {
                    shared.check_in(connection);
                    self.token = result.get("token").and_then(Value::as_str).map(str::to_owned);
                    self.documents_read = result.get("read").and_then(Value::as_u64).unwrap_or(0);
                    if let Some(Value::Array(rows)) = result.as_object_mut().and_then(|result| result.remove("rows")) {
                        self.rows.extend(rows);
                    }
                    return Ok(());
                }
                Err(Failure::Lost(_)) if until < deadline && Instant::now() < deadline && connection.is_open() => {}
                Err(failure) => {
                    match &failure {
                        Failure::Lost(_) => shared.give_up(&connection),
                        Failure::Answer(_) => shared.check_in(connection),
                    }
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
