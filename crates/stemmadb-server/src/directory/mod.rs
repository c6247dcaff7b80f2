//! The databases of a server: their catalog, and the open ones.
//!
//! The catalog, a Stemma database itself, maps names to directories. The name of a database's directory is random,
//! never derived from the database's name. A database is opened on first use, and closed again when many others were
//! used since.
//!
//! Invariants: a database is added to the catalog before its directory is created, and removed from it before its
//! directory is removed. So a crash leaves at most an empty database, or a directory whose removal is completed at the
//! next start.

mod catalog;
mod extensions;
mod name;
mod served;
mod space;
mod updates;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use stemmadb::{IndexPolicy, Options};
use tokio::sync::watch;

use crate::auth::Security;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::settings::SettingStore;
use catalog::{Catalog, CatalogEntry};

pub(crate) use served::ServedDatabase;
pub(crate) use updates::{DatabaseUpdate, DatabaseUpdates};

/// All databases of a server.
pub(crate) struct Directory {
    path: PathBuf,
    options: Options,
    catalog: Catalog,
    slots: RwLock<BTreeMap<String, Arc<DatabaseSlot>>>,
    /// The most databases that are kept open while nobody uses them.
    open_max: usize,
    /// Counts uses of databases; gives each slot the time of its last use.
    use_count: AtomicU64,
    /// Counts creations and deletions of databases.
    changed: watch::Sender<u64>,
    updates: Arc<DatabaseUpdates>,
}

/// Options of a new database.
#[derive(Default)]
pub(crate) struct NewDatabase {
    /// Whether it is kept in memory only, and is gone when the server stops.
    pub(crate) is_in_memory: bool,
    /// The paths that it indexes; all by default.
    pub(crate) index_policy: Option<IndexPolicy>,
}

/// A database's catalog entry, and the open database once it was used.
struct DatabaseSlot {
    entry: CatalogEntry,
    opened: Mutex<Option<Arc<ServedDatabase>>>,
    /// The value of [`Directory::use_count`] at the last use.
    last_use: AtomicU64,
}

impl DatabaseSlot {
    fn new(entry: CatalogEntry) -> Arc<Self> {
        Arc::new(DatabaseSlot { entry, opened: Mutex::new(None), last_use: AtomicU64::new(0) })
    }
}

impl Directory {
    /// Opens the directory, or creates it. Adds databases that were copied into it by hand (`name.stemma`) to the
    /// catalog. Blocks.
    ///
    /// # Errors
    /// 503 if the directory can't be read or written, or another server has it open.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let path = config.directory.clone();
        std::fs::create_dir_all(&path).map_err(|error| io_failure("create", &path, &error))?;
        let catalog = Catalog::open(&path.join(CATALOG_DIRECTORY))?;
        for removed in catalog.removals()? {
            remove(&path.join(&removed))?;
            // On a full disk, the next start records it.
            if catalog.takes_writes() {
                catalog.removed(&removed)?;
            }
        }
        let known: Vec<_> = catalog.entries()?;
        let unlisted = if catalog.takes_writes() { unlisted_databases(&path, &known)? } else { Vec::new() };
        for name in unlisted {
            catalog.add(&CatalogEntry::adopted(&name))?;
        }
        let slots =
            catalog.entries()?.into_iter().map(|entry| (entry.name.clone(), DatabaseSlot::new(entry))).collect();
        let updates = Arc::new(DatabaseUpdates::new());
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
        let mut options =
            Options::new().durability(config.durability).cache_bytes(config.cache_bytes).memory_bytes(memory_bytes);
        if let Some(bytes) = config.index_cache_bytes {
            options = options.index_cache_bytes(bytes);
        }
        if let Some(bytes) = config.document_cache_bytes {
            options = options.document_cache_bytes(bytes);
        }
        Ok(Directory {
            path,
            options,
            catalog,
            slots: RwLock::new(slots),
            open_max: config.limits.open_databases,
            use_count: AtomicU64::new(0),
            changed: watch::channel(0).0,
            updates,
        })
    }

    /// The server's id, which is stored in the directory.
    pub(crate) fn server_id(&self) -> &str {
        self.catalog.server_id()
    }

    /// Returns the server's own record `name`, and whether `make` has just created it. Blocks.
    pub(crate) fn get_or_create_local(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<serde_json::Value>,
    ) -> Result<(stemmadb::Value, bool)> {
        self.catalog.get_or_create_local(name, make)
    }

    /// The names of all databases, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.slots.read().keys().cloned().collect()
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

    /// Returns the `_security` of the database `name`.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn security(self: &Arc<Self>, name: &str) -> Result<Arc<Security>> {
        Ok(self.open_database(name).await?.security())
    }

    /// Returns the database `name`, and opens it if necessary.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_database(self: &Arc<Self>, name: &str) -> Result<Arc<ServedDatabase>> {
        let slot = match self.slot(name) {
            Ok(slot) => slot,
            Err(_) => {
                let (this, name) = (self.clone(), name.to_owned());
                blocking(move || this.adopt(&name)).await?
            }
        };
        slot.last_use.store(self.use_count.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(served) = slot.opened.try_lock().and_then(|opened| opened.clone())
            && !served.is_recoverable(&self.path)
        {
            return Ok(served);
        }
        let this = self.clone();
        let opening = blocking(move || {
            let served = this.open_blocking(&slot)?;
            this.close_unused();
            Ok(served)
        });
        opening.await
    }

    fn open_blocking(&self, slot: &DatabaseSlot) -> Result<Arc<ServedDatabase>> {
        self.open_with(slot, None)
    }

    /// Opens the database of a slot; with an index policy, which becomes its own.
    fn open_with(&self, slot: &DatabaseSlot, policy: Option<IndexPolicy>) -> Result<Arc<ServedDatabase>> {
        let mut opened = slot.opened.lock();
        match &*opened {
            Some(served) if !served.is_recoverable(&self.path) => return Ok(served.clone()),
            // There is space again on a disk that was full.
            Some(served) => served.close(),
            None => {}
        }
        *opened = None;
        if !self.contains(&slot.entry.name) {
            return Err(Failure::no_database());
        }
        let options = match policy {
            Some(policy) => self.options.clone().index(policy),
            None => self.options.clone(),
        };
        let served = if slot.entry.is_in_memory {
            let database = stemmadb::Database::in_memory_with(options)?;
            ServedDatabase::from_database(&slot.entry, database, &self.updates)
        } else {
            ServedDatabase::open(&slot.entry, &self.path, options, &self.updates)?
        };
        Ok(opened.insert(Arc::new(served)).clone())
    }

    /// Closes the databases that were not used for longest if too many are open. One that is in use stays open.
    fn close_unused(&self) {
        let is_open = |slot: &&Arc<DatabaseSlot>| {
            !slot.entry.is_in_memory && slot.opened.try_lock().is_none_or(|opened| opened.is_some())
        };
        let mut open: Vec<_> = self.slots.read().values().filter(is_open).cloned().collect();
        if open.len() <= self.open_max {
            return;
        }
        // A few more than needed, so that not every opening closes one.
        let mut excess = open.len() - self.open_max + self.open_max / 16;
        open.sort_unstable_by_key(|slot| slot.last_use.load(Ordering::Relaxed));
        for slot in open {
            if excess == 0 {
                return;
            }
            // Whoever uses a database, such as a request or a replication, has a reference to it.
            let Some(mut opened) = slot.opened.try_lock() else { continue };
            if let Some(served) = opened.take_if(|served| Arc::strong_count(served) == 1) {
                served.close();
                excess -= 1;
            }
        }
    }

    /// Creates the database `name`.
    ///
    /// # Errors
    /// 400 if the name is invalid; 412 if the database exists.
    pub(crate) async fn create(self: &Arc<Self>, name: &str) -> Result<()> {
        self.create_with(name, NewDatabase::default()).await
    }

    /// Creates the database `name` with options.
    ///
    /// # Errors
    /// As [`Directory::create`].
    pub(crate) async fn create_with(self: &Arc<Self>, name: &str, new: NewDatabase) -> Result<()> {
        name::check(name)?;
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let mut slots = this.slots.write();
            if slots.contains_key(&name) {
                return Err(already_exists());
            }
            let entry = CatalogEntry { is_in_memory: new.is_in_memory, ..CatalogEntry::new(&name) };
            if !entry.is_in_memory {
                this.catalog.add(&entry)?;
            }
            let slot = DatabaseSlot::new(entry);
            slots.insert(name, slot.clone());
            drop(slots);
            if let Err(failure) = this.open_with(&slot, new.index_policy) {
                // A database that could not be created does not exist.
                this.forget(&slot)?;
                return Err(failure);
            }
            this.close_unused();
            this.updates.record(&slot.entry.name, "created");
            this.changed.send_modify(|count| *count += 1);
            Ok(())
        })
        .await
    }

    /// Serves an open database under `name`, replacing any of that name. It is not added to the catalog.
    #[cfg(test)]
    pub(crate) fn insert_open(&self, name: &str, database: stemmadb::Database) -> Arc<ServedDatabase> {
        let slot = DatabaseSlot::new(CatalogEntry::new(name));
        let served = Arc::new(ServedDatabase::from_database(&slot.entry, database, &self.updates));
        *slot.opened.lock() = Some(served.clone());
        self.slots.write().insert(name.to_owned(), slot);
        served
    }

    /// Deletes the database `name`, and everything in it.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn delete(self: &Arc<Self>, name: &str) -> Result<()> {
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let slot = this.slot(&name)?;
            this.forget(&slot)?;
            this.updates.record(&name, "deleted");
            this.changed.send_modify(|count| *count += 1);
            Ok(())
        })
        .await
    }

    /// Removes a database from the catalog, closes it, and removes its directory.
    fn forget(&self, slot: &DatabaseSlot) -> Result<()> {
        let mut slots = self.slots.write();
        let is_listed = slots.get(&slot.entry.name).is_some_and(|listed| std::ptr::eq(&**listed, slot));
        if !is_listed {
            return Err(Failure::no_database());
        }
        if !slot.entry.is_in_memory {
            self.catalog.remove(&slot.entry)?;
        }
        slots.remove(&slot.entry.name);
        drop(slots);
        if let Some(served) = slot.opened.lock().take() {
            served.close();
        }
        if slot.entry.is_in_memory {
            return Ok(());
        }
        remove(&self.path.join(&slot.entry.directory))?;
        self.catalog.removed(&slot.entry.directory)
    }

    /// Adds a database that was copied into the directory as `name.stemma` while the server runs. Blocks.
    fn adopt(&self, name: &str) -> Result<Arc<DatabaseSlot>> {
        let entry = CatalogEntry::adopted(name);
        let is_named = name::check(name).is_ok() && !name.contains('/');
        if !is_named || !self.path.join(&entry.directory).join("log").is_dir() {
            return Err(Failure::no_database());
        }
        let mut slots = self.slots.write();
        if let Some(slot) = slots.get(name) {
            return Ok(slot.clone());
        }
        // It could be the directory of a database of another name, or of one that is being removed.
        let is_known = slots.values().any(|slot| slot.entry.directory == entry.directory);
        if is_known || self.catalog.removals()?.contains(&entry.directory) {
            return Err(Failure::no_database());
        }
        self.catalog.add(&entry)?;
        let slot = DatabaseSlot::new(entry);
        slots.insert(name.to_owned(), slot.clone());
        drop(slots);
        self.updates.record(name, "created");
        self.changed.send_modify(|count| *count += 1);
        Ok(slot)
    }

    /// Sets the `_security` of the database `name`.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn set_security(self: &Arc<Self>, name: &str, security: Security) -> Result<()> {
        let served = self.open_database(name).await?;
        let this = self.clone();
        blocking(move || {
            if !served.is_in_memory() {
                this.catalog.set_security(served.name(), &security)?;
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
            served.database().maintenance().set_revs_limit(revs_limit);
            Ok(())
        })
        .await
    }

    /// Returns the open databases.
    pub(crate) fn opened(&self) -> Vec<Arc<ServedDatabase>> {
        // A database that is being opened or closed is skipped.
        let opened = |slot: &Arc<DatabaseSlot>| slot.opened.try_lock().and_then(|opened| opened.clone());
        self.slots.read().values().filter_map(opened).collect()
    }

    /// Closes every database. Blocks.
    pub(crate) fn close(&self) {
        for slot in self.slots.read().values() {
            if let Some(served) = slot.opened.lock().take() {
                served.close();
            }
        }
        self.catalog.close();
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

/// The catalog's directory. Directories of databases end with `.stemma`, so the names can't collide.
const CATALOG_DIRECTORY: &str = "catalogue";
const EXTENSION: &str = "stemma";

/// The names of databases in the directory that are not in the catalog and have a valid name.
fn unlisted_databases(path: &Path, known: &[CatalogEntry]) -> Result<Vec<String>> {
    let entries = path.read_dir().map_err(|error| io_failure("read", path, &error))?;
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let file = PathBuf::from(entry.file_name());
        let is_database = file.extension().is_some_and(|extension| extension == EXTENSION);
        let Some(name) = file.file_stem().and_then(|stem| stem.to_str()).filter(|_| is_database) else { continue };
        let is_known = known.iter().any(|entry| entry.name == name || Path::new(&entry.directory) == file);
        if !is_known && name::check(name).is_ok() && entry.path().join("log").is_dir() {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn already_exists() -> Failure {
    let reason = "The database could not be created, the file already exists.";
    Failure::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_failure("remove", path, &error)),
        _ => Ok(()),
    }
}

fn io_failure(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let reason = format!("cannot {doing} {}: {error}", path.display());
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}

#[cfg(test)]
mod tests;
