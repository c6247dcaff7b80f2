//! The client: a pool of connections, and calls that survive lost ones.
//!
//! A server of a cluster answers requests for a database that another one has with the URL of that one. The client then
//! asks there, as the same user, as long as it gets answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use stemmadb::remote::DocumentFactory;
use stemmadb::{Error, Result, Value};
use stemmadb_wire::{Item, Operation, Repetition, Reply, WriteKey};

use crate::answer_wait::Expected;
use crate::connection::{Answer, Cancelling, Connection, Failure, Lane, Moved};
use crate::convert::missing_field;
use crate::database::RemoteDatabase;
use crate::options::ClientOptions;
use crate::transport::Connector;
use crate::url::ServerUrl;

/// A connection that was unused for longer is checked before it is used.
const TRUSTED_TIME: Duration = Duration::from_secs(15);
/// How long the answer to such a check may take.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// The waits between attempts, doubled each time.
const RETRY_WAIT: Duration = Duration::from_millis(10);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(1);

/// The requests that are sent before an answer is read.
const PIPELINED_MAX: usize = 64;

/// A client of a server. Cheap to clone; clones share connections. Every method may be called from any thread.
///
/// See the [crate's example](crate).
#[derive(Clone)]
pub struct Client(Arc<Shared>);

pub(crate) struct Shared {
    url: ServerUrl,
    options: ClientOptions,
    connector: Connector,
    pool: Mutex<PoolState>,
    has_changed: Condvar,
    pub(crate) factory: DocumentFactory,
    others: Mutex<OtherServers>,
}

/// Other servers of the cluster, which have databases that were asked for.
#[derive(Default)]
struct OtherServers {
    by_url: HashMap<String, Arc<Shared>>,
    /// By the names of databases.
    owners: HashMap<String, Arc<Shared>>,
}

/// The redirects of a call: databases move while it is under way.
#[derive(Default)]
pub(crate) struct Redirects(u32);

/// The redirects that are followed at once. Servers may disagree for a moment.
const QUICK_REDIRECTS: u32 = 2;

impl Redirects {
    /// Notes which server has a database, so that the request can be repeated.
    ///
    /// # Errors
    /// The error of the request if there is no time left, or the server can't be asked.
    pub(crate) fn follow(
        &mut self,
        shared: &Shared,
        database: &str,
        moved: Moved,
        deadline: Instant,
    ) -> Result<(), Failure> {
        self.0 += 1;
        if self.0 > QUICK_REDIRECTS {
            let wait = RETRY_WAIT.saturating_mul(self.0).min(RETRY_WAIT_MAX);
            if Instant::now() + wait >= deadline || Cancelling::current().is_cancelled() {
                return Err(Failure::Moved(moved));
            }
            std::thread::sleep(wait);
        }
        shared.note_owner(database, &moved.owner).map_err(Failure::Answer)
    }
}

#[derive(Default)]
struct PoolState {
    idle: Vec<Connection>,
    /// Lanes whose connection was lost; the next connection continues one.
    lanes: Vec<Lane>,
    /// The connections for calls, used or idle.
    count: usize,
}

impl Client {
    /// Connects to a server: `stemma://user:password@host:port`, `stemma+tls://…`, `stemma+unix:///path`, over a
    /// WebSocket to its HTTP server: `http://host:5984`, `https://…` (also written `stemma+ws://…`, `stemma+wss://…`,
    /// whose port is 5984 if none is named), or with the cargo feature `quic`: `stemma+quic://…`.
    ///
    /// # Errors
    /// `Invalid` for a malformed URL; `Forbidden` for wrong credentials; `Unavailable` if there is no server.
    pub fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, ClientOptions::default())
    }

    /// Connects to a server with options.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn connect_with(url: &str, options: ClientOptions) -> Result<Self> {
        let client = Self::lazy(url, options)?;
        let connection = client.0.check_out("", client.0.deadline()).map_err(Failure::into_error)?;
        client.0.check_in(connection);
        Ok(client)
    }

    /// A client that connects with its first call, so that the server need not run yet.
    ///
    /// ```
    /// use stemmadb_client::{Client, ClientOptions};
    ///
    /// # fn main() -> stemmadb::Result<()> {
    /// let client = Client::lazy("stemma://archive.example/orders", ClientOptions::new())?;
    /// assert_eq!(client.default_database().expect("the URL names one").name(), "orders");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a malformed URL, or certificates that can't be read.
    pub fn lazy(url: &str, options: ClientOptions) -> Result<Self> {
        Ok(Client(Arc::new(Shared::new(ServerUrl::parse(url)?, options)?)))
    }

    /// The database `name`. Costs nothing; whether it exists shows with the first operation.
    pub fn database(&self, name: &str) -> RemoteDatabase {
        RemoteDatabase::new(self.0.clone(), name)
    }

    /// The database that the URL's path names.
    pub fn default_database(&self) -> Option<RemoteDatabase> {
        self.0.url.database.as_deref().map(|name| self.database(name))
    }

    /// The names of all databases, in order.
    ///
    /// # Errors
    /// `Forbidden` if the user is not a server administrator.
    pub fn databases(&self) -> Result<Vec<String>> {
        let names = self.0.call(Operation::Databases, "", &Value::Null)?;
        let names = names.as_array().unwrap_or_default().iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<_>>().ok_or_else(|| missing_field("name"))
    }

    /// Creates a database.
    ///
    /// # Errors
    /// `Conflict` if it exists; `Invalid` for a bad name; `Forbidden` if the user is not a server administrator.
    pub fn create_database(&self, name: &str) -> Result<RemoteDatabase> {
        self.0.call(Operation::CreateDatabase, name, &Value::Null)?;
        Ok(self.database(name))
    }

    /// Deletes a database and all its documents.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Forbidden` if the user is not a server administrator.
    pub fn delete_database(&self, name: &str) -> Result<()> {
        self.0.call(Operation::DeleteDatabase, name, &Value::Null).map(drop)
    }

    /// Asks the server for an answer, and waits for it.
    ///
    /// # Errors
    /// `Unavailable` if there is none.
    pub fn ping(&self) -> Result<()> {
        self.0.call(Operation::Noop, "", &Value::Null).map(drop)
    }
}

/// The key of a write: the next of the connection's lane, or the same as before if it is repeated.
pub(crate) fn write_key(connection: &mut Connection, lane: &mut Option<Lane>) -> WriteKey {
    let own = connection.lane;
    let lane = lane.get_or_insert_with(|| Lane { number: own.number + 1, ..own });
    if lane.id == own.id {
        connection.lane.number = lane.number;
    }
    WriteKey { lane: lane.id, number: lane.number }
}

impl Shared {
    fn new(url: ServerUrl, options: ClientOptions) -> Result<Self> {
        Ok(Shared {
            connector: Connector::new(&url.address, &options.trust)?,
            url,
            options,
            pool: Mutex::default(),
            has_changed: Condvar::new(),
            factory: DocumentFactory::new(),
            others: Mutex::default(),
        })
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Notes that the server with this URL has a database.
    ///
    /// # Errors
    /// `Unavailable` if it can't be asked: credentials that were sent encrypted are not sent in the clear.
    fn note_owner(&self, database: &str, url: &str) -> Result<()> {
        let mut parsed = ServerUrl::parse(url)?;
        if self.url.address.is_encrypted() && !parsed.address.is_encrypted() {
            let error = Error::unavailable(format!("`{database}` is served by {url}, whose connections are plain"));
            return Err(error.with_hint("set cluster.address of that server to a URL that begins with https://"));
        }
        let others = &mut *self.others.lock();
        if parsed.address == self.url.address {
            others.owners.remove(database);
            return Ok(());
        }
        let owner = match others.by_url.get(url) {
            Some(owner) => owner.clone(),
            None => {
                parsed.credentials = self.url.credentials.clone();
                let owner = Arc::new(Shared::new(parsed, self.options.clone())?);
                others.by_url.insert(url.to_owned(), owner.clone());
                owner
            }
        };
        others.owners.insert(database.to_owned(), owner);
        Ok(())
    }

    /// The server that has a database, if it is another one, as far as is known.
    fn owner_of(&self, database: &str) -> Option<Arc<Shared>> {
        self.others.lock().owners.get(database).cloned()
    }

    /// Forgets that a server has databases: it did not answer, and the client's own server knows another one by then.
    fn forget_owner(&self, lost: &Arc<Shared>) {
        self.others.lock().owners.retain(|_, owner| !Arc::ptr_eq(owner, lost));
    }

    /// When a call that begins now has to be over.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Opens a connection of its own, for a stream of a database.
    pub(crate) fn open(&self, database: &str, deadline: Instant) -> Result<Connection, Failure> {
        self.of_owner(database, |server| server.connect(deadline))
    }

    fn connect(&self, deadline: Instant) -> Result<Connection, Failure> {
        Connection::open(&self.url, &self.options, &self.connector, deadline)
    }

    /// Takes a connection for requests about a database out of the pool, or opens one.
    pub(crate) fn check_out(&self, database: &str, deadline: Instant) -> Result<Connection, Failure> {
        self.of_owner(database, |server| server.check_out_here(deadline))
    }

    /// A connection to the server that has a database.
    fn of_owner(
        &self,
        database: &str,
        take: impl FnOnce(&Self) -> Result<Connection, Failure>,
    ) -> Result<Connection, Failure> {
        let Some(owner) = self.owner_of(database) else { return take(self) };
        match take(&owner) {
            Ok(mut connection) => {
                connection.pool = Some(owner);
                Ok(connection)
            }
            Err(failure) => {
                self.forget_owner(&owner);
                Err(failure)
            }
        }
    }

    fn check_out_here(&self, deadline: Instant) -> Result<Connection, Failure> {
        let mut pool = self.pool.lock();
        loop {
            if let Some(mut connection) = pool.idle.pop() {
                if connection.used.elapsed() < TRUSTED_TIME {
                    return Ok(connection);
                }
                drop(pool);
                if connection.ping(PING_TIMEOUT).is_ok() {
                    return Ok(connection);
                }
                self.forget(&connection);
                drop(connection);
                pool = self.pool.lock();
                continue;
            }
            if pool.count < self.options.connections_max {
                pool.count += 1;
                break;
            }
            if self.has_changed.wait_until(&mut pool, deadline).timed_out() {
                let error = Error::unavailable("all connections of the client are in use")
                    .with_hint("raise ClientOptions::connections_max, or call from fewer threads");
                return Err(Failure::Answer(error));
            }
        }
        let lane = pool.lanes.pop();
        drop(pool);
        match self.connect(deadline) {
            Ok(mut connection) => {
                connection.lane = lane.unwrap_or(connection.lane);
                Ok(connection)
            }
            Err(failure) => {
                let mut pool = self.pool.lock();
                pool.count -= 1;
                pool.lanes.extend(lane);
                self.has_changed.notify_one();
                Err(failure)
            }
        }
    }

    /// Puts a connection back.
    pub(crate) fn check_in(&self, mut connection: Connection) {
        let owner = connection.pool.take();
        let server = owner.as_deref().unwrap_or(self);
        server.pool.lock().idle.push(connection);
        server.has_changed.notify_one();
    }

    /// Forgets a connection that is lost, or has unread answers; its lane goes on.
    pub(crate) fn give_up(&self, connection: &Connection) {
        match &connection.pool {
            None => self.forget(connection),
            Some(owner) => {
                self.forget_owner(owner);
                owner.forget(connection);
            }
        }
    }

    /// Puts a connection back, or forgets it, after a request has failed.
    pub(crate) fn give_back(&self, connection: Connection, failure: &Failure) {
        match failure {
            Failure::Lost(_) => self.give_up(&connection),
            Failure::Answer(_) | Failure::Moved(_) => self.check_in(connection),
        }
    }

    fn forget(&self, connection: &Connection) {
        let mut pool = self.pool.lock();
        pool.count -= 1;
        pool.lanes.push(connection.lane);
        self.has_changed.notify_one();
    }

    /// Runs an operation and returns its result. Repeats it on another connection if one is lost.
    pub(crate) fn call(&self, operation: Operation, database: &str, arguments: &Value) -> Result<Value> {
        self.call_item(operation, database, arguments)?.into_value()
    }

    /// As [`Shared::call`], where the result may be a document.
    pub(crate) fn call_item(&self, operation: Operation, database: &str, arguments: &Value) -> Result<Item> {
        self.call_rows(operation, database, arguments)?.1.into_item()
    }

    /// As [`Shared::call`], with the rows that arrive before the result.
    pub(crate) fn call_rows(
        &self,
        operation: Operation,
        database: &str,
        arguments: &Value,
    ) -> Result<(Vec<Item>, Reply)> {
        self.call_repeatedly(operation, operation.repetition(), database, arguments)
    }

    /// Runs an operation of another client, with its key if it has one.
    pub(crate) fn pass_on(
        &self,
        operation: Operation,
        key: Option<WriteKey>,
        database: &str,
        arguments: &Value,
    ) -> Result<Item> {
        let repetition = match (key, operation.repetition()) {
            (None, Repetition::Keyed) => Repetition::Once,
            (_, repetition) => repetition,
        };
        self.call_with(operation, repetition, key, database, arguments)?.1.into_item()
    }

    /// As [`Shared::call_rows`], for an operation whose arguments decide how it may be repeated.
    pub(crate) fn call_repeatedly(
        &self,
        operation: Operation,
        repetition: Repetition,
        database: &str,
        arguments: &Value,
    ) -> Result<(Vec<Item>, Reply)> {
        self.call_with(operation, repetition, None, database, arguments)
    }

    /// As [`Shared::call_repeatedly`]; a write has a key of this client, or a given one.
    fn call_with(
        &self,
        operation: Operation,
        repetition: Repetition,
        given_key: Option<WriteKey>,
        database: &str,
        arguments: &Value,
    ) -> Result<(Vec<Item>, Reply)> {
        let has_key = repetition == Repetition::Keyed && (self.options.idempotent_writes || given_key.is_some());
        let is_repeatable = has_key || repetition == Repetition::Safe;
        let expected = if repetition == Repetition::Safe { Expected::Read } else { Expected::Write };
        let (deadline, mut wait, mut lost_at) = (self.deadline(), RETRY_WAIT, None);
        let mut redirects = Redirects::default();
        // A write keeps its key, and so its lane, when it is repeated.
        let mut lane: Option<Lane> = None;
        loop {
            let failure = match self.check_out(database, deadline) {
                Ok(mut connection) => {
                    let key = given_key.or_else(|| has_key.then(|| write_key(&mut connection, &mut lane)));
                    let sent = connection.queue(operation, database, key, arguments).and_then(|id| {
                        connection.flush()?;
                        connection.expect(expected);
                        connection.result(id, deadline)
                    });
                    match sent {
                        Ok(result) => {
                            self.check_in(connection);
                            return Ok(result);
                        }
                        Err(Failure::Answer(error)) => {
                            self.check_in(connection);
                            return Err(error);
                        }
                        Err(Failure::Moved(moved)) => {
                            self.check_in(connection);
                            redirects.follow(self, database, moved, deadline).map_err(Failure::into_error)?;
                            continue;
                        }
                        Err(Failure::Lost(error)) => {
                            self.give_up_lane(&mut connection, lane);
                            if !is_repeatable {
                                return Err(
                                    error.with_hint("the write may have been applied: read before you repeat it")
                                );
                            }
                            error
                        }
                    }
                }
                Err(Failure::Lost(error)) => error,
                Err(failure) => return Err(failure.into_error()),
            };
            let lost_for = lost_at.get_or_insert_with(Instant::now).elapsed();
            if lost_for >= self.options.reconnect_time {
                return Err(failure);
            }
            if Instant::now() + wait >= deadline || Cancelling::current().is_cancelled() {
                return Err(failure);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(RETRY_WAIT_MAX);
        }
    }

    /// Runs an operation that may be repeated and may take long: the timeout applies to silence. Calls `report` with
    /// each row that arrives before the result.
    pub(crate) fn call_long(
        &self,
        operation: Operation,
        database: &str,
        arguments: &Value,
        report: &mut dyn FnMut(&Value),
    ) -> Result<Value> {
        let (give_up, mut wait, mut redirects) = (self.deadline(), RETRY_WAIT, Redirects::default());
        loop {
            let mut connection = self.check_out(database, give_up).map_err(Failure::into_error)?;
            let sent = connection.queue(operation, database, None, arguments).and_then(|id| {
                connection.flush()?;
                loop {
                    match connection.answer(id, self.deadline())? {
                        None => {}
                        Some(Answer::Items(rows)) => {
                            for row in rows {
                                report(&row.into_value().map_err(Failure::Lost)?);
                            }
                            connection.grant(id)?;
                        }
                        Some(Answer::Reply(reply)) => {
                            return reply.into_item().and_then(Item::into_value).map_err(Failure::Lost);
                        }
                        Some(Answer::Data(_)) => return Err(Failure::Lost(missing_field("rows"))),
                    }
                }
            });
            match sent {
                Ok(value) => {
                    self.check_in(connection);
                    return Ok(value);
                }
                Err(Failure::Answer(error)) => {
                    self.check_in(connection);
                    return Err(error);
                }
                Err(Failure::Moved(moved)) => {
                    self.check_in(connection);
                    redirects.follow(self, database, moved, give_up).map_err(Failure::into_error)?;
                }
                Err(Failure::Lost(error)) => {
                    self.give_up(&connection);
                    if Instant::now() + wait >= give_up {
                        return Err(error);
                    }
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(RETRY_WAIT_MAX);
                }
            }
        }
    }

    /// Runs one reading operation many times, with all requests sent before the first answer is read. Returns the
    /// results in order.
    pub(crate) fn pipeline(&self, operation: Operation, database: &str, arguments: &[Value]) -> Result<Vec<Item>> {
        let (deadline, mut wait, mut redirects) = (self.deadline(), RETRY_WAIT, Redirects::default());
        loop {
            let mut connection = self.check_out(database, deadline).map_err(Failure::into_error)?;
            match Self::pipeline_on(&mut connection, operation, database, arguments, deadline) {
                Ok(results) => {
                    self.check_in(connection);
                    return results.into_iter().collect();
                }
                Err(Failure::Answer(error)) => {
                    // Answers to the other requests may follow.
                    self.give_up(&connection);
                    return Err(error);
                }
                Err(Failure::Moved(moved)) => {
                    self.give_up(&connection);
                    redirects.follow(self, database, moved, deadline).map_err(Failure::into_error)?;
                }
                Err(Failure::Lost(error)) => {
                    self.give_up(&connection);
                    if Instant::now() + wait >= deadline {
                        return Err(error);
                    }
                    std::thread::sleep(wait);
                    wait = (wait * 2).min(RETRY_WAIT_MAX);
                }
            }
        }
    }

    /// The results of requests, a group at a time, so that neither side waits for the other to read.
    fn pipeline_on(
        connection: &mut Connection,
        operation: Operation,
        database: &str,
        arguments: &[Value],
        deadline: Instant,
    ) -> Result<Vec<Result<Item>>, Failure> {
        let mut results = Vec::with_capacity(arguments.len());
        for group in arguments.chunks(PIPELINED_MAX) {
            let queue = |arguments| connection.queue(operation, database, None, arguments);
            let ids = group.iter().map(queue).collect::<Result<Vec<_>, _>>()?;
            connection.flush()?;
            results.extend(connection.results(&ids, deadline)?);
        }
        Ok(results)
    }

    /// Forgets a lost connection. The lane of a write that is repeated belongs to that write, which must not meet a
    /// later one of the same lane, so it is not used again.
    pub(crate) fn give_up_lane(&self, connection: &mut Connection, repeated: Option<Lane>) {
        if repeated.is_some_and(|lane| lane.id == connection.lane.id) {
            connection.lane = Lane::new();
        }
        self.give_up(connection);
    }
}
