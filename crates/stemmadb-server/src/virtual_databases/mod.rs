//! Virtual databases: each looks like one database, and stores its documents in several databases of this server and of
//! others.
//!
//! A virtual database `v` is in the directory twice: as `v`, which has its `_local` documents and its `_security`, and
//! as its shards `v/shard-1`, `v/shard-2` and so on, which clients can't reach. The crate `stemmadb-federation` knows
//! which shard has which documents ([`VirtualDatabase`]); this module opens the shards, and moves documents between
//! them. A shard on another server is an ordinary database there ([`RemoteShard`]): this server is the only one that
//! divides requests and moves documents.
//!
//! Invariants: a request holds the fence for reading from before it looks up a shard until it has read or written
//! there, and a move holds it for writing while it changes which shard has a document. The shards are created before
//! the entry of `v`, and removed after it; the directory removes shards without it at its next start.

mod databases;
mod delegated;
mod moves;
mod past;
mod reading;
mod remote;
mod replicas;
mod restored;
mod split;
mod whole;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use stemmadb::Sequence;
use stemmadb_federation::{Grouping, VirtualDatabase};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, watch};
use tokio::time::timeout;

use crate::directory::{DatabaseKind, Directory, NewDatabase, ServedDatabase, WRITE_RECORDS};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::servers::{HERE, OtherServers};
pub(crate) use databases::{Databases, Layout, Snapshots};
pub(crate) use delegated::DelegatedRequest;
pub(crate) use moves::MoveRequest;
use moves::Mover;
use past::PastShards;
pub(crate) use reading::FencedVirtual;
pub(crate) use remote::Location;
use remote::{Locations, VirtualRecord};
pub(crate) use remote::{OUTDATED, RemoteShard, Shard};
pub(crate) use replicas::PromoteRequest;
use replicas::Replica;
pub(crate) use restored::{PartBackup, VirtualManifest};
pub(crate) use split::TEND_INTERVAL;
use split::check_shard_bytes_max;
pub(crate) use whole::DesignWrite;
use whole::SharedRules;

/// The most shards that a virtual database is created with.
const SHARDS_MAX: usize = 64;

/// How long opening the shards again waits for requests that use them.
const REOPEN_WAIT: Duration = Duration::from_secs(1);

/// The virtual databases of a server.
pub(crate) struct VirtualDatabases {
    directory: Arc<Directory>,
    servers: Arc<OtherServers>,
    slots: Mutex<HashMap<String, Arc<VirtualSlot>>>,
    /// Held while one is created.
    creating: tokio::sync::Mutex<()>,
    stopping: watch::Receiver<bool>,
}

/// A new virtual database.
pub(crate) struct NewVirtual {
    pub(crate) shard_count: usize,
    pub(crate) grouping: Grouping,
    /// The servers on which the shards lie, in turns; none: here.
    pub(crate) servers: Vec<String>,
    /// How many replicas each shard has on others of these servers.
    pub(crate) replica_count: usize,
    /// The live bytes above which a shard is split.
    pub(crate) shard_bytes_max: Option<u64>,
}

/// A virtual database, which is opened on first use.
struct VirtualSlot {
    name: String,
    directory: Arc<Directory>,
    servers: Arc<OtherServers>,
    /// Requests hold it for reading while they use shards, a move for writing while documents change shards.
    fence: Arc<tokio::sync::RwLock<()>>,
    opened: RwLock<Option<Arc<OpenVirtual>>>,
    /// What is recorded of it, since it was opened.
    record: Mutex<VirtualRecord>,
    /// Held while it is opened or deleted, and while a step of a move runs.
    changing: Arc<tokio::sync::Mutex<()>>,
    mover: Mutex<Mover>,
    stopping: watch::Receiver<bool>,
}

/// An open virtual database. Its shards stay open.
pub(crate) struct OpenVirtual {
    pub(crate) database: VirtualDatabase,
    /// What it stores itself: `_local` documents, `_security`.
    pub(crate) own: Arc<ServedDatabase>,
    /// The shards by their names within it.
    shards: RwLock<HashMap<String, Shard>>,
    replicas: Mutex<Vec<Replica>>,
    layout: RwLock<Arc<Layout>>,
    rules: SharedRules,
    /// The version of the placement, for feeds that wait for changes of all shards.
    epoch: watch::Sender<u64>,
}

/// Signals of changes of the documents of all shards, and of the placement.
pub(crate) struct ShardSignals {
    epoch: watch::Receiver<u64>,
    published: Vec<watch::Receiver<Sequence>>,
}

impl ShardSignals {
    /// Waits for a change; returns false if the shards were closed.
    pub(crate) async fn changed(&mut self) -> bool {
        let changed = select_all(self.published.iter_mut().map(|published| Box::pin(published.changed())));
        tokio::select! {
            _ = self.epoch.changed() => true,
            // A shard that was merged away is closed after the epoch has changed.
            (changed, ..) = changed => changed.is_ok() || self.epoch.has_changed().is_ok_and(|has_changed| has_changed),
        }
    }
}

/// A virtual database as a request uses it: no document changes its shard as long as it exists.
pub(crate) struct EnteredVirtual {
    pub(crate) open: Arc<OpenVirtual>,
    layout: Arc<Layout>,
    /// What is read of the past, if the request names a time.
    past: Option<Arc<PastShards>>,
    guard: OwnedRwLockReadGuard<()>,
}

impl EnteredVirtual {
    /// The shards, and which of them has which documents.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        self.layout.clone()
    }

    /// The shard that has a document.
    pub(crate) fn shard_of(&self, id: &str) -> Shard {
        self.layout.shard_of(id)
    }

    /// Whether shards are on other servers.
    pub(crate) fn is_spread(&self) -> bool {
        self.layout.is_spread()
    }

    /// Checks that documents always stay in one shard.
    ///
    /// # Errors
    /// 400 if they are in different buckets.
    pub(crate) fn check_one_bucket<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let mut ids = ids.into_iter();
        let Some(first) = ids.next() else { return Ok(()) };
        let bucket = self.open.database.bucket(first);
        match ids.find(|id| self.open.database.bucket(id) != bucket) {
            None => Ok(()),
            Some(other) => Err(Failure::bad_request(format!(
                "The documents `{first}` and `{other}` lie in different buckets of the virtual database, and a \
                 transaction is within one. Documents with a common prefix are in one, if the database was created \
                 with `prefix`."
            ))),
        }
    }

    /// Distinguishes the parts that documents are in, also the one with `_local` documents.
    pub(crate) fn part_of(&self, id: &str) -> usize {
        if id.starts_with("_local/") { usize::MAX } else { self.layout.index_of(id) }
    }

    /// What keeps documents in their shards, as long as it exists.
    pub(crate) fn into_guard(self) -> OwnedRwLockReadGuard<()> {
        self.guard
    }

    /// The databases that have the documents of the request.
    pub(crate) fn into_databases(self) -> Databases {
        Databases::entered(self.layout, self.guard)
    }
}

impl OpenVirtual {
    fn new(
        database: VirtualDatabase,
        own: Arc<ServedDatabase>,
        shards: HashMap<String, Shard>,
        record: VirtualRecord,
    ) -> Self {
        let rules = SharedRules::new(record, &own);
        let layout = RwLock::new(Arc::new(Layout::of_shards(database.map(), own.clone(), &shards)));
        let epoch = watch::channel(database.epoch()).0;
        OpenVirtual { database, own, shards: RwLock::new(shards), replicas: Mutex::default(), layout, rules, epoch }
    }

    /// The shards, and which of them has which documents.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        let layout = self.layout.read().clone();
        let map = self.database.map();
        if layout.epoch() == Some(map.epoch()) {
            return layout;
        }
        let layout = Arc::new(Layout::of_shards(map, self.own.clone(), &self.shards.read()));
        self.share();
        *self.layout.write() = layout.clone();
        layout
    }

    /// Signals of all changes from now on. A reader takes them before it reads.
    pub(crate) fn signals(&self) -> ShardSignals {
        // The epoch comes first: its change means that there may be other shards.
        let mut epoch = self.epoch.subscribe();
        epoch.borrow_and_update();
        let mut published = self.layout().published();
        // It ends when the database is closed: another server of the cluster has it then.
        published.push(self.own.published());
        published.iter_mut().for_each(|published| drop(published.borrow_and_update()));
        ShardSignals { epoch, published }
    }

    /// Names the state of all parts: another one after every change. Blocks.
    pub(crate) fn newest_state(&self) -> String {
        let (own, shards) = (self.own.database().sequence(), self.database.changes().newest_token());
        format!("{} {} {shards}", own.get(), self.database.epoch())
    }

    /// The shards on this server, also those that are about to be removed.
    pub(crate) fn shards_here(&self) -> Vec<Arc<ServedDatabase>> {
        self.shards.read().values().filter_map(Shard::here).cloned().collect()
    }

    /// The name of a shard's server.
    pub(crate) fn server_of(&self, shard: &str) -> String {
        self.shards.read().get(shard).map_or(HERE, Shard::server).to_owned()
    }

    /// The name of a shard's database.
    pub(crate) fn database_name(&self, shard: &str) -> String {
        database_name(self.own.name(), shard)
    }

    fn is_usable(&self) -> bool {
        let is_usable =
            |served: &Arc<ServedDatabase>| !served.is_closed() && served.takes_writes() && served.is_owned();
        is_usable(&self.own) && self.shards.read().values().filter_map(Shard::here).all(is_usable)
    }

    /// Whether these are the databases that it uses.
    fn has(&self, own: &Arc<ServedDatabase>, shards: &HashMap<String, Shard>) -> bool {
        let known = self.shards.read();
        let is_known = |(name, shard): (&String, &Shard)| match (known.get(name), shard) {
            (Some(Shard::Here(known)), Shard::Here(served)) => Arc::ptr_eq(known, served),
            (Some(Shard::There(known)), Shard::There(remote)) => known.server.name == remote.server.name,
            _ => false,
        };
        Arc::ptr_eq(&self.own, own) && known.len() == shards.len() && shards.iter().all(is_known)
    }
}

/// The name of the database of a shard.
fn database_name(database: &str, shard: &str) -> String {
    format!("{database}/{shard}")
}

/// The name of a shard within its virtual database.
fn shard_name(database: &str, shard_database: &str) -> String {
    let rest = shard_database.strip_prefix(database).and_then(|rest| rest.strip_prefix('/'));
    rest.unwrap_or(shard_database).to_owned()
}

impl VirtualDatabases {
    pub(crate) fn new(directory: Arc<Directory>, servers: Arc<OtherServers>, stopping: watch::Receiver<bool>) -> Self {
        let (slots, creating) = (Mutex::default(), tokio::sync::Mutex::default());
        VirtualDatabases { directory, servers, slots, creating, stopping }
    }

    /// Creates a virtual database. A failed creation leaves nothing behind.
    ///
    /// # Errors
    /// 400 if the name or the number of shards is invalid; 404 if a server is not known; 412 if a database has the name
    /// of it or of a shard.
    pub(crate) async fn create(&self, name: &str, new: NewVirtual) -> Result<()> {
        if !(1..=SHARDS_MAX).contains(&new.shard_count) {
            return Err(Failure::bad_request(format!("`shards` is a number from 1 to {SHARDS_MAX}")));
        }
        if self.servers.cluster().is_some() && new.replica_count > 0 && new.servers.is_empty() {
            let reason = "A cluster stores copies of each shard itself: leave `replicas` out, or name other `servers`";
            return Err(Failure::bad_request(reason));
        }
        check_shard_bytes_max(new.shard_bytes_max)?;
        let _creating = self.creating.lock().await;
        self.directory.check_virtual_name(name)?;
        // An earlier creation or deletion was interrupted.
        for shard in self.directory.shards_of(name) {
            self.delete_shard_here(&shard).await?;
        }
        let mut created = Vec::new();
        let result = self.create_parts(name, &new, &mut created).await;
        if result.is_err() {
            self.delete_created(name, created).await;
        }
        result
    }

    /// Deletes the shards of a virtual database that could not be created.
    async fn delete_created(&self, name: &str, created: Vec<(String, Shard)>) {
        for (shard, part) in created {
            // The next start removes what can't be removed now, unless it is on another server.
            match part {
                Shard::Here(_) => self.delete_shard_here(&database_name(name, &shard)).await.ok(),
                Shard::There(remote) => remote.delete().await.ok(),
            };
        }
    }

    async fn create_parts(&self, name: &str, new: &NewVirtual, created: &mut Vec<(String, Shard)>) -> Result<()> {
        let mut locations = Locations { shard_bytes_max: new.shard_bytes_max, ..Locations::default() };
        locations.set_replicas(new.replica_count, new.servers.clone())?;
        for number in 1..=new.shard_count {
            let (shard, at) = (format!("shard-{number}"), (number - 1) % new.servers.len().max(1));
            let server = new.servers.get(at).map_or(HERE, String::as_str);
            created.push((shard.clone(), create_shard(&self.directory, &self.servers, name, &shard, server).await?));
        }
        let members: Vec<_> = created.iter().map(|(shard, part)| part.member(shard)).collect();
        let grouping = new.grouping;
        blocking(move || Ok(VirtualDatabase::create(members, grouping)?)).await?;
        let remote = |(shard, part): &(String, Shard)| match part {
            Shard::There(remote) if part.server() != HERE => Some((shard.clone(), remote.clone())),
            _ => None,
        };
        let remote: Vec<_> = created.iter().filter_map(remote).collect();
        let record = VirtualRecord::of(&self.directory, name);
        blocking(move || {
            // Of a database of this name whose deletion was interrupted.
            record.remove()?;
            remote.iter().for_each(|(shard, remote)| locations.add(shard, remote));
            record.change(|stored| *stored = locations)
        })
        .await?;
        self.directory.create_with(name, of_kind(DatabaseKind::Virtual)).await?;
        if new.replica_count > 0 {
            self.open(name).await?;
        }
        Ok(())
    }

    /// Makes this server the one that divides the requests to a virtual database, in place of a server that is lost.
    /// `shards` are the databases of all shards, or of replicas in their places, on servers that this one knows.
    ///
    /// # Errors
    /// 400 if the shards are not those of one virtual database; 404 if a server is not known; 412 if there is a
    /// database of this name.
    pub(crate) async fn adopt(&self, name: &str, shards: BTreeMap<String, Location>) -> Result<()> {
        self.directory.check_virtual_name(name)?;
        shards.values().try_for_each(|location| self.servers.get(&location.server).map(drop))?;
        let (record, servers) = (VirtualRecord::of(&self.directory, name), self.servers.clone());
        blocking(move || {
            record.remove()?;
            record.change(|locations| locations.shards = shards)?;
            // The placement is that of the shards, all of which are needed once.
            let members: Vec<_> = record.open(&servers)?.iter().map(|(shard, part)| part.member(shard)).collect();
            let adopted = VirtualDatabase::open_in(Arc::new(record.clone()), members);
            if adopted.is_err() {
                record.remove()?;
            }
            adopted.map(drop).map_err(|error| {
                let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                Failure::bad_request(format!(
                    "These are not the shards of a virtual database: {}{hint}",
                    error.message()
                ))
            })
        })
        .await?;
        self.directory.create_with(name, of_kind(DatabaseKind::Virtual)).await
    }

    /// Deletes a virtual database with its shards.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let slot = self.slot(name)?;
        slot.mover.lock().stop();
        let _changing = slot.changing.lock().await;
        let shards = self.directory.shards_of(name);
        let (record, servers) = (VirtualRecord::of(&self.directory, name), self.servers.clone());
        let remote = blocking(move || record.all(&servers)).await?;
        self.directory.delete_part(name).await?;
        let opened = slot.opened.write().take();
        if let Some(open) = opened {
            open.stop_replicas().await?;
        }
        self.slots.lock().remove(name);
        for shard in shards {
            self.delete_shard_here(&shard).await?;
        }
        for shard in remote {
            if let Err(failure) = shard.delete().await {
                let database = &shard.database;
                tracing::warn!(target: "stemma::database", "deleting {database} of {name}, a former shard: {failure}");
            }
        }
        let record = VirtualRecord::of(&self.directory, name);
        blocking(move || record.remove()).await
    }

    /// Deletes the database of a shard of this server, or of its cluster.
    async fn delete_shard_here(&self, database: &str) -> Result<()> {
        match self.servers.cluster() {
            Some(cluster) => RemoteShard::new(cluster.clone(), database.to_owned()).delete().await,
            None => self.directory.delete_part(database).await,
        }
    }

    /// A virtual database that has shards on a server.
    pub(crate) async fn database_on(&self, server: &str) -> Result<Option<String>> {
        for name in self.directory.virtual_names() {
            let record = VirtualRecord::of(&self.directory, &name);
            let locations = blocking(move || record.locations()).await?;
            if locations.is_on(server) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn slot(&self, name: &str) -> Result<Arc<VirtualSlot>> {
        if !self.directory.is_virtual(name) {
            return Err(Failure::no_database());
        }
        let new = || {
            Arc::new(VirtualSlot {
                name: name.to_owned(),
                directory: self.directory.clone(),
                servers: self.servers.clone(),
                fence: Arc::default(),
                opened: RwLock::default(),
                record: Mutex::new(VirtualRecord::of(&self.directory, name)),
                changing: Arc::default(),
                mover: Mutex::default(),
                stopping: self.stopping.clone(),
            })
        };
        Ok(self.slots.lock().entry(name.to_owned()).or_insert_with(new).clone())
    }

    /// Opens a virtual database for a request.
    ///
    /// # Errors
    /// 404 if there is none; 503 if a shard can't be opened.
    pub(crate) async fn enter(&self, name: &str) -> Result<EnteredVirtual> {
        let slot = self.slot(name)?;
        loop {
            let open = slot.open().await?;
            open.refresh_rules().await?;
            let guard = slot.fence.clone().read_owned().await;
            if slot.is_current(&open) {
                let layout = open.layout();
                return Ok(EnteredVirtual { open, layout, past: None, guard });
            }
        }
    }

    /// Opens a virtual database, for reads of all shards by the library, which holds back moves itself.
    ///
    /// # Errors
    /// As [`VirtualDatabases::enter`].
    pub(crate) async fn open(&self, name: &str) -> Result<Arc<OpenVirtual>> {
        self.slot(name)?.open().await
    }

    /// Ends the steps of moves, which continue at the next start.
    pub(crate) fn stop(&self) {
        for slot in self.slots.lock().values() {
            slot.mover.lock().stop();
            slot.opened.read().iter().for_each(|open| open.replicas.lock().clear());
        }
    }
}

/// Creates the database of a shard on a server.
async fn create_shard(
    directory: &Arc<Directory>,
    servers: &OtherServers,
    name: &str,
    shard: &str,
    server: &str,
) -> Result<Shard> {
    let database = database_name(name, shard);
    if server != HERE {
        let remote = RemoteShard::new(servers.get(server)?, database);
        remote.create(name).await?;
        return Ok(Shard::There(Arc::new(remote)));
    }
    directory.create_with(&database, kind_of_shard(servers, name)).await?;
    let shard = open_shard_here(directory, servers, &database).await?;
    shard.begin(name).await?;
    Ok(shard)
}

/// The kind of the shards of a virtual database that are here, or in this server's cluster.
fn kind_of_shard(servers: &OtherServers, name: &str) -> NewDatabase {
    of_kind(match servers.cluster() {
        Some(_) => DatabaseKind::ClusterShard(name.to_owned()),
        None => DatabaseKind::Shard(name.to_owned()),
    })
}

/// A shard of this server, or of its cluster: there, it is used as one of another server, whichever has it.
async fn open_shard_here(directory: &Arc<Directory>, servers: &OtherServers, database: &str) -> Result<Shard> {
    match servers.cluster() {
        Some(cluster) => Ok(Shard::There(Arc::new(RemoteShard::new(cluster.clone(), database.to_owned())))),
        None => Ok(Shard::Here(directory.open_part(database).await?)),
    }
}

/// Keeps the results of writes that may be repeated, of a shard that is removed.
async fn keep_write_records(own: &Arc<ServedDatabase>, name: &str, shard: &Shard) -> Result<()> {
    let records = match shard {
        Shard::Here(served) => {
            let served = served.clone();
            blocking(move || Ok(served.database().local_documents().list(WRITE_RECORDS)?)).await?
        }
        // A server that is lost must not hold back the removal.
        Shard::There(remote) => remote.local_documents(WRITE_RECORDS).await.unwrap_or_else(|failure| {
            tracing::warn!(target: "stemma::database", "results of writes to {name}, which is removed: {failure}");
            Vec::new()
        }),
    };
    let (own, name) = (own.clone(), name.to_owned());
    blocking(move || {
        for (id, mut record) in records {
            for field in ["_id", "_rev"] {
                record.as_object_mut().map(|record| record.remove(field));
            }
            own.database().local_documents().put(&format!("{id}/{name}"), None, &record)?;
        }
        Ok(())
    })
    .await
}

fn of_kind(kind: DatabaseKind) -> NewDatabase {
    NewDatabase { kind, ..NewDatabase::default() }
}

impl VirtualSlot {
    fn is_current(&self, open: &Arc<OpenVirtual>) -> bool {
        self.opened.read().as_ref().is_some_and(|current| Arc::ptr_eq(current, open))
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<OpenVirtual>> {
        if let Some(open) = self.opened.read().clone()
            && open.is_usable()
        {
            return Ok(open);
        }
        let changing = self.changing.clone().lock_owned().await;
        self.open_locked(&changing).await
    }

    /// Opens the shards, or those again that a full disk has stopped.
    async fn open_locked(self: &Arc<Self>, changing: &OwnedMutexGuard<()>) -> Result<Arc<OpenVirtual>> {
        let current = self.opened.read().clone();
        if let Some(open) = current.as_ref().filter(|open| open.is_usable()) {
            return Ok(open.clone());
        }
        let own = self.directory.open_part(&self.name).await?;
        let (record, servers) = (self.record(), self.servers.clone());
        let (remote, replicas) = blocking(move || Ok((record.open(&servers)?, record.replicas()?))).await?;
        let mut shards: HashMap<_, _> = remote.into_iter().filter(|(name, _)| !replicas.contains(name)).collect();
        for database in self.directory.shards_of(&self.name) {
            let name = shard_name(&self.name, &database);
            if !replicas.contains(&name) {
                shards.insert(name, open_shard_here(&self.directory, &self.servers, &database).await?);
            }
        }
        if let Some(open) = current.as_ref().filter(|open| open.has(&own, &shards)) {
            return Ok(open.clone());
        }
        // Requests that use the former handles end first.
        let fence = timeout(REOPEN_WAIT, self.fence.clone().write_owned()).await;
        let _fence = fence.map_err(|_| Failure::unavailable("The database is being opened again.", REOPEN_WAIT))?;
        let (directory, name) = (self.directory.clone(), self.name.clone());
        *self.record.lock() = blocking(move || VirtualRecord::held(&directory, &name)).await?;
        self.remove_others(&own, &mut shards).await?;
        let members: Vec<_> = shards.iter().map(|(name, shard)| shard.member(name)).collect();
        let holder = Arc::new(self.record());
        let database = blocking(move || Ok(VirtualDatabase::open_in(holder, members)?)).await?;
        let is_moving = database.map().planned_move().is_some();
        let open = Arc::new(OpenVirtual::new(database, own, shards, self.record()));
        let former = self.opened.write().replace(open.clone());
        if let Some(former) = former {
            former.stop_replicas().await?;
        }
        self.tend_replicas(&open, changing).await?;
        if is_moving {
            self.clone().continue_later();
        }
        Ok(open)
    }

    fn record(&self) -> VirtualRecord {
        self.record.lock().clone()
    }

    /// Removes databases that are no shards, because adding or removing one was interrupted.
    async fn remove_others(&self, own: &Arc<ServedDatabase>, shards: &mut HashMap<String, Shard>) -> Result<()> {
        let members: Vec<_> = shards.iter().map(|(name, shard)| shard.member(name)).collect();
        let holder = Arc::new(self.record());
        let placed = blocking(move || Ok(VirtualDatabase::shards_in(holder, members)?)).await.map_err(|failure| {
            let reason = format!("the shards of `{}` are damaged: {}", self.name, failure.reason());
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
        })?;
        let others: Vec<String> = shards.keys().filter(|name| !placed.contains(name)).cloned().collect();
        for other in others {
            let Some(shard) = shards.remove(&other) else { continue };
            keep_write_records(own, &other, &shard).await?;
            let is_here = shard.here().is_some();
            match self.delete_shard(&other, shard).await {
                Err(failure) if is_here => return Err(failure),
                // It is tried again at the next opening: other shards must not wait for this server.
                Err(failure) => {
                    tracing::warn!(target: "stemma::database", "removing {other} of {}: {failure}", self.name);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Deletes the database of what is no shard, and the record of its server.
    async fn delete_shard(&self, shard: &str, part: Shard) -> Result<()> {
        match part {
            Shard::Here(served) => {
                drop(served);
                self.directory.delete_part(&database_name(&self.name, shard)).await
            }
            Shard::There(remote) => {
                remote.delete().await?;
                let (record, shard) = (self.record(), shard.to_owned());
                blocking(move || record.change(|locations| drop(locations.shards.remove(&shard)))).await
            }
        }
    }
}
