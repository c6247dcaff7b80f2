//! The databases of a server: their catalog, and the open ones.
//!
//! The catalog, a Stemma database itself, maps names to directories. The directory of a database has its name, encoded
//! ([`file_name`]). A database is opened on first use, and closed again when many others were used since, or file
//! descriptors run out. Open databases share the server's memory ([`memory`]).
//!
//! Invariants: a database is added to the catalog before its directory is created, and removed from it before its
//! directory is removed. So a crash leaves at most an empty database, or a directory whose removal is completed at the
//! next start. A new database never gets a directory that exists, or whose removal is not completed.

mod bucket_logs;
mod catalog;
mod copied;
mod descriptors;
mod extensions;
mod file_name;
mod followed;
mod known_records;
mod memory;
mod name;
mod opened;
mod records;
mod served;
mod shared;
mod space;
mod updates;
mod whole;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use stemmadb::backup::RestoreOptions;
use stemmadb::encryption::EncryptionKey;
use stemmadb::log_storage::{ClusterStore, LogCopies};
use stemmadb::open_files::OpenFileLimit;
use stemmadb::{IndexPolicy, Options};
use tokio::sync::watch;
use uuid::Uuid;

use crate::auth::Security;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::settings::SettingStore;
use catalog::{Catalog, CatalogEntry};
use memory::MemoryShare;
use shared::{SharedDirectory, SlotPlace};
use space::Reserve;

pub(crate) use catalog::DatabaseKind;
pub use descriptors::raise_descriptor_limit;
pub(crate) use known_records::KnownRecords;
pub(crate) use name::check_plain_name;
pub(crate) use served::{ServedDatabase, check_message_bytes};
pub(crate) use shared::{Place, tend_cluster};
pub(crate) use updates::{DatabaseUpdate, DatabaseUpdates};
pub(crate) use whole::{WHOLE_DOCUMENT, WRITE_RECORDS, WholeDatabase};

/// All databases of a server.
pub(crate) struct Directory {
    path: PathBuf,
    options: Options,
    /// The key of all databases, if they are encrypted.
    key: Option<EncryptionKey>,
    /// The memory for all open databases.
    budget: MemoryShare,
    catalog: Catalog,
    /// What the server shares with the other servers of its cluster, if it is in one.
    cluster: Option<SharedDirectory>,
    slots: RwLock<BTreeMap<String, Arc<DatabaseSlot>>>,
    /// The slots with an open database, and some whose database was just closed.
    open_slots: Mutex<Vec<Arc<DatabaseSlot>>>,
    /// The most databases that are kept open while nobody uses them.
    open_max: usize,
    /// The most files that databases may have open.
    open_files_max: usize,
    open_file_limit: Mutex<Option<OpenFileLimit>>,
    /// Counts uses of databases; gives each slot the time of its last use.
    use_count: AtomicU64,
    /// The values of `use_count` when memory was last divided, and the time before.
    divided_at: Mutex<(u64, u64)>,
    /// When the directory was last changed by what was known when it was last searched for copied databases.
    searched: Mutex<Option<SystemTime>>,
    reserve: Reserve,
    /// Databases that could not be removed from the catalog, because the disk is full.
    forgotten: Mutex<Vec<CatalogEntry>>,
    /// Counts creations and deletions of databases.
    changed: watch::Sender<u64>,
    updates: Arc<DatabaseUpdates>,
}

/// Options of a new database.
#[derive(Default)]
pub(crate) struct NewDatabase {
    /// Whether the id of each document names its partition.
    pub(crate) is_partitioned: bool,
    /// Whether it is kept in memory only, and is gone when the server stops.
    pub(crate) is_in_memory: bool,
    /// The URL of the bucket that has its log, or gets it.
    pub(crate) log_url: Option<String>,
    /// The paths that it indexes; all by default.
    pub(crate) index_policy: Option<IndexPolicy>,
    pub(crate) kind: DatabaseKind,
}

/// A database's catalog entry, and the open database once it was used.
struct DatabaseSlot {
    /// As in the catalog, but for `settings`.
    entry: CatalogEntry,
    settings: Mutex<EntrySettings>,
    /// The index policy of a database that was created by this process. It is stored with the database.
    index_policy: Option<IndexPolicy>,
    opened: Mutex<Option<Arc<ServedDatabase>>>,
    /// The value of [`Directory::use_count`] at the last use.
    last_use: AtomicU64,
    /// Where it is, if the server is in a cluster.
    place: SlotPlace,
}

/// The parts of a catalog entry that can be changed.
#[derive(Debug, Clone, PartialEq)]
struct EntrySettings {
    security: Security,
    revs_limit: Option<usize>,
}

impl DatabaseSlot {
    fn new(entry: CatalogEntry) -> Arc<Self> {
        Self::with_policy(entry, None)
    }

    fn with_policy(entry: CatalogEntry, index_policy: Option<IndexPolicy>) -> Arc<Self> {
        let settings = Mutex::new(entry.settings());
        let (opened, last_use) = (Mutex::new(None), AtomicU64::new(0));
        Arc::new(DatabaseSlot { entry, settings, index_policy, opened, last_use, place: SlotPlace::default() })
    }

    /// The entry as it is now.
    fn current_entry(&self) -> CatalogEntry {
        let EntrySettings { security, revs_limit } = self.settings.lock().clone();
        CatalogEntry { security, revs_limit, ..self.entry.clone() }
    }
}

impl Directory {
    /// As [`Directory::open_in`], without a cluster.
    #[cfg(test)]
    pub(crate) fn open(config: &Config) -> Result<Self> {
        Self::open_in(config, None)
    }

    /// Opens the directory, or creates it. Adds databases that were copied into it by hand (`name.stemma`) to the
    /// catalog; but as a member of a cluster, its databases are those of the cluster. Blocks.
    ///
    /// # Errors
    /// 503 if the directory can't be read or written, another server has it open, or the cluster does not answer; 400
    /// if a member of a cluster has databases of its own.
    pub(crate) fn open_in(config: &Config, cluster: Option<Arc<dyn ClusterStore>>) -> Result<Self> {
        let path = config.directory.clone();
        std::fs::create_dir_all(&path).map_err(|error| io_failure("create", &path, &error))?;
        let key = config.key_file.as_ref().map(EncryptionKey::from_file);
        let options = key.iter().fold(Options::new(), |options, key| options.encryption(key.clone()));
        let options = match config.limits.log_copies_bytes {
            Some(bytes) => options.log_copies(LogCopies::up_to(bytes)),
            None => options,
        };
        let catalog = Catalog::open(&path.join(CATALOG_DIRECTORY), &options, cluster.clone())?;
        let entries = catalog.entries()?;
        match &cluster {
            Some(_) => shared::remove_others(&path, &entries)?,
            None => complete_removals(&path, &catalog, &entries)?,
        }
        let unfinished = path.join(UNFINISHED_DIRECTORY);
        remove(&unfinished).map_err(|error| io_failure("remove", &unfinished, &error))?;
        let slots = entries.into_iter().map(|entry| (entry.name.clone(), DatabaseSlot::new(entry))).collect();
        let directory = Directory {
            options: options.durability(config.durability),
            key,
            budget: MemoryShare::configured(config),
            catalog,
            slots: RwLock::new(slots),
            open_slots: Mutex::default(),
            open_max: config.limits.open_databases,
            open_files_max: descriptors::open_files_max(),
            open_file_limit: Mutex::default(),
            use_count: AtomicU64::new(0),
            divided_at: Mutex::default(),
            searched: Mutex::default(),
            reserve: Reserve::open(&path),
            forgotten: Mutex::default(),
            changed: watch::channel(0).0,
            updates: Arc::new(DatabaseUpdates::new()),
            cluster: cluster.map(SharedDirectory::new),
            path,
        };
        if directory.cluster.is_some() {
            return Ok(directory);
        }
        directory.search()?;
        if let Err(failure) = directory.remove_orphans() {
            // On a full disk; the next start removes them.
            tracing::warn!(target: "stemma::database", "removing shards of deleted virtual databases: {failure}");
        }
        Ok(directory)
    }

    /// The server's id, which is stored in the directory.
    pub(crate) fn server_id(&self) -> &str {
        self.catalog.server_id()
    }

    /// Returns the server's own record `name`, and whether `make` has just created it. Blocks.
    pub(crate) fn get_or_create_local(
        &self,
        name: &str,
        make: impl Fn() -> Result<serde_json::Value>,
    ) -> Result<(stemmadb::Value, bool)> {
        self.catalog.get_or_create_local(name, make)
    }

    /// The names of all known databases but shards, in order. [`Directory::list`] searches for copied ones first.
    pub(crate) fn names(&self) -> Vec<String> {
        let slots = self.slots.read();
        let shown = slots.iter().filter(|(_, slot)| slot.entry.check_is_no_shard().is_ok());
        shown.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a database is virtual.
    pub(crate) fn is_virtual(&self, name: &str) -> bool {
        self.slots.read().get(name).is_some_and(|slot| slot.entry.kind == DatabaseKind::Virtual)
    }

    /// Checks the name of a new virtual database.
    ///
    /// # Errors
    /// 400 if it is invalid; 412 if there is such a database.
    pub(crate) fn check_virtual_name(&self, name: &str) -> Result<()> {
        name::check(name)?;
        match (name::is_of_system(name), self.contains(name)) {
            (true, _) => Err(Failure::bad_request("A system database can't be virtual")),
            (false, true) => Err(already_exists()),
            (false, false) => Ok(()),
        }
    }

    /// The names of all virtual databases.
    pub(crate) fn virtual_names(&self) -> Vec<String> {
        let slots = self.slots.read();
        let found = slots.iter().filter(|(_, slot)| slot.entry.kind == DatabaseKind::Virtual);
        found.map(|(name, _)| name.clone()).collect()
    }

    /// The names of the databases that are shards of a virtual database, or were created to become shards.
    pub(crate) fn shards_of(&self, name: &str) -> Vec<String> {
        let slots = self.slots.read();
        let is_shard = |slot: &DatabaseSlot| slot.entry.kind.shard_of() == Some(name);
        slots.iter().filter(|(_, slot)| is_shard(slot)).map(|(name, _)| name.clone()).collect()
    }

    /// A receiver that is notified when databases are created or deleted.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The latest update of each database.
    pub(crate) fn updates(&self) -> &DatabaseUpdates {
        &self.updates
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.slots.read().contains_key(name)
    }

    fn slot(&self, name: &str) -> Result<Arc<DatabaseSlot>> {
        self.slots.read().get(name).cloned().ok_or_else(Failure::no_database)
    }

    /// The id that distinguishes the database `name` from others that had or have its name.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) fn instance_id(&self, name: &str) -> Result<String> {
        Ok(self.slot(name)?.entry.instance_id.clone())
    }

    /// Returns the `_security` of the database `name`.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn security(self: &Arc<Self>, name: &str) -> Result<Arc<Security>> {
        let slot = self.find(name).await?;
        let is_cluster_shard = matches!(slot.entry.kind, DatabaseKind::ClusterShard(_));
        if !is_cluster_shard {
            slot.entry.check_is_no_shard()?;
        }
        let served = match self.open_found(slot, Purpose::Any).await {
            // The servers of a cluster share it.
            Err(failure) if failure.status() == StatusCode::MISDIRECTED_REQUEST && !is_cluster_shard => {
                return Ok(Arc::new(self.slot(name)?.settings.lock().security.clone()));
            }
            opened => opened?,
        };
        Ok(served.own_security())
    }

    /// Opens a database, or a virtual database's own part.
    async fn open_own(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        let slot = self.find(name).await?;
        slot.entry.check_is_no_shard()?;
        self.open_found(slot, Purpose::Any).await
    }

    /// Opens a shard of a cluster for a request of its virtual database's owner; `None` if it is no such shard.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) async fn open_cluster_shard(self: &Arc<Self>, name: &str) -> Result<Option<Arc<ServedDatabase>>> {
        let is_shard = |slot: &Arc<DatabaseSlot>| matches!(slot.entry.kind, DatabaseKind::ClusterShard(_));
        match self.slot(name).ok().filter(is_shard) {
            Some(slot) => self.open_found(slot, Purpose::Any).await.map(Some),
            None => Ok(None),
        }
    }

    /// Creates the database `name`. A failed creation leaves nothing behind.
    ///
    /// # Errors
    /// 400 if the name is invalid; 412 if the database exists.
    pub(crate) async fn create(self: &Arc<Self>, name: &str) -> Result<()> {
        self.create_with(name, NewDatabase::default()).await
    }

    /// Creates the database `name` with options.
    ///
    /// # Errors
    /// As [`Directory::create`]; 400 for a partitioned database with the name of a system database, and for a log in a
    /// bucket that is no valid one, or in a cluster; 503 if the bucket can't be reached.
    pub(crate) async fn create_with(self: &Arc<Self>, name: &str, mut new: NewDatabase) -> Result<()> {
        name::check(name)?;
        if let Some(url) = &mut new.log_url {
            self.check_log_url(url)?;
        }
        if new.is_partitioned && name::is_of_system(name) {
            return Err(Failure::bad_request("Cannot partition a system database"));
        }
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            if this.may_be_copied(&name) {
                this.search_if_changed()?;
            }
            this.refresh()?;
            this.complete_forgetting();
            let slot = this.add(&name, new)?;
            if matches!(slot.entry.kind, DatabaseKind::ClusterShard(_)) {
                // The first request that finds it makes its log, on the server that is to have it.
                return Ok(());
            }
            if let Err(failure) = this.open_blocking(&slot, Purpose::Claim) {
                this.abandon(&slot);
                return Err(failure);
            }
            this.close_unused();
            if slot.entry.check_is_no_shard().is_ok() {
                this.updates.record(&slot.entry.name, "created");
                this.changed.send_modify(|count| *count += 1);
            }
            Ok(())
        })
        .await
    }

    /// Creates the database `name` with files that `fill` puts into a directory that does not exist yet. A failure, or
    /// a crash before the files are complete, leaves nothing behind.
    ///
    /// # Errors
    /// As [`Directory::create_with`]; those of `fill`.
    pub(crate) async fn create_filled<T: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        new: NewDatabase,
        fill: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        name::check(name)?;
        if self.contains(name) {
            return Err(already_exists());
        }
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let unfinished = this.unfinished()?;
            let filled = fill(unfinished.path())?;
            if this.cluster.is_some() {
                return this.add_filled(&name, new, unfinished.path()).map(|()| filled);
            }
            let slot = this.add(&name, new)?;
            let moved = std::fs::rename(unfinished.path(), this.path.join(&slot.entry.directory))
                .map_err(|error| io_failure("rename", unfinished.path(), &error));
            let moved = moved.and_then(|()| this.flush_names());
            if let Err(failure) = moved.and_then(|()| this.open_blocking(&slot, Purpose::Any).map(|_| ())) {
                this.abandon(&slot);
                return Err(failure);
            }
            this.close_unused();
            if slot.entry.check_is_no_shard().is_ok() {
                this.updates.record(&slot.entry.name, "created");
                this.changed.send_modify(|count| *count += 1);
            }
            Ok(filled)
        })
        .await
    }

    /// Flushes the names in the directory.
    fn flush_names(&self) -> Result<()> {
        let flushed = std::fs::File::open(&self.path).and_then(|directory| directory.sync_all());
        flushed.map_err(|error| io_failure("flush", &self.path, &error))
    }

    /// A name for the files of a database that is not complete yet. Whatever is there is removed when the returned
    /// value is dropped, or else at the next start.
    ///
    /// # Errors
    /// 503 if the directory can't be written.
    pub(crate) fn unfinished(&self) -> Result<UnfinishedDirectory> {
        let parent = self.path.join(UNFINISHED_DIRECTORY);
        std::fs::create_dir_all(&parent).map_err(|error| io_failure("create", &parent, &error))?;
        Ok(UnfinishedDirectory(parent.join(Uuid::new_v4().simple().to_string())))
    }

    /// Options of a restore of a database of this server, with its key.
    pub(crate) fn restore_options(&self) -> RestoreOptions {
        self.key.iter().fold(RestoreOptions::new(), |options, key| options.encryption(key.clone()))
    }

    /// Options of a database beside those that are served, with their key.
    pub(crate) fn database_options(&self) -> Options {
        self.options.clone()
    }

    /// Adds a new database to the catalog. It must be opened next.
    fn add(&self, name: &str, new: NewDatabase) -> Result<Arc<DatabaseSlot>> {
        if self.cluster.is_some() {
            return self.add_shared(name, new);
        }
        let mut slots = self.slots.write();
        if slots.contains_key(name) {
            return Err(already_exists());
        }
        let has_same_log = |slot: &&Arc<DatabaseSlot>| new.log_url.is_some() && slot.entry.log_url == new.log_url;
        if let Some(other) = slots.values().find(has_same_log) {
            return Err(Failure::bad_request(format!("`{}` has its log there.", other.entry.name)));
        }
        // A failed look-up counts as taken.
        let is_free = |directory: &str| {
            !self.path.join(directory).exists()
                && self.catalog.is_being_removed(directory).is_ok_and(|is_removed| !is_removed)
        };
        let directory = file_name::directory_of(name, is_free);
        let NewDatabase { is_partitioned, is_in_memory, log_url, index_policy, kind } = new;
        let entry = CatalogEntry { is_partitioned, is_in_memory, log_url, kind, ..CatalogEntry::new(name, directory) };
        if !is_in_memory {
            self.catalog.add(&entry)?;
        }
        let slot = DatabaseSlot::with_policy(entry, index_policy);
        self.note_use(&slot);
        slots.insert(name.to_owned(), slot.clone());
        Ok(slot)
    }

    /// Adds a new database to the catalog of the cluster. No lock is held while the cluster is asked.
    fn add_shared(&self, name: &str, new: NewDatabase) -> Result<Arc<DatabaseSlot>> {
        let NewDatabase { is_partitioned, is_in_memory, index_policy, kind, log_url: _ } = new;
        if is_in_memory {
            return Err(Failure::not_implemented("A cluster has no databases in memory: leave `memory` out."));
        }
        let directory = file_name::unique_directory(name);
        let entry = CatalogEntry { is_partitioned, kind, ..CatalogEntry::new(name, directory) };
        self.catalog.add(&entry)?;
        let slot = DatabaseSlot::with_policy(entry, index_policy);
        self.note_use(&slot);
        // In place of one without the policy, which was found in the catalog just now.
        self.slots.write().insert(name.to_owned(), slot.clone());
        Ok(slot)
    }

    /// Removes a database that could not be created. Its log in a bucket stays, as it may have been there before. On a
    /// full disk, the database is removed from the catalog later.
    fn abandon(&self, slot: &DatabaseSlot) {
        self.slots.write().remove(&slot.entry.name);
        if slot.entry.is_in_memory {
            return;
        }
        let removed = self.remove_files(&slot.entry);
        let removed = self.catalog.remove(&slot.entry).and(removed);
        if removed.and_then(|()| self.catalog.removed(&slot.entry)).is_err() {
            self.forgotten.lock().push(slot.entry.clone());
        }
    }

    /// The directory of a database.
    fn location(&self, entry: &CatalogEntry) -> PathBuf {
        match self.cluster {
            Some(_) => self.path.join(shared::COPIES).join(&entry.directory),
            None => self.path.join(&entry.directory),
        }
    }

    /// Removes the directory of a database, and its log in the cluster.
    fn remove_files(&self, entry: &CatalogEntry) -> Result<()> {
        let path = self.location(entry);
        if let Some(cluster) = &self.cluster {
            cluster.remove_log(&entry.log())?;
        }
        self.with_descriptors(|| remove(&path)).map_err(|error| io_failure("remove", &path, &error))
    }

    /// Removes databases from the catalog that could not be removed before.
    fn complete_forgetting(&self) {
        let mut forgotten = self.forgotten.lock();
        forgotten.retain(|entry| {
            // Another one may have its name by now.
            let is_in_use = self.contains(&entry.name);
            !is_in_use && self.catalog.remove(entry).and_then(|()| self.catalog.removed(entry)).is_err()
        });
    }

    /// Serves an open database under `name`, replacing any of that name. It is not added to the catalog.
    #[cfg(test)]
    pub(crate) fn insert_open(&self, name: &str, database: stemmadb::Database) -> Arc<ServedDatabase> {
        let slot = DatabaseSlot::new(CatalogEntry::new(name, format!("{name}.{}", file_name::EXTENSION)));
        let served = Arc::new(ServedDatabase::from_database(&slot.entry, database, &self.updates));
        *slot.opened.lock() = Some(served.clone());
        self.open_slots.lock().push(slot.clone());
        self.slots.write().insert(name.to_owned(), slot);
        served
    }

    /// Deletes the database `name`, and everything in it.
    ///
    /// # Errors
    /// 404 if there is none; 403 if it is a shard.
    pub(crate) async fn delete(self: &Arc<Self>, name: &str) -> Result<()> {
        self.slot(name)?.entry.check_is_plain()?;
        self.delete_part(name).await
    }

    /// As [`Directory::delete`], also for a virtual database's own part and its shards.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn delete_part(self: &Arc<Self>, name: &str) -> Result<()> {
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let slot = this.slot(&name)?;
            this.forget(&slot)?;
            if slot.entry.check_is_no_shard().is_ok() {
                this.updates.record(&name, "deleted");
                this.changed.send_modify(|count| *count += 1);
            }
            Ok(())
        })
        .await
    }

    /// Stores a record of a virtual database in a cluster, if its record of the kind `holders` is still `holder`: a
    /// server that has lost the virtual database must not change what the next one has stored. Blocks until it is
    /// flushed.
    ///
    /// # Errors
    /// 503 if another server has it.
    pub(crate) fn put_record_as(
        &self,
        holder: (&str, &stemmadb::Value),
        kind: &str,
        name: &str,
        value: &serde_json::Value,
    ) -> Result<()> {
        match self.catalog.put_record_as(holder, kind, name, value)? {
            true => Ok(()),
            false => {
                let reason = format!("Another server of the cluster has `{name}` now: repeat the request.");
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason))
            }
        }
    }

    /// Removes shards without a virtual database: creating or deleting it was interrupted.
    fn remove_orphans(&self) -> Result<()> {
        let slots: Vec<_> = self.slots.read().values().cloned().collect();
        for slot in slots {
            if let Some(of) = slot.entry.kind.shard_of()
                && !self.is_virtual(of)
            {
                self.forget(&slot)?;
            }
        }
        Ok(())
    }

    /// Removes a database from the catalog, closes it, and removes its directory. A log in a bucket is deleted first: a
    /// crash then leaves an empty database.
    fn forget(&self, slot: &DatabaseSlot) -> Result<()> {
        let locked = slot.entry.log_url.as_deref().map(|url| self.delete_log(slot, url)).transpose()?;
        if self.cluster.is_some() {
            // No lock is held while the cluster is asked.
            self.catalog.remove(&slot.entry)?;
        }
        let mut slots = self.slots.write();
        if !is_listed(&slots, slot) {
            return Err(Failure::no_database());
        }
        if !slot.entry.is_in_memory && self.cluster.is_none() {
            self.remove_from_catalog(&slot.entry)?;
        }
        slots.remove(&slot.entry.name);
        drop(slots);
        if let Some(served) = locked.unwrap_or_else(|| slot.opened.lock()).take() {
            served.close();
        }
        if slot.entry.is_in_memory {
            return Ok(());
        }
        self.remove_files(&slot.entry)?;
        self.catalog.removed(&slot.entry)
    }

    /// Removes an entry from the catalog, on a full disk with the reserve: removing a database frees space.
    fn remove_from_catalog(&self, entry: &CatalogEntry) -> Result<()> {
        match self.catalog.remove(entry) {
            Err(_) if !self.catalog.takes_writes() => {
                self.release_reserve();
                self.catalog.recover();
                self.catalog.remove(entry)
            }
            outcome => outcome,
        }
    }

    /// Sets the `_security` of the database `name`.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn set_security(self: &Arc<Self>, name: &str, security: Security) -> Result<()> {
        let served = self.open_own(name).await?;
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            if !served.is_in_memory() {
                this.catalog.set_security(&name, &security)?;
            }
            if let Ok(slot) = this.slot(&name) {
                slot.settings.lock().security = security.clone();
            }
            served.set_security(security);
            Ok(())
        })
        .await
    }

    /// Sets the number of revisions that the database `name` keeps per branch.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn set_revs_limit(self: &Arc<Self>, name: &str, revs_limit: usize) -> Result<()> {
        let served = self.open_database(name).await?;
        let this = self.clone();
        blocking(move || {
            if !served.is_in_memory() {
                this.catalog.set_revs_limit(served.name(), revs_limit)?;
            }
            if let Ok(slot) = this.slot(served.name()) {
                slot.settings.lock().revs_limit = Some(revs_limit);
            }
            served.database().maintenance().set_revs_limit(revs_limit);
            Ok(())
        })
        .await
    }

    /// Closes every database. Blocks.
    pub(crate) fn close(&self) {
        let slots: Vec<_> = self.slots.read().values().cloned().collect();
        for slot in slots {
            if let Some(served) = slot.opened.lock().take() {
                served.close();
            }
        }
        self.catalog.close();
        if let Some(cluster) = &self.cluster {
            cluster.leave();
        }
    }
}

impl SettingStore for Directory {
    /// Returns the names and values of all records of a kind. Blocks.
    fn records(&self, kind: &str) -> Result<Vec<(String, stemmadb::Value)>> {
        self.catalog.records(kind)
    }

    /// Stores a record, replacing the one of the same name. Blocks until it is flushed.
    fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()> {
        self.catalog.put_record(kind, name, value)
    }

    /// Removes a record if it exists. Blocks until that is flushed.
    fn remove_record(&self, kind: &str, name: &str) -> Result<()> {
        self.catalog.remove_record(kind, name)
    }
}

/// Whether a slot is the one of its name.
fn is_listed(slots: &BTreeMap<String, Arc<DatabaseSlot>>, slot: &DatabaseSlot) -> bool {
    slots.get(&slot.entry.name).is_some_and(|listed| std::ptr::eq(&**listed, slot))
}

/// The purpose for which a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Any,
    /// Requests that come to this server, whichever server of a cluster should have it.
    Claim,
    /// A deletion or a compaction, which may use the reserve on a full disk.
    FreeSpace,
}

/// A directory that is removed with everything in it.
pub(crate) struct UnfinishedDirectory(PathBuf);

impl UnfinishedDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for UnfinishedDirectory {
    fn drop(&mut self) {
        // The next start removes what can't be removed now.
        remove(&self.0).ok();
    }
}

/// The directory of databases that are being restored or branched.
const UNFINISHED_DIRECTORY: &str = "unfinished";

/// The catalog's directory. Directories of databases end with `.stemma`, so the names can't collide.
const CATALOG_DIRECTORY: &str = "catalogue";

/// Removes the directories of databases that were removed from the catalog before.
fn complete_removals(path: &Path, catalog: &Catalog, entries: &[CatalogEntry]) -> Result<()> {
    let in_use: HashSet<&str> = entries.iter().map(|entry| entry.directory.as_str()).collect();
    for removed in catalog.removals()? {
        if !in_use.contains(removed.as_str()) {
            let path = path.join(&removed);
            remove(&path).map_err(|error| io_failure("remove", &path, &error))?;
        }
        // On a full disk, the next start records it.
        if catalog.takes_writes() {
            catalog.completed(&removed)?;
        }
    }
    Ok(())
}

fn already_exists() -> Failure {
    let reason = "The database could not be created, the file already exists.";
    Failure::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn io_failure(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let reason = format!("cannot {doing} {}: {error}", path.display());
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}

#[cfg(test)]
mod tests;
