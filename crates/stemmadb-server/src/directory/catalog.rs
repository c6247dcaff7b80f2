//! The catalog: a Stemma database that durably stores the list of databases, with a document for each.
//!
//! It also has a document for each directory that is being removed, the server's own records (administrators, tokens,
//! settings), and the server's id in a `_local` document.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stemmadb::{Database, Document, Options, Sequence, Value};
use uuid::Uuid;

use super::space::{self, OpenedAt};
use crate::auth::Security;
use crate::error::{Failure, Result};

/// How clients see a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    /// A database with documents of its own.
    #[default]
    Plain,
    /// A virtual database, whose documents are in its shards. It has `_local` documents and `_security` itself.
    Virtual,
    /// A shard of the virtual database of this name, which clients reach only through it.
    Shard(String),
}

/// The catalog's entry of a database.
#[derive(Debug, Clone)]
pub(super) struct CatalogEntry {
    pub(super) name: String,
    /// The name of its directory within the server's directory.
    pub(super) directory: String,
    /// A short random id that distinguishes it from other databases that had or have its name.
    pub(super) instance_id: String,
    /// The time of creation, in seconds since 1970. Replicators use it as the database's identity, so it never changes.
    pub(super) created: u64,
    pub(super) security: Security,
    /// The number of revisions kept per branch, if it was set.
    pub(super) revs_limit: Option<usize>,
    /// Whether the id of each document names its partition.
    pub(super) is_partitioned: bool,
    /// Whether it is kept in memory only. Such an entry is not stored.
    pub(super) is_in_memory: bool,
    pub(super) kind: DatabaseKind,
}

/// The catalog's document of a database.
#[derive(Serialize, Deserialize)]
struct DatabaseRecord {
    directory: String,
    /// None in records of earlier versions, which derived it from the directory's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance_id: Option<String>,
    created: u64,
    security: serde_json::Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revs_limit: Option<usize>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    partitioned: bool,
    #[serde(default, rename = "virtual", skip_serializing_if = "std::ops::Not::not")]
    is_virtual: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard_of: Option<String>,
}

pub(super) struct Catalog {
    path: PathBuf,
    options: Options,
    opened: Mutex<(Database, OpenedAt)>,
    server_id: String,
}

impl CatalogEntry {
    /// An entry for a new database, or one that was copied into the directory by hand.
    pub(super) fn new(name: &str, directory: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let instance_id = Uuid::new_v4().simple().to_string()[..8].to_owned();
        CatalogEntry {
            name: name.to_owned(),
            directory,
            instance_id,
            created,
            security: Security::default(),
            revs_limit: None,
            is_partitioned: false,
            is_in_memory: false,
            kind: DatabaseKind::Plain,
        }
    }

    /// The name by which clients know the database: that of the virtual database for its shards.
    pub(super) fn shown_name(&self) -> &str {
        match &self.kind {
            DatabaseKind::Shard(of) => of,
            DatabaseKind::Plain | DatabaseKind::Virtual => &self.name,
        }
    }

    /// Checks that clients may use the database as one with documents of its own.
    ///
    /// # Errors
    /// 403 for a shard, 501 for a virtual database.
    pub(super) fn check_is_plain(&self) -> Result<()> {
        self.check_is_no_shard()?;
        match self.kind {
            DatabaseKind::Virtual => Err(Failure::not_implemented(format!(
                "`{}` is a virtual database, which does not support this. Use the routes that the guide lists, or \
                 replicate it into a database.",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that the database is no shard.
    ///
    /// # Errors
    /// 403 if it is one.
    pub(super) fn check_is_no_shard(&self) -> Result<()> {
        match &self.kind {
            DatabaseKind::Shard(of) => Err(Failure::forbidden(format!(
                "`{}` is a shard of the virtual database `{of}`. Read and write `{of}` instead.",
                self.name
            ))),
            DatabaseKind::Plain | DatabaseKind::Virtual => Ok(()),
        }
    }

    fn to_record(&self) -> Result<DatabaseRecord> {
        Ok(DatabaseRecord {
            directory: self.directory.clone(),
            instance_id: Some(self.instance_id.clone()),
            created: self.created,
            security: self.security.value().deserialize_into()?,
            revs_limit: self.revs_limit,
            partitioned: self.is_partitioned,
            is_virtual: self.kind == DatabaseKind::Virtual,
            shard_of: match &self.kind {
                DatabaseKind::Shard(of) => Some(of.clone()),
                DatabaseKind::Plain | DatabaseKind::Virtual => None,
            },
        })
    }
}

const SERVER_RECORD: &str = "_local/server";
/// The prefixes of the ids of databases, and of directories that are being removed.
const DATABASE_PREFIX: &str = "database:";
const REMOVAL_PREFIX: &str = "removal:";

impl Catalog {
    /// `options`: how all databases of the server are opened.
    pub(super) fn open(path: &Path, options: &Options) -> Result<Self> {
        let database = space::open(path, options)?;
        let stored = database.local_documents().get(SERVER_RECORD)?;
        let stored = stored.as_ref().and_then(|(_, value)| value.get("id")?.as_str());
        let server_id = match stored {
            Some(id) => id.to_owned(),
            None => {
                let id = Uuid::new_v4().simple().to_string();
                database.local_documents().put(SERVER_RECORD, None, &serde_json::json!({ "id": id }))?;
                id
            }
        };
        Ok(Catalog {
            path: path.to_owned(),
            options: options.clone(),
            opened: Mutex::new((database, OpenedAt::now())),
            server_id,
        })
    }

    /// The open database; opened again if the disk was full and has space again.
    fn database(&self) -> Database {
        let mut opened = self.opened.lock();
        let is_stopped = !opened.0.maintenance().takes_writes();
        if is_stopped && opened.1.is_long_ago() && space::has_space(&self.path) {
            self.reopen(&mut opened);
        }
        opened.0.clone()
    }

    fn reopen(&self, opened: &mut (Database, OpenedAt)) {
        // The caller's operation fails too if this does.
        opened.0.clone().close().ok();
        if let Ok(again) = space::open(&self.path, &self.options) {
            *opened = (again, OpenedAt::now());
        }
    }

    /// Opens the database again now if a write has failed: some space was freed.
    pub(super) fn recover(&self) {
        let mut opened = self.opened.lock();
        if !opened.0.maintenance().takes_writes() {
            self.reopen(&mut opened);
        }
    }

    /// As if the disk had been full when the catalog was opened.
    #[cfg(test)]
    pub(super) fn fail_writes(&self) {
        let mut opened = self.opened.lock();
        opened.0.clone().close().unwrap();
        let read_only = self.options.clone().create(false).read_only(true);
        *opened = (Database::open_with(&self.path, read_only).unwrap(), OpenedAt::now());
    }

    /// Whether the disk is not full.
    pub(super) fn takes_writes(&self) -> bool {
        self.opened.lock().0.maintenance().takes_writes()
    }

    /// Closes the database. Later operations fail.
    pub(super) fn close(&self) {
        if let Err(error) = self.database().close() {
            tracing::error!(target: "stemma::database", "closing the catalog: {error}");
        }
    }

    /// Returns the `_local` record `name`, and whether `make` has just created it.
    pub(super) fn get_or_create_local(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<serde_json::Value>,
    ) -> Result<(Value, bool)> {
        let id = format!("_local/{name}");
        if let Some((_, value)) = self.database().local_documents().get(&id)? {
            return Ok((value, false));
        }
        let made = make()?;
        self.database().local_documents().put(&id, None, &made)?;
        Ok((Value::from_serialize(&made)?, true))
    }

    pub(super) fn server_id(&self) -> &str {
        &self.server_id
    }

    pub(super) fn entries(&self) -> Result<Vec<CatalogEntry>> {
        let mut entries = Vec::new();
        for document in self.documents()? {
            let Some(name) = document.id().as_str().strip_prefix(DATABASE_PREFIX) else { continue };
            let record: DatabaseRecord = document.to()?;
            let security = Security::parse(Value::from_serialize(&record.security)?)?;
            entries.push(CatalogEntry {
                name: name.to_owned(),
                instance_id: record.instance_id.unwrap_or_else(|| earlier_instance_id(&record.directory)),
                directory: record.directory,
                created: record.created,
                security,
                revs_limit: record.revs_limit,
                is_partitioned: record.partitioned,
                is_in_memory: false,
                kind: match record.shard_of {
                    Some(of) => DatabaseKind::Shard(of),
                    None if record.is_virtual => DatabaseKind::Virtual,
                    None => DatabaseKind::Plain,
                },
            });
        }
        Ok(entries)
    }

    fn documents(&self) -> Result<Vec<Document>> {
        let changes = self.database().changes(Sequence::ZERO)?.documents(true).run();
        let documents = changes.filter_map(|change| change.map(|change| change.document).transpose());
        let documents: Vec<_> = documents.collect::<Result<_, _>>()?;
        Ok(documents.into_iter().filter(|document| !document.is_deleted()).collect())
    }

    pub(super) fn add(&self, entry: &CatalogEntry) -> Result<()> {
        self.database().insert(&database_id(&entry.name), &entry.to_record()?)?;
        Ok(())
    }

    /// Removes a database and records that its directory must be removed.
    pub(super) fn remove(&self, entry: &CatalogEntry) -> Result<()> {
        let id = database_id(&entry.name);
        self.database().write(|transaction| {
            if let Some(document) = transaction.get(&id)? {
                transaction.delete(&id, document.revision())?;
            }
            transaction.upsert(&format!("{REMOVAL_PREFIX}{}", entry.directory), &serde_json::json!({}))
        })?;
        Ok(())
    }

    /// Whether a directory is recorded as being removed.
    pub(super) fn is_being_removed(&self, directory: &str) -> Result<bool> {
        Ok(self.database().get(&format!("{REMOVAL_PREFIX}{directory}"))?.is_some())
    }

    /// The directories that must be removed.
    pub(super) fn removals(&self) -> Result<Vec<String>> {
        let documents = self.documents()?;
        let removals = documents.iter().filter_map(|document| document.id().as_str().strip_prefix(REMOVAL_PREFIX));
        Ok(removals.map(str::to_owned).collect())
    }

    /// Records that `directory` was removed.
    pub(super) fn removed(&self, directory: &str) -> Result<()> {
        let id = format!("{REMOVAL_PREFIX}{directory}");
        if let Some(document) = self.database().get(&id)? {
            self.database().delete(&id, document.revision())?;
        }
        Ok(())
    }

    pub(super) fn set_security(&self, name: &str, security: &Security) -> Result<()> {
        let security = security.value().deserialize_into()?;
        self.change(name, |record| record.security = security)
    }

    pub(super) fn set_revs_limit(&self, name: &str, revs_limit: usize) -> Result<()> {
        self.change(name, |record| record.revs_limit = Some(revs_limit))
    }

    /// The names and values of all records of a kind.
    pub(super) fn records(&self, kind: &str) -> Result<Vec<(String, Value)>> {
        let mut records = Vec::new();
        for document in self.documents()? {
            let name = document.id().as_str().strip_prefix(kind).and_then(|rest| rest.strip_prefix(':'));
            if let Some(name) = name {
                records.push((name.to_owned(), document.value()?));
            }
        }
        Ok(records)
    }

    pub(super) fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()> {
        self.database().upsert(&format!("{kind}:{name}"), value)?;
        Ok(())
    }

    pub(super) fn remove_record(&self, kind: &str, name: &str) -> Result<()> {
        let id = format!("{kind}:{name}");
        if let Some(document) = self.database().get(&id)? {
            self.database().delete(&id, document.revision())?;
        }
        Ok(())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut DatabaseRecord)) -> Result<()> {
        let id = database_id(name);
        let document = self.database().get(&id)?.ok_or_else(Failure::no_database)?;
        let mut record: DatabaseRecord = document.to()?;
        change(&mut record);
        self.database().replace(&id, document.revision(), &record)?;
        Ok(())
    }
}

/// The instance id of a database whose record has none.
fn earlier_instance_id(directory: &str) -> String {
    directory.chars().take(8).filter(char::is_ascii_alphanumeric).collect()
}

/// The document id of a database. The prefix is needed because names may begin with an underscore and ids may not.
fn database_id(name: &str) -> String {
    format!("{DATABASE_PREFIX}{name}")
}
