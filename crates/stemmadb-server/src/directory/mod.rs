//! Which databases are there, and where does each lie?
//!
//! The catalogue, a Stemma database of its own, maps names to directories; a directory's name is made up and never derived from the
//! database's. A database is opened when it is first asked for.
//!
//! Invariants: the catalogue knows a database before its directory is made, and forgets it before its directory is removed, so that a
//! crash leaves at most an empty database or a directory whose removal is finished at the next start.

mod catalogue;
mod extensions;
mod name;
mod served;
mod updates;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::{Mutex, RwLock};
use stemmadb::Options;
use tokio::sync::watch;

use crate::auth::Security;
use crate::config::Config;
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::settings::SettingStore;
use catalogue::{Catalogue, Entry};

pub(crate) use served::Served;
pub(crate) use updates::{Update, Updates};

/// All databases of a server.
pub(crate) struct Directory {
    path: PathBuf,
    options: Options,
    catalogue: Catalogue,
    slots: RwLock<BTreeMap<String, Arc<DatabaseSlot>>>,
    /// Counts databases that were made or deleted.
    changed: watch::Sender<u64>,
    updates: Arc<Updates>,
}

/// Where a database lies, and the open database if it was asked for.
struct DatabaseSlot {
    entry: Entry,
    opened: Mutex<Option<Arc<Served>>>,
}

impl DatabaseSlot {
    fn new(entry: Entry) -> Arc<Self> {
        Arc::new(DatabaseSlot { entry, opened: Mutex::new(None) })
    }
}

impl Directory {
    /// Opens the directory; makes it if there is none. Databases that were put into it by hand (`name.stemma`) are taken in. Blocks.
    ///
    /// # Errors
    /// 503 if the disk refuses, or another server has it open.
    pub(crate) fn open(config: &Config) -> Result<Self> {
        let path = config.directory.clone();
        std::fs::create_dir_all(&path).map_err(|error| refused("create", &path, &error))?;
        let catalogue = Catalogue::open(&path.join(CATALOGUE))?;
        for removed in catalogue.removals()? {
            remove(&path.join(&removed))?;
            catalogue.removed(&removed)?;
        }
        let known: Vec<_> = catalogue.entries()?;
        for name in strangers(&path, &known)? {
            catalogue.add(&Entry::adopted(&name))?;
        }
        let slots =
            catalogue.entries()?.into_iter().map(|entry| (entry.name.clone(), DatabaseSlot::new(entry))).collect();
        let updates = Arc::new(Updates::new());
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
        let options =
            Options::new().durability(config.durability).cache_bytes(config.cache_bytes).memory_bytes(memory_bytes);
        Ok(Directory { path, options, catalogue, slots: RwLock::new(slots), changed: watch::channel(0).0, updates })
    }

    /// What tells this server from others: the same for as long as its directory is.
    pub(crate) fn server_id(&self) -> &str {
        self.catalogue.server_id()
    }

    /// What the server keeps for itself under `name`, and whether `make` has just made it. Blocks.
    pub(crate) fn kept(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<serde_json::Value>,
    ) -> Result<(stemmadb::Value, bool)> {
        self.catalogue.kept(name, make)
    }

    /// The names, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.slots.read().keys().cloned().collect()
    }

    /// Tells when databases are made or deleted.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What happened to the databases.
    pub(crate) fn updates(&self) -> &Updates {
        &self.updates
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.slots.read().contains_key(name)
    }

    fn slot(&self, name: &str) -> Result<Arc<DatabaseSlot>> {
        self.slots.read().get(name).cloned().ok_or_else(Failure::no_database)
    }

    /// Who may use the database `name`.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn security(self: &Arc<Self>, name: &str) -> Result<Arc<Security>> {
        Ok(self.open_served(name).await?.security())
    }

    /// The database `name`, opened if it is not yet.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn open_served(self: &Arc<Self>, name: &str) -> Result<Arc<Served>> {
        let slot = self.slot(name)?;
        if let Some(served) = slot.opened.try_lock().and_then(|opened| opened.clone()) {
            return Ok(served);
        }
        let this = self.clone();
        blocking(move || this.open_blocking(&slot)).await
    }

    fn open_blocking(&self, slot: &DatabaseSlot) -> Result<Arc<Served>> {
        let mut opened = slot.opened.lock();
        if let Some(served) = &*opened {
            return Ok(served.clone());
        }
        if !self.contains(&slot.entry.name) {
            return Err(Failure::no_database());
        }
        let served = Served::open(&slot.entry, &self.path, self.options.clone(), &self.updates)?;
        Ok(opened.insert(Arc::new(served)).clone())
    }

    /// Makes the database `name`.
    ///
    /// # Errors
    /// 400 for a name that can't be one; 412 if there is one.
    pub(crate) async fn create(self: &Arc<Self>, name: &str) -> Result<()> {
        name::check(name)?;
        let (this, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let mut slots = this.slots.write();
            if slots.contains_key(&name) {
                return Err(exists());
            }
            let entry = Entry::new(&name);
            this.catalogue.add(&entry)?;
            let slot = DatabaseSlot::new(entry);
            slots.insert(name, slot.clone());
            drop(slots);
            this.open_blocking(&slot)?;
            this.updates.note(&slot.entry.name, "created");
            this.changed.send_modify(|count| *count += 1);
            Ok(())
        })
        .await
    }

    /// Serves an open database under `name`, in place of one that is there. The catalogue does not know it.
    #[cfg(test)]
    pub(crate) fn take_in(&self, name: &str, database: stemmadb::Database) -> Arc<Served> {
        let slot = DatabaseSlot::new(Entry::new(name));
        let served = Arc::new(Served::of(&slot.entry, database, &self.updates));
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
            let mut slots = this.slots.write();
            let slot = slots.get(&name).cloned().ok_or_else(Failure::no_database)?;
            this.catalogue.remove(&slot.entry)?;
            slots.remove(&name);
            drop(slots);
            this.updates.note(&name, "deleted");
            this.changed.send_modify(|count| *count += 1);
            if let Some(served) = slot.opened.lock().take() {
                served.close();
            }
            remove(&this.path.join(&slot.entry.directory))?;
            this.catalogue.removed(&slot.entry.directory)
        })
        .await
    }

    /// Gives the database `name` other security.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn set_security(self: &Arc<Self>, name: &str, security: Security) -> Result<()> {
        let served = self.open_served(name).await?;
        let this = self.clone();
        blocking(move || {
            this.catalogue.set_security(served.name(), &security)?;
            served.set_security(security);
            Ok(())
        })
        .await
    }

    /// Sets how many revisions of a line of descent the database `name` remembers.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(crate) async fn set_revs_limit(self: &Arc<Self>, name: &str, revs_limit: usize) -> Result<()> {
        let served = self.open_served(name).await?;
        let this = self.clone();
        blocking(move || {
            this.catalogue.set_revs_limit(served.name(), revs_limit)?;
            served.database().maintenance().set_revs_limit(revs_limit);
            Ok(())
        })
        .await
    }

    /// Databases that are open.
    pub(crate) fn opened(&self) -> Vec<Arc<Served>> {
        // One that is being opened or closed is not.
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
    }
}

impl SettingStore for Directory {
    /// What the server keeps for itself of a kind: names and values. Blocks.
    fn records(&self, kind: &str) -> Result<Vec<(String, stemmadb::Value)>> {
        self.catalogue.records(kind)
    }

    /// Keeps a value of a kind under a name, in place of the one that is there. Blocks until it is flushed.
    fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()> {
        self.catalogue.put_record(kind, name, value)
    }

    /// Forgets what is kept under a name, if there is anything. Blocks until that is flushed.
    fn remove_record(&self, kind: &str, name: &str) -> Result<()> {
        self.catalogue.remove_record(kind, name)
    }
}

/// The catalogue's directory: no database's, since those end with `.stemma`.
const CATALOGUE: &str = "catalogue";
const EXTENSION: &str = "stemma";

/// Databases that lie in the directory and are not in the catalogue, by the names they can have.
fn strangers(path: &Path, known: &[Entry]) -> Result<Vec<String>> {
    let entries = path.read_dir().map_err(|error| refused("read", path, &error))?;
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

fn exists() -> Failure {
    let reason = "The database could not be created, the file already exists.";
    Failure::new(StatusCode::PRECONDITION_FAILED, "file_exists", reason)
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused("remove", path, &error)),
        _ => Ok(()),
    }
}

fn refused(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let reason = format!("cannot {doing} {}: {error}", path.display());
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}

#[cfg(test)]
mod tests;
