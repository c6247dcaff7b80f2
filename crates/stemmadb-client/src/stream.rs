//! Subscriptions and live queries, each on a connection of its own, which is opened again when it is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stemmadb::messages::Message;
use stemmadb::{CancelCallback, Change, Delta, Error, Object, PathChange, Query, Result, Sequence, Value};
use stemmadb_wire::{Item, Operation};

use crate::connection::{Answer, Cancelling, Connection, Failure, Moved};
use crate::convert::{change, delta_event, missing_field, number, path_change, text};
use crate::database::RemoteDatabase;
use crate::pool::Redirects;

/// The waits between attempts to reconnect, doubled each time.
const RETRY_WAIT: Duration = Duration::from_millis(10);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(1);

/// A stream that lasts: its connection, the rows that arrived, and how to reconnect.
struct LongStream {
    database: RemoteDatabase,
    operation: Operation,
    connection: Option<(Connection, u32)>,
    /// Closes the connection when the work of the thread that reads is cancelled.
    closing: Option<CancelCallback>,
    rows: VecDeque<Value>,
    wait: Duration,
    /// When the server was last heard.
    heard: Instant,
}

/// What [`LongStream::receive`] did.
enum Received {
    /// Rows arrived.
    Rows,
    /// The deadline passed.
    Nothing,
    /// The connection was opened, for the first time or again.
    Connected,
}

impl LongStream {
    fn new(database: RemoteDatabase, operation: Operation) -> Self {
        LongStream {
            database,
            operation,
            connection: None,
            closing: None,
            rows: VecDeque::new(),
            wait: RETRY_WAIT,
            heard: Instant::now(),
        }
    }

    fn connect(&mut self, arguments: &Value, deadline: Instant) -> Result<(), Failure> {
        let mut connection = self.database.shared.open(&self.database.name, deadline)?;
        let id = connection.queue(self.operation, &self.database.name, None, arguments)?;
        connection.flush()?;
        self.closing = connection.close_when_cancelled();
        self.connection = Some((connection, id));
        self.heard = Instant::now();
        Ok(())
    }

    /// Receives rows, and reconnects with `arguments` if the connection is lost.
    fn receive(&mut self, arguments: &Value, deadline: Instant) -> Result<Received> {
        let timeout = self.database.shared.options().timeout;
        let mut redirects = Redirects::default();
        loop {
            if Cancelling::current().is_cancelled() {
                self.connection = None;
                return Err(Error::stopped("the feed was cancelled"));
            }
            let Some((connection, id)) = &mut self.connection else {
                match self.connect(arguments, Instant::now() + timeout) {
                    Ok(()) => return Ok(Received::Connected),
                    Err(Failure::Answer(error) | Failure::Moved(Moved { error, .. })) => return Err(error),
                    // A feed goes on when the server does, however long that takes, unless the caller stops waiting.
                    Err(Failure::Lost(_)) => {
                        let now = Instant::now();
                        if now >= deadline {
                            return Ok(Received::Nothing);
                        }
                        std::thread::sleep(self.wait.min(deadline - now));
                        self.wait = (self.wait * 2).min(RETRY_WAIT_MAX);
                        continue;
                    }
                }
            };
            let silent_until = self.heard + timeout;
            match connection.answer(*id, deadline.min(silent_until)) {
                Ok(answer) => {
                    self.heard = Instant::now();
                    match answer {
                        Some(Answer::Items(rows)) => {
                            self.wait = RETRY_WAIT;
                            self.rows.extend(rows.into_iter().map(Item::into_value).collect::<Result<Vec<_>>>()?);
                            if connection.grant(*id).is_err() {
                                self.connection = None;
                            }
                            return Ok(Received::Rows);
                        }
                        None => {
                            if Instant::now() >= deadline {
                                return Ok(Received::Nothing);
                            }
                        }
                        Some(_) => return Err(missing_field("rows")),
                    }
                }
                Err(Failure::Answer(error)) => {
                    self.connection = None;
                    return Err(error);
                }
                Err(Failure::Moved(moved)) => {
                    self.connection = None;
                    let RemoteDatabase { shared, name, .. } = &self.database;
                    let until = Instant::now() + timeout;
                    redirects.follow(shared, name, moved, until).map_err(Failure::into_error)?;
                }
                Err(Failure::Lost(_)) => {
                    let now = Instant::now();
                    if now >= deadline && now < silent_until && connection.is_open() {
                        return Ok(Received::Nothing);
                    }
                    self.connection = None;
                }
            }
        }
    }
}

impl LongStream {
    /// Waits until the server has sent the row that says that the stream has begun.
    fn begin(&mut self, arguments: &Value) -> Result<()> {
        let deadline = self.database.shared.deadline();
        while self.rows.is_empty() {
            if let Received::Nothing = self.receive(arguments, deadline)? {
                return Err(Error::unavailable("the server did not answer in time"));
            }
        }
        Ok(())
    }
}

impl Drop for LongStream {
    fn drop(&mut self) {
        if let Some((connection, id)) = &mut self.connection {
            connection.cancel(*id);
        }
    }
}

/// The arguments of a subscription to what matches patterns.
fn of_patterns<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Object {
    let patterns = patterns.into_iter().map(|pattern| Value::from(pattern.as_ref())).collect::<Vec<_>>();
    [("patterns", Value::from(patterns))].into_iter().collect()
}

/// The far future, for waits without end.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(60 * 60 * 24 * 365)
}

/// Defines the filters of the changes feed on a type whose field `arguments` is an object.
macro_rules! feed_filters {
    ($type:ident) => {
        impl $type {
            /// Whether to return the documents, too.
            pub fn documents(mut self, documents: bool) -> Self {
                self.arguments.insert("documents", documents);
                self
            }

            /// Continues after the position of a token, which virtual databases have in place of a sequence.
            pub fn after(mut self, token: impl Into<String>) -> Self {
                self.arguments.insert("after", token.into());
                self
            }

            /// Returns only changes of these documents.
            pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
                let ids = ids.into_iter().map(|id| stemmadb::Value::from(id.into()));
                self.arguments.insert("ids", ids.collect::<Vec<_>>());
                self
            }

            /// Returns only changes of documents that match.
            ///
            /// # Errors
            /// `Invalid` if the selector is malformed.
            pub fn selector(mut self, selector: &stemmadb::Selector) -> stemmadb::Result<Self> {
                self.arguments.insert("selector", selector.to_value()?);
                Ok(self)
            }

            /// With a selector, also returns documents that left those that match. See
            /// [`Changes::departures`](stemmadb::Changes::departures).
            pub fn departures(mut self, departures: bool) -> Self {
                self.arguments.insert("departures", departures);
                self
            }

            /// Returns only changes of documents that have a path that matches a pattern. See
            /// [`Changes::paths`](stemmadb::Changes::paths).
            ///
            /// # Errors
            /// None at present: the server refuses malformed patterns when the changes are read.
            pub fn paths<P: AsRef<str>>(mut self, patterns: impl IntoIterator<Item = P>) -> stemmadb::Result<Self> {
                let patterns = patterns.into_iter().map(|pattern| stemmadb::Value::from(pattern.as_ref()));
                self.arguments.insert("paths", patterns.collect::<Vec<_>>());
                Ok(self)
            }
        }
    };
}
pub(crate) use feed_filters;

feed_filters!(RemoteSubscription);

/// A subscription to the changes feed of a remote database. See
/// [`RemoteDatabase::subscribe`](crate::RemoteDatabase::subscribe).
#[must_use = "a subscription does nothing until it is read"]
pub struct RemoteSubscription {
    stream: LongStream,
    arguments: Object,
    /// The sequence of the last returned change, or one without matching changes in between.
    reached: Sequence,
    /// Of a virtual database: the position after the changes of the last whole frame that was returned.
    token: Option<String>,
    /// Whether the database is virtual, so that sequences are no positions.
    has_tokens: bool,
    /// Whether the server has sent, on this connection, every change that there was.
    has_caught_up: bool,
}

impl RemoteSubscription {
    pub(crate) fn new(database: RemoteDatabase, since: Sequence) -> Self {
        let stream = LongStream::new(database, Operation::Subscribe);
        let (arguments, token) = (Object::new(), None);
        RemoteSubscription { stream, arguments, reached: since, token, has_tokens: false, has_caught_up: false }
    }

    /// The sequence up to which every matching change was returned. To continue after a restart, subscribe from here.
    /// Of a virtual database, it stays at the beginning: continue [`after`](RemoteSubscription::after) the
    /// [`token`](RemoteSubscription::token).
    pub fn reached(&self) -> Sequence {
        self.reached
    }

    /// Of a virtual database, the position from which to continue: every matching change up to it was returned, and the
    /// last few may be returned again. `None` at first, and of other databases.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// `NotFound` if the database does not exist; `Forbidden` if the user may not read it any more.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        self.next_until(never())
    }

    /// As [`RemoteSubscription::next_change`]; `None` if there is none within `timeout`. The changes that there were
    /// when the subscription began, or reconnected, are returned whatever the timeout is, if the server answers within
    /// [`ClientOptions::timeout`](crate::ClientOptions::timeout).
    ///
    /// # Errors
    /// Those of [`RemoteSubscription::next_change`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Change>> {
        self.next_until(Instant::now() + timeout)
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Change>> {
        loop {
            if let Some(row) = self.stream.rows.pop_front() {
                if let Some(token) = row.get("token").and_then(Value::as_str) {
                    self.token = Some(token.to_owned());
                }
                if let Some(sequence) = row.get("caught_up") {
                    let sequence = sequence.as_u64().ok_or_else(|| missing_field("caught_up"))?;
                    if !self.has_tokens {
                        self.reached = Sequence::new(sequence.max(self.reached.get()));
                    }
                    self.has_caught_up = true;
                    continue;
                }
                if row.get("id").is_none() && row.get("token").is_some() {
                    continue;
                }
                let change = change(&self.stream.database.shared.factory, &row)?;
                if !self.has_tokens {
                    self.reached = change.sequence;
                }
                return Ok(Some(change));
            }
            // The rows that arrived were returned, so the feed continues after the last one.
            self.arguments.insert("since", self.reached.get());
            if let Some(token) = &self.token {
                self.arguments.insert("after", token.as_str());
            }
            let arguments = Value::Object(self.arguments.clone());
            let mut received = self.stream.receive(&arguments, deadline)?;
            if matches!(received, Received::Nothing) && !self.has_caught_up && self.stream.connection.is_some() {
                let patient = deadline.max(self.stream.database.shared.deadline());
                received = self.stream.receive(&arguments, patient)?;
            }
            match received {
                Received::Nothing => return Ok(None),
                Received::Connected => self.has_caught_up = false,
                // The frames of a virtual database end with a position.
                Received::Rows => {
                    self.has_tokens |= self.stream.rows.back().is_some_and(|row| row.get("token").is_some())
                }
            }
        }
    }
}

impl Iterator for RemoteSubscription {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_change().transpose()
    }
}

/// A subscription to values at paths of a remote database. See
/// [`RemoteDatabase::subscribe_paths`](crate::RemoteDatabase::subscribe_paths).
pub struct RemotePathSubscription {
    stream: LongStream,
    arguments: Object,
    /// The sequence of the last returned change. Others of its transaction may follow, so a new connection continues
    /// after the transaction before.
    reached: Sequence,
}

impl RemotePathSubscription {
    pub(crate) fn new<P: AsRef<str>>(database: RemoteDatabase, patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let arguments = of_patterns(patterns);
        let mut stream = LongStream::new(database, Operation::SubscribePaths);
        stream.begin(&Value::Object(arguments.clone()))?;
        Ok(RemotePathSubscription { stream, arguments, reached: Sequence::ZERO })
    }

    /// Also returns the documents that were written after `since`, with empty [`PathChange::paths`]: what changed in
    /// them is not known. Default: only what changes from now on.
    ///
    /// # Errors
    /// None at present; the embedded method has some.
    pub fn since(mut self, since: Sequence) -> Result<Self> {
        self.arguments.insert("since", since.get());
        self.stream = LongStream::new(self.stream.database.clone(), Operation::SubscribePaths);
        Ok(self)
    }

    /// Waits for the next change. After a lost connection, documents that were written meanwhile, and those of the last
    /// transaction again, have empty [`PathChange::paths`].
    ///
    /// # Errors
    /// `Invalid` for a malformed pattern; `Forbidden` if the user may not read the database any more.
    pub fn next_change(&mut self) -> Result<Option<PathChange>> {
        self.next_until(never())
    }

    /// As [`RemotePathSubscription::next_change`]; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Those of [`RemotePathSubscription::next_change`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<PathChange>> {
        self.next_until(Instant::now() + timeout)
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<PathChange>> {
        loop {
            if let Some(row) = self.stream.rows.pop_front() {
                if let Some(begin) = row.get("begin") {
                    // Where the feed continues if the connection is lost before a change.
                    if self.arguments.get("since").is_none() {
                        self.arguments.insert("since", begin.clone());
                    }
                    continue;
                }
                let change = path_change(&self.stream.database.shared.factory, &row)?;
                if change.sequence > self.reached {
                    if self.reached > Sequence::ZERO {
                        self.arguments.insert("since", self.reached.get());
                    }
                    self.reached = change.sequence;
                }
                return Ok(Some(change));
            }
            let arguments = Value::Object(self.arguments.clone());
            if let Received::Nothing = self.stream.receive(&arguments, deadline)? {
                return Ok(None);
            }
        }
    }
}

/// A subscription to messages of a remote database. See
/// [`RemoteDatabase::subscribe_topic`](crate::RemoteDatabase::subscribe_topic).
pub struct RemoteTopicSubscription {
    stream: LongStream,
    arguments: Value,
    dropped_count: u64,
    /// How many were dropped on earlier connections.
    dropped_before: u64,
}

impl RemoteTopicSubscription {
    pub(crate) fn new<P: AsRef<str>>(database: RemoteDatabase, patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let arguments = Value::Object(of_patterns(patterns));
        let mut stream = LongStream::new(database, Operation::SubscribeTopic);
        stream.begin(&arguments)?;
        Ok(RemoteTopicSubscription { stream, arguments, dropped_count: 0, dropped_before: 0 })
    }

    /// Waits for the next message. Messages that are published while a lost connection is opened again do not arrive.
    ///
    /// # Errors
    /// `Forbidden` if the user may not read the database any more; `NotFound` if it was deleted.
    pub fn next_message(&mut self) -> Result<Option<Arc<Message>>> {
        self.next_until(never())
    }

    /// As [`RemoteTopicSubscription::next_message`]; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Those of [`RemoteTopicSubscription::next_message`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Arc<Message>>> {
        self.next_until(Instant::now() + timeout)
    }

    /// How many messages were dropped because this reader was too slow, as far as the server has said.
    pub fn dropped_count(&self) -> u64 {
        self.dropped_before + self.dropped_count
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Arc<Message>>> {
        loop {
            while let Some(row) = self.stream.rows.pop_front() {
                if row.get("dropped").is_some() {
                    self.dropped_count = number(&row, "dropped")?;
                } else if row.get("begin").is_none() {
                    let payload = row.get("payload").cloned().unwrap_or(Value::Null);
                    return Ok(Some(Arc::new(Message::new(text(&row, "topic")?, payload))));
                }
            }
            match self.stream.receive(&self.arguments, deadline)? {
                Received::Nothing => return Ok(None),
                Received::Connected => self.dropped_before += std::mem::take(&mut self.dropped_count),
                Received::Rows => {}
            }
        }
    }
}

impl Iterator for RemoteTopicSubscription {
    type Item = Result<Arc<Message>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_message().transpose()
    }
}

/// A live query on a remote database. See [`RemoteDatabase::watch`](crate::RemoteDatabase::watch).
pub struct RemoteWatch {
    stream: LongStream,
    arguments: Value,
}

impl RemoteWatch {
    pub(crate) fn new(database: RemoteDatabase, query: &Query) -> Result<Self> {
        let arguments: Object = [("query", query.to_value()?)].into_iter().collect();
        let arguments = Value::Object(arguments);
        let mut stream = LongStream::new(database, Operation::Watch);
        let deadline = stream.database.shared.deadline();
        stream.receive(&arguments, deadline)?;
        Ok(RemoteWatch { stream, arguments })
    }

    /// Waits for the next delta. The first one, and the first one after a lost connection, is the whole result:
    /// [`Delta::is_first`].
    ///
    /// # Errors
    /// `Invalid` for a query that can't be watched; `Forbidden` if the user may not read the database any more.
    pub fn next_delta(&mut self) -> Result<Option<Delta>> {
        self.next_until(never())
    }

    /// As [`RemoteWatch::next_delta`]; `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// Those of [`RemoteWatch::next_delta`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delta>> {
        self.next_until(Instant::now() + timeout)
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Delta>> {
        loop {
            let end = self.stream.rows.iter().position(|row| row.get("seq").is_some());
            if let Some(end) = end {
                let rows: Vec<_> = self.stream.rows.drain(..=end).collect();
                let (last, events) = rows.split_last().ok_or_else(|| missing_field("seq"))?;
                let factory = &self.stream.database.shared.factory;
                let event = |row: &Value| delta_event(factory, row)?.ok_or_else(|| missing_field("event"));
                let events = events.iter().map(event).collect::<Result<Vec<_>>>()?;
                let is_first = last.get("first").and_then(Value::as_bool).unwrap_or(false);
                return Ok(Some(Delta::of_events(Sequence::new(number(last, "seq")?), is_first, events)));
            }
            match self.stream.receive(&self.arguments, deadline)? {
                Received::Nothing => return Ok(None),
                // An incomplete delta of the lost connection is superseded by the first of the new one.
                Received::Connected => self.stream.rows.clear(),
                Received::Rows => {}
            }
        }
    }
}
