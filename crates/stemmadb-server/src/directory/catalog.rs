//! The catalog: a Stemma database that durably stores the list of databases, with a document for each.
//!
//! It also has a document for each directory that is being removed, the server's own records (administrators, tokens,
//! settings), and the server's id in a `_local` document. The servers of a cluster share most of these documents.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stemmadb::log_storage::ClusterStore;
use stemmadb::{Object, Options, Value};
use uuid::Uuid;

use super::EntrySettings;
use super::records::{DocumentStore, LocalDocuments, SharedDocuments};
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
    /// As `Shard`, in a cluster: a database with an owner of its own, which the owner of the virtual database reads and
    /// writes as one of another server.
    ClusterShard(String),
}

impl DatabaseKind {
    /// The virtual database of which it is a shard.
    pub(super) fn shard_of(&self) -> Option<&str> {
        match self {
            DatabaseKind::Shard(of) | DatabaseKind::ClusterShard(of) => Some(of),
            DatabaseKind::Plain | DatabaseKind::Virtual => None,
        }
    }
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
    /// The URL of the bucket that has its log, if one has.
    pub(super) log_url: Option<String>,
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
    #[serde(default, rename = "log", skip_serializing_if = "Option::is_none")]
    log_url: Option<String>,
    #[serde(default, rename = "virtual", skip_serializing_if = "std::ops::Not::not")]
    is_virtual: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard_of: Option<String>,
}

pub(super) struct Catalog {
    local: LocalDocuments,
    /// What the servers of a cluster share.
    shared: Option<SharedDocuments>,
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
            log_url: None,
            is_in_memory: false,
            kind: DatabaseKind::Plain,
        }
    }

    /// The name by which clients know the database: that of the virtual database for its shards.
    pub(super) fn shown_name(&self) -> &str {
        self.kind.shard_of().unwrap_or(&self.name)
    }

    /// The name that requests to the database have.
    pub(super) fn requested_name(&self) -> &str {
        match &self.kind {
            DatabaseKind::Shard(of) => of,
            _ => &self.name,
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
        match self.kind.shard_of() {
            Some(of) => Err(Failure::forbidden(format!(
                "`{}` is a shard of the virtual database `{of}`. Read and write `{of}` instead.",
                self.name
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn settings(&self) -> EntrySettings {
        EntrySettings { security: self.security.clone(), revs_limit: self.revs_limit }
    }

    /// The name of its log in the store of a cluster. A database that is created again has another one.
    pub(super) fn log(&self) -> String {
        format!("{}/{}", self.name, self.instance_id)
    }

    fn to_record(&self) -> Result<DatabaseRecord> {
        Ok(DatabaseRecord {
            directory: self.directory.clone(),
            instance_id: Some(self.instance_id.clone()),
            created: self.created,
            security: self.security.value().deserialize_into()?,
            revs_limit: self.revs_limit,
            partitioned: self.is_partitioned,
            log_url: self.log_url.clone(),
            is_virtual: self.kind == DatabaseKind::Virtual,
            shard_of: self.kind.shard_of().map(str::to_owned),
        })
    }
}

/// When a request may be repeated whose database was removed before it was complete.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const SERVER_RECORD: &str = "server";
/// The prefixes of the ids of databases, and of what is being removed: directories, or logs of a cluster.
const DATABASE_PREFIX: &str = "database:";
const REMOVAL_PREFIX: &str = "removal:";

/// The kinds of documents that every server of a cluster has for itself. All others are shared.
const OWN_KINDS: [&str; 1] = ["setting"];

impl Catalog {
    /// `options`: how all databases of the server are opened. `cluster`: the store of the cluster, if it is in one.
    ///
    /// # Errors
    /// 503 if the documents can't be read; 400 if a server of a cluster has databases of its own.
    pub(super) fn open(path: &Path, options: &Options, cluster: Option<Arc<dyn ClusterStore>>) -> Result<Self> {
        let local = LocalDocuments::open(path, options)?;
        if cluster.is_some() && !local.with_prefix(DATABASE_PREFIX)?.is_empty() {
            return Err(Failure::bad_request(
                "The directory has databases of a server without a cluster: give a server of a cluster an empty one, \
                 and replicate the databases to it.",
            ));
        }
        let shared = cluster.map(SharedDocuments::open).transpose()?;
        let mut catalog = Catalog { local, shared, server_id: String::new() };
        let made = || Ok(serde_json::json!({"id": Uuid::new_v4().simple().to_string()}));
        let (record, _) = catalog.get_or_create_local(SERVER_RECORD, made)?;
        let id = record.get("id").and_then(Value::as_str);
        catalog.server_id =
            id.ok_or_else(|| Failure::internal("the server's id in the catalog is damaged"))?.to_owned();
        Ok(catalog)
    }

    /// Where the document `id` is.
    fn store_of(&self, id: &str) -> &dyn DocumentStore {
        let is_own = id.split_once(':').is_some_and(|(kind, _)| OWN_KINDS.contains(&kind));
        match &self.shared {
            Some(shared) if !is_own => shared,
            _ => &self.local,
        }
    }

    /// Reads what other servers of the cluster have changed. Returns the version of what they share, if there is any.
    pub(super) fn refresh(&self) -> Result<Option<Uuid>> {
        self.shared.as_ref().map_or(Ok(None), SharedDocuments::refresh)
    }

    /// Opens the database again now if a write has failed: some space was freed.
    pub(super) fn recover(&self) {
        self.local.recover();
    }

    /// As if the disk had been full when the catalog was opened.
    #[cfg(test)]
    pub(super) fn fail_writes(&self) {
        self.local.fail_writes();
    }

    /// Whether the disk is not full.
    pub(super) fn takes_writes(&self) -> bool {
        self.local.takes_writes()
    }

    /// Closes the database. Later operations fail.
    pub(super) fn close(&self) {
        if let Err(error) = self.local.database().close() {
            tracing::error!(target: "stemma::database", "closing the catalog: {error}");
        }
    }

    /// Returns the record `name`, which is no document that replicates, and whether `make` has just created it.
    pub(super) fn get_or_create_local(
        &self,
        name: &str,
        make: impl Fn() -> Result<serde_json::Value>,
    ) -> Result<(Value, bool)> {
        if let Some(shared) = &self.shared {
            let id = format!("local:{name}");
            let made = Value::from_serialize(&make()?)?;
            shared.update(&|lookup| {
                Ok(if lookup(&id)?.is_some() { Vec::new() } else { vec![(id.clone(), Some(made.clone()))] })
            })?;
            let stored = shared.get(&id)?.unwrap_or_default();
            let is_new = stored == made;
            return Ok((stored, is_new));
        }
        let id = format!("_local/{name}");
        let database = self.local.database();
        if let Some((_, value)) = database.local_documents().get(&id)? {
            return Ok((value, false));
        }
        let made = make()?;
        database.local_documents().put(&id, None, &made)?;
        Ok((Value::from_serialize(&made)?, true))
    }

    pub(super) fn server_id(&self) -> &str {
        &self.server_id
    }

    pub(super) fn entries(&self) -> Result<Vec<CatalogEntry>> {
        let mut entries = Vec::new();
        for (id, value) in self.store_of(DATABASE_PREFIX).with_prefix(DATABASE_PREFIX)? {
            let Some(name) = id.strip_prefix(DATABASE_PREFIX) else { continue };
            let record: DatabaseRecord = value.deserialize_into()?;
            let security = Security::parse(Value::from_serialize(&record.security)?)?;
            entries.push(CatalogEntry {
                name: name.to_owned(),
                instance_id: record.instance_id.unwrap_or_else(|| earlier_instance_id(&record.directory)),
                directory: record.directory,
                created: record.created,
                security,
                revs_limit: record.revs_limit,
                is_partitioned: record.partitioned,
                log_url: record.log_url,
                is_in_memory: false,
                kind: match record.shard_of {
                    Some(of) if self.shared.is_some() => DatabaseKind::ClusterShard(of),
                    Some(of) => DatabaseKind::Shard(of),
                    None if record.is_virtual => DatabaseKind::Virtual,
                    None => DatabaseKind::Plain,
                },
            });
        }
        Ok(entries)
    }

    /// Adds a database.
    ///
    /// # Errors
    /// 412 if there is one of its name.
    pub(super) fn add(&self, entry: &CatalogEntry) -> Result<()> {
        let (id, record) = (database_id(&entry.name), Value::from_serialize(&entry.to_record()?)?);
        self.store_of(&id).update(&|lookup| match lookup(&id)? {
            None => Ok(vec![(id.clone(), Some(record.clone()))]),
            Some(known) if known == record => Ok(Vec::new()),
            Some(_) => Err(super::already_exists()),
        })
    }

    /// Removes a database and records what must be removed with it, its directory or its log.
    pub(super) fn remove(&self, entry: &CatalogEntry) -> Result<()> {
        let (id, removal) = (database_id(&entry.name), self.removal_id(entry));
        self.store_of(&id).update(&|lookup| {
            let known = lookup(&id)?.map(|known| known.deserialize_into::<DatabaseRecord>()).transpose()?;
            let is_same = known.is_none_or(|known| known.directory == entry.directory);
            let database = is_same.then(|| (id.clone(), None));
            Ok(database.into_iter().chain([(removal.clone(), Some(Value::Object(Object::new())))]).collect())
        })
    }

    fn removal_id(&self, entry: &CatalogEntry) -> String {
        match self.shared {
            Some(_) => format!("{REMOVAL_PREFIX}{}", entry.log()),
            None => format!("{REMOVAL_PREFIX}{}", entry.directory),
        }
    }

    /// Records that the log of a database, which is about to be filled, is to be removed unless the database is added.
    pub(super) fn begin(&self, entry: &CatalogEntry) -> Result<()> {
        let id = self.removal_id(entry);
        self.store_of(&id).update(&|_| Ok(vec![(id.clone(), Some(Value::Object(Object::new())))]))
    }

    /// Adds a database that was begun.
    ///
    /// # Errors
    /// 412 if there is one of its name; 503 if it took so long that its log was removed.
    pub(super) fn add_begun(&self, entry: &CatalogEntry) -> Result<()> {
        let (id, begun) = (database_id(&entry.name), self.removal_id(entry));
        let record = Value::from_serialize(&entry.to_record()?)?;
        self.store_of(&id).update(&|lookup| match (lookup(&id)?, lookup(&begun)?) {
            (None, Some(_)) => Ok(vec![(id.clone(), Some(record.clone())), (begun.clone(), None)]),
            (Some(known), _) if known == record => Ok(Vec::new()),
            (Some(_), _) => Err(super::already_exists()),
            (None, None) => Err(Failure::unavailable("The database took too long: repeat the request.", RETRY_AFTER)),
        })
    }

    /// Whether a directory is recorded as being removed.
    pub(super) fn is_being_removed(&self, directory: &str) -> Result<bool> {
        Ok(self.local.get(&format!("{REMOVAL_PREFIX}{directory}"))?.is_some())
    }

    /// The directories that must be removed; in a cluster, the logs.
    pub(super) fn removals(&self) -> Result<Vec<String>> {
        let documents = self.store_of(REMOVAL_PREFIX).with_prefix(REMOVAL_PREFIX)?;
        let removals = documents.iter().filter_map(|(id, _)| id.strip_prefix(REMOVAL_PREFIX));
        Ok(removals.map(str::to_owned).collect())
    }

    /// Records that what a database had was removed.
    pub(super) fn removed(&self, entry: &CatalogEntry) -> Result<()> {
        self.forget(self.removal_id(entry))
    }

    /// Records that a directory, or the log of a cluster, was removed.
    pub(super) fn completed(&self, removal: &str) -> Result<()> {
        self.forget(format!("{REMOVAL_PREFIX}{removal}"))
    }

    fn forget(&self, id: String) -> Result<()> {
        self.store_of(&id).update(&|lookup| Ok(lookup(&id)?.map(|_| (id.clone(), None)).into_iter().collect()))
    }

    pub(super) fn set_security(&self, name: &str, security: &Security) -> Result<()> {
        let security: serde_json::Value = security.value().deserialize_into()?;
        self.change(name, |record| record.security = security.clone())
    }

    pub(super) fn set_revs_limit(&self, name: &str, revs_limit: usize) -> Result<()> {
        self.change(name, |record| record.revs_limit = Some(revs_limit))
    }

    /// The names and values of all records of a kind.
    pub(super) fn records(&self, kind: &str) -> Result<Vec<(String, Value)>> {
        let of_kind = |(id, value): (String, Value)| {
            let name = id.strip_prefix(kind).and_then(|rest| rest.strip_prefix(':'))?;
            Some((name.to_owned(), value))
        };
        let prefix = format!("{kind}:");
        Ok(self.store_of(&prefix).with_prefix(&prefix)?.into_iter().filter_map(of_kind).collect())
    }

    pub(super) fn put_record(&self, kind: &str, name: &str, value: &serde_json::Value) -> Result<()> {
        let (id, value) = (format!("{kind}:{name}"), Value::from_serialize(value)?);
        self.store_of(&id).update(&|_| Ok(vec![(id.clone(), Some(value.clone()))]))
    }

    /// As [`Catalog::put_record`], if the record of the kind `holders` and the same name is `holder`; returns whether
    /// it is.
    pub(super) fn put_record_as(
        &self,
        (holders, holder): (&str, &Value),
        kind: &str,
        name: &str,
        value: &serde_json::Value,
    ) -> Result<bool> {
        let (id, value) = (format!("{kind}:{name}"), Value::from_serialize(value)?);
        let (holder_id, is_holder) = (format!("{holders}:{name}"), Cell::new(false));
        self.store_of(&id).update(&|lookup| {
            is_holder.set(lookup(&holder_id)?.as_ref() == Some(holder));
            Ok(if is_holder.get() { vec![(id.clone(), Some(value.clone()))] } else { Vec::new() })
        })?;
        Ok(is_holder.get())
    }

    pub(super) fn remove_record(&self, kind: &str, name: &str) -> Result<()> {
        self.forget(format!("{kind}:{name}"))
    }

    fn change(&self, name: &str, change: impl Fn(&mut DatabaseRecord)) -> Result<()> {
        let id = database_id(name);
        self.store_of(&id).update(&|lookup| {
            let mut record: DatabaseRecord = lookup(&id)?.ok_or_else(Failure::no_database)?.deserialize_into()?;
            change(&mut record);
            Ok(vec![(id.clone(), Some(Value::from_serialize(&record)?))])
        })
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
