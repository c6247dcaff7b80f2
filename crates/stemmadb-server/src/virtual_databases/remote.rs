//! Shards that are on other servers, and the record of where they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stemmadb::replication::Peer;
use stemmadb::{Document, Sequence, Value};
use stemmadb_federation::{Member, PlacementStore};
use stemmadb_http::library_error;
use stemmadb_http::url::{encode_id, encode_segment};
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use super::delegated::{DelegatedRequest, ON_BEHALF};
use super::whole::DESIGNS;
use super::{OpenVirtual, database_name};
use crate::auth::{Restriction, User};
use crate::directory::{Directory, ServedDatabase, WHOLE_DOCUMENT, WholeDatabase};
use crate::documents::print_document;
use crate::error::{Failure, Result};
use crate::http::{MemoryReservation, server_runtime};
use crate::servers::{HERE, OtherServer, OtherServers};
use crate::settings::SettingStore;

/// The status with which a shard refuses a request that names another version of what it obeys.
pub(crate) const OUTDATED: StatusCode = StatusCode::FAILED_DEPENDENCY;

/// How long a server holds back an answer while nothing changes.
const WATCH_TIMEOUT: Duration = Duration::from_secs(25);
/// The wait before a server that did not answer is asked again.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// A shard, on this server or on another one.
#[derive(Clone)]
pub(crate) enum Shard {
    Here(Arc<ServedDatabase>),
    There(Arc<RemoteShard>),
}

impl Shard {
    /// The database, if it is on this server.
    pub(crate) fn here(&self) -> Option<&Arc<ServedDatabase>> {
        match self {
            Shard::Here(served) => Some(served),
            Shard::There(_) => None,
        }
    }

    /// The shard, if it is on another server.
    pub(super) fn there(&self) -> Option<&Arc<RemoteShard>> {
        match self {
            Shard::Here(_) => None,
            Shard::There(remote) => Some(remote),
        }
    }

    /// Says to a new shard on another server that it is one of the virtual database `name`.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(super) async fn begin(&self, name: &str) -> Result<()> {
        match self {
            Shard::Here(_) => Ok(()),
            Shard::There(remote) => remote.mark(&WholeDatabase::new(name, Arc::default(), Vec::new())).await,
        }
    }

    /// Whether this is the same shard.
    pub(super) fn is_same(&self, other: &Shard) -> bool {
        match (self, other) {
            (Shard::Here(one), Shard::Here(other)) => Arc::ptr_eq(one, other),
            (Shard::There(one), Shard::There(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The name of its server.
    pub(crate) fn server(&self) -> &str {
        match self {
            Shard::Here(_) => HERE,
            Shard::There(remote) => &remote.server.name,
        }
    }

    /// The shard as a part of the library's virtual database.
    pub(super) fn member(&self, shard: &str) -> Member {
        match self {
            Shard::Here(served) => Member::from(served.database().clone()).named(shard),
            Shard::There(remote) => remote.member(shard),
        }
    }

    /// The shard as one side of a replication.
    pub(super) fn peer(&self) -> Arc<dyn Peer> {
        match self {
            Shard::Here(served) => Arc::new(served.database().clone()),
            Shard::There(remote) => remote.server.peer(&remote.database),
        }
    }

    /// A receiver that is notified when the shard has changed.
    pub(crate) fn published(&self) -> watch::Receiver<Sequence> {
        match self {
            Shard::Here(served) => served.published(),
            Shard::There(remote) => remote.published(),
        }
    }
}

/// A shard on another server: an ordinary database there, which nobody else writes.
pub(crate) struct RemoteShard {
    pub(crate) server: Arc<OtherServer>,
    /// The name of its database.
    pub(crate) database: String,
    watcher: Arc<Watcher>,
    /// The generation and the version of what it obeys, as far as it was given.
    pub(super) given: tokio::sync::Mutex<Option<(u64, String)>>,
}

/// Notices changes of a shard on another server, as long as somebody waits for them.
struct Watcher {
    /// Counts notifications.
    changed: watch::Sender<Sequence>,
    is_running: Mutex<bool>,
}

impl RemoteShard {
    pub(super) fn new(server: Arc<OtherServer>, database: String) -> Self {
        let watcher = Watcher { changed: watch::channel(Sequence::ZERO).0, is_running: Mutex::new(false) };
        RemoteShard { server, database, watcher: Arc::new(watcher), given: tokio::sync::Mutex::default() }
    }

    /// Creates the database, as a shard of `name`. One that exists is used if it is empty, which the library checks.
    pub(super) async fn create(&self, name: &str) -> Result<()> {
        match self.ask(Method::PUT, "", None, None).await {
            Err(failure) if failure.status() == StatusCode::PRECONDITION_FAILED => {
                let (_, info) = self.ask(Method::GET, "", None, None).await?;
                if Value::parse(&info)?.get("doc_count").and_then(Value::as_u64) != Some(0) {
                    return Ok(());
                }
            }
            created => created.map(drop)?,
        }
        self.mark(&WholeDatabase::new(name, Arc::default(), Vec::new())).await
    }

    /// Says to the database that it is a shard, and what it obeys.
    pub(super) async fn mark(&self, whole: &WholeDatabase) -> Result<()> {
        let stored = whole.to_value().to_json();
        self.ask(Method::PUT, &format!("/{WHOLE_DOCUMENT}"), Some(stored.into()), None).await.map(drop)
    }

    /// Deletes the database.
    pub(super) async fn delete(&self) -> Result<()> {
        match self.ask(Method::DELETE, "", None, None).await {
            Err(failure) if failure.status() == StatusCode::NOT_FOUND => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// The shard as a part of the library's virtual database.
    fn member(&self, shard: &str) -> Member {
        let member = Member::from(self.server.database(&self.database)).named(shard);
        member.copied_by(self.server.peer(&self.database))
    }

    /// The path of the database's route `rest`, which begins with a slash or is empty.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/{}{rest}", encode_segment(&self.database))
    }

    /// Asks the server; returns the status and the answer. `rest` follows the name of the database.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(crate) async fn ask(
        &self,
        method: Method,
        rest: &str,
        body: Option<Bytes>,
        reservation: Option<&MemoryReservation>,
    ) -> Result<(StatusCode, Bytes)> {
        self.server.ask(method, &self.path(rest), body, reservation).await
    }

    /// As [`RemoteShard::ask`], with headers that name a user of the virtual database.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(crate) async fn ask_with(
        &self,
        headers: HeaderMap,
        method: Method,
        rest: &str,
        body: Option<Bytes>,
        reservation: &MemoryReservation,
    ) -> Result<(StatusCode, Bytes)> {
        let asked = self.server.ask_with(headers, method, &self.path(rest), body, Some(reservation)).await;
        match asked {
            Err(failure) if failure.status() == OUTDATED => Err(self.outdated().await),
            asked => asked,
        }
    }

    /// A local document of the shard.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(crate) async fn local_document(&self, id: &str) -> Result<Option<Value>> {
        match self.ask(Method::GET, &format!("/{}", encode_id(id)), None, None).await {
            Ok((_, stored)) => Ok(Some(Value::parse(&stored)?)),
            Err(failure) if failure.status() == StatusCode::NOT_FOUND => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The local documents whose ids begin with a prefix.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(super) async fn local_documents(&self, prefix: &str) -> Result<Vec<(String, Value)>> {
        let key = |end: &str| encode_segment(&Value::from(format!("{prefix}{end}")).to_json());
        let range = format!("?include_docs=true&startkey={}&endkey={}", key(""), key("\u{ffff}"));
        let (_, listed) = self.ask(Method::GET, &format!("/_local_docs{range}"), None, None).await?;
        let listed = Value::parse(&listed)?;
        let rows = listed.get("rows").and_then(Value::as_array).unwrap_or_default().iter();
        Ok(rows.filter_map(|row| Some((row.get("id")?.as_str()?.to_owned(), row.get("doc")?.clone()))).collect())
    }

    /// The error for a shard that obeys another version than it was given: its database was replaced.
    pub(crate) async fn outdated(&self) -> Failure {
        self.forget_given().await;
        let reason = format!("The shard on the server `{}` was replaced: repeat the request.", self.server.name);
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
    }

    /// The header by which a request to the shard is one of a user, who may read what the restriction says.
    ///
    /// # Errors
    /// 503 if the server does not answer; 501 if the access rule is too long for a header.
    pub(crate) async fn on_behalf(
        &self,
        open: &OpenVirtual,
        user: &User,
        restriction: Option<&Restriction>,
    ) -> Result<(HeaderName, HeaderValue)> {
        let version = self.share(&open.shared_whole()).await?;
        Ok((ON_BEHALF, DelegatedRequest::header(user, restriction, &version)?))
    }

    /// The shard as one side of a replication in the name of a user who may read everything.
    ///
    /// # Errors
    /// As [`RemoteShard::on_behalf`].
    pub(crate) async fn peer_on_behalf(&self, open: &OpenVirtual, user: &User) -> Result<Arc<dyn Peer>> {
        let (name, value) = self.on_behalf(open, user, None).await?;
        let value = value.to_str().map_err(|error| Failure::internal(error.to_string()))?.to_owned();
        Ok(self.server.peer_with(&self.database, [(name.to_string(), value)]))
    }

    /// A document of the shard as JSON, with these parameters of a request, to follow others. Blocks.
    ///
    /// # Errors
    /// As [`OtherServer::ask`].
    pub(crate) fn print(&self, document: &Document, parameters: &str) -> Result<Vec<u8>> {
        let known = || {
            let mut text = Vec::new();
            print_document(document, &mut text)?;
            Ok(text)
        };
        if parameters.is_empty() && document.attachments()?.is_empty() {
            return known();
        }
        let path = format!("/{}?rev={}{parameters}", encode_id(document.id().as_str()), document.revision());
        match server_runtime().block_on(self.ask(Method::GET, &path, None, None)) {
            Ok((_, text)) => Ok(text.trim_ascii_end().to_vec()),
            // It was replaced meanwhile, and is not stored any more.
            Err(failure) if failure.status() == StatusCode::NOT_FOUND => known(),
            Err(failure) => Err(failure),
        }
    }

    fn published(&self) -> watch::Receiver<Sequence> {
        let receiver = self.watcher.changed.subscribe();
        let mut is_running = self.watcher.is_running.lock();
        if !*is_running {
            *is_running = true;
            let (server, path, watcher) = (self.server.clone(), self.path("/_changes"), self.watcher.clone());
            server_runtime().spawn(async move { watcher.run(&server, &path).await });
        }
        receiver
    }
}

impl Watcher {
    /// Asks for changes until nobody waits for them.
    async fn run(&self, server: &OtherServer, path: &str) {
        let mut since = None;
        while !self.stops() {
            match next(server, path, since.as_deref()).await {
                Ok(reached) if since.as_ref() == Some(&reached) => {}
                Ok(reached) => {
                    since = Some(reached);
                    self.notify();
                }
                Err(_) => {
                    // Whoever reads the shard gets the error.
                    self.notify();
                    since = None;
                    sleep(RETRY_WAIT).await;
                }
            }
        }
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count = Sequence::new(count.get() + 1));
    }

    fn stops(&self) -> bool {
        let mut is_running = self.is_running.lock();
        *is_running = self.changed.receiver_count() > 0;
        !*is_running
    }
}

/// The newest position of a changes feed, after it has changed or nothing happened for a while.
async fn next(server: &OtherServer, path: &str, since: Option<&str>) -> Result<String> {
    let query = match since {
        None => "?since=now&limit=0".to_owned(),
        Some(since) => {
            let wait = WATCH_TIMEOUT.as_millis();
            format!("?feed=longpoll&limit=1&timeout={wait}&since={}", encode_segment(since))
        }
    };
    let (_, answer) = server.ask(Method::GET, &format!("{path}{query}"), None, None).await?;
    let answer = Value::parse(&answer)?;
    let position = answer.get("last_seq").and_then(Value::as_str);
    position.map(str::to_owned).ok_or_else(|| Failure::internal("a changes feed has no last_seq"))
}

/// What the directory records of a virtual database, besides its entry: the placement of its buckets, and where the
/// shards are that are on other servers.
#[derive(Clone)]
pub(super) struct VirtualRecord {
    directory: Arc<Directory>,
    name: String,
    /// In a cluster, what only the server has stored that has the virtual database open.
    holder: Option<Value>,
}

/// The kinds of the directory's records, by the name of the virtual database.
pub(super) const PLACEMENTS: &str = "placement";
const LOCATIONS: &str = "shard_locations";
/// In a cluster: which server has it open. A value that is new for each opening.
const HOLDERS: &str = "shard_holder";

/// The server and the database of a shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Location {
    pub(super) server: String,
    database: String,
}

impl Location {
    /// The shard there.
    ///
    /// # Errors
    /// 404 if the server is not known any more.
    pub(super) fn open(&self, servers: &OtherServers) -> Result<Shard> {
        Ok(Shard::There(Arc::new(RemoteShard::new(servers.get(&self.server)?, self.database.clone()))))
    }
}

/// Where a replica is, and which shard it follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReplicaLocation {
    pub(super) of: String,
    pub(super) server: String,
    pub(super) database: String,
}

/// The shards on other servers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Locations {
    pub(super) shards: BTreeMap<String, Location>,
    /// How many replicas each shard has, and the servers for them.
    pub(super) replica_count: usize,
    pub(super) servers: Vec<String>,
    /// By their names.
    pub(super) replicas: BTreeMap<String, ReplicaLocation>,
    /// The live bytes above which a shard is split.
    pub(super) shard_bytes_max: Option<u64>,
    /// The greatest number that a shard's name ever had: a name stands for one database in positions of feeds.
    pub(super) last_number: u64,
}

impl Locations {
    pub(super) fn add(&mut self, shard: &str, remote: &RemoteShard) {
        let location = Location { server: remote.server.name.clone(), database: remote.database.clone() };
        self.shards.insert(shard.to_owned(), location);
    }

    /// Forgets a replica; what there is of its database is deleted later, as that of a former shard.
    pub(super) fn abandon_replica(&mut self, name: &str) {
        if let Some(ReplicaLocation { server, database, .. }) = self.replicas.remove(name)
            && server != HERE
        {
            self.shards.insert(name.to_owned(), Location { server, database });
        }
    }

    /// Whether a shard or a replica is on a server.
    pub(super) fn is_on(&self, server: &str) -> bool {
        let shards = self.shards.values().map(|location| &location.server);
        shards.chain(self.replicas.values().map(|replica| &replica.server)).any(|on| on == server)
    }

    pub(super) fn add_replica(&mut self, name: &str, of: &str, server: &str, virtual_database: &str) {
        let (of, server, database) = (of.to_owned(), server.to_owned(), database_name(virtual_database, name));
        self.replicas.insert(name.to_owned(), ReplicaLocation { of, server, database });
    }
}

impl VirtualRecord {
    pub(super) fn of(directory: &Arc<Directory>, name: &str) -> Self {
        VirtualRecord { directory: directory.clone(), name: name.to_owned(), holder: None }
    }

    /// The record as the server changes it that opens the virtual database: in a cluster, a server that had it open
    /// before can change nothing from now on. Blocks.
    pub(super) fn held(directory: &Arc<Directory>, name: &str) -> Result<Self> {
        let mut record = VirtualRecord::of(directory, name);
        if directory.is_in_cluster() {
            let holder = Uuid::new_v4().to_string();
            directory.put_record(HOLDERS, name, &holder.as_str().into())?;
            record.holder = Some(holder.into());
        }
        Ok(record)
    }

    /// Reads the record of a kind. Blocks.
    pub(super) fn read(&self, kind: &str) -> Result<Option<Value>> {
        let records = self.directory.records(kind)?;
        Ok(records.into_iter().find(|(name, _)| *name == self.name).map(|(_, record)| record))
    }

    /// Stores the record of a kind. Blocks until it is flushed.
    ///
    /// # Errors
    /// 503 if that fails, or another server of the cluster has opened the virtual database.
    pub(super) fn put(&self, kind: &str, record: &serde_json::Value) -> Result<()> {
        match &self.holder {
            Some(holder) => self.directory.put_record_as((HOLDERS, holder), kind, &self.name, record),
            None => self.directory.put_record(kind, &self.name, record),
        }
    }

    /// The shards on other servers. Blocks.
    pub(super) fn locations(&self) -> Result<Locations> {
        let Some(record) = self.read(LOCATIONS)? else { return Ok(Locations::default()) };
        record.deserialize_into().map_err(|error| {
            Failure::internal(format!("the record of the shards of `{}` is malformed: {error}", self.name))
        })
    }

    /// Changes which shards are on other servers. Blocks until that is flushed.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Locations) -> T) -> Result<T> {
        let mut locations = self.locations()?;
        let changed = change(&mut locations);
        self.put(LOCATIONS, &serde_json::json!(locations))?;
        Ok(changed)
    }

    /// A name for a new shard, which none had before. `known` are the names of all shards. Blocks.
    pub(super) fn new_name(&self, known: &[String]) -> Result<String> {
        self.change(|locations| {
            let number = |name: &String| name.strip_prefix("shard-")?.parse::<u64>().ok();
            let last = known.iter().filter_map(number).max().unwrap_or_default().max(locations.last_number);
            locations.last_number = last + 1;
            format!("shard-{}", last + 1)
        })
    }

    /// The replicas that are no shards: one that takes the place of its shard is both for a moment. Blocks.
    pub(super) fn replicas(&self) -> Result<Vec<String>> {
        let placement = self.read(PLACEMENTS)?;
        let shards = placement.as_ref().and_then(|placement| placement.get("shards")).and_then(Value::as_array);
        let placed: Vec<&str> =
            shards.unwrap_or_default().iter().filter_map(|shard| shard.get("name")?.as_str()).collect();
        Ok(self.locations()?.replicas.into_keys().filter(|name| !placed.contains(&name.as_str())).collect())
    }

    /// The shards that are on other servers. Blocks.
    ///
    /// # Errors
    /// 404 if a server is not known any more.
    pub(super) fn open(&self, servers: &OtherServers) -> Result<Vec<(String, Shard)>> {
        let open = |(shard, location): (String, Location)| Ok((shard, location.open(servers)?));
        self.locations()?.shards.into_iter().map(open).collect()
    }

    /// The databases of shards and replicas that are on other servers, as far as these are known. Blocks.
    pub(super) fn all(&self, servers: &OtherServers) -> Result<Vec<RemoteShard>> {
        let Locations { shards, replicas, .. } = self.locations()?;
        let shards = shards.into_values().map(|Location { server, database }| (server, database));
        let replicas = replicas.into_values().map(|replica| (replica.server, replica.database));
        let open = |(server, database): (String, String)| Some(RemoteShard::new(servers.get(&server).ok()?, database));
        Ok(shards.chain(replicas).filter_map(open).collect())
    }

    /// Removes the records. Blocks.
    pub(super) fn remove(&self) -> Result<()> {
        let kinds = [PLACEMENTS, LOCATIONS, DESIGNS, HOLDERS];
        kinds.iter().try_for_each(|kind| self.directory.remove_record(kind, &self.name))
    }
}

impl PlacementStore for VirtualRecord {
    fn load(&self) -> stemmadb::Result<Option<Value>> {
        self.read(PLACEMENTS).map_err(|failure| library_error(&failure))
    }

    fn store(&self, placement: &Value) -> stemmadb::Result<()> {
        let stored = serde_json::to_value(placement).map_err(|error| Failure::internal(error.to_string()));
        let stored = stored.and_then(|record| self.put(PLACEMENTS, &record));
        stored.map_err(|failure| library_error(&failure))
    }
}

impl OpenVirtual {
    /// A new shard on another server. Nothing is sent.
    pub(super) fn remote_shard(&self, shard: &str, server: Arc<OtherServer>) -> Arc<RemoteShard> {
        Arc::new(RemoteShard::new(server, database_name(self.own.name(), shard)))
    }
}
