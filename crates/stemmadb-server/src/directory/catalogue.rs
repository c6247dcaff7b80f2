//! The list of databases that survives crashes: a Stemma database, with a document for each.
//!
//! Beside them, documents for directories that are being removed, and the server's id in a `_local` document.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stemmadb::{Database, Document, Sequence, Value};
use uuid::Uuid;

use crate::auth::Security;
use crate::error::{Failure, Result};

/// What the catalogue knows of a database.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Its directory's name, in the server's.
    pub(super) directory: String,
    /// When it was made, in seconds since 1970: what replicators take for its identity, so it never changes.
    pub(super) created: u64,
    pub(super) security: Security,
    /// How many revisions of a line of descent are remembered, if that was said.
    pub(super) revs_limit: Option<usize>,
}

/// A document of the catalogue.
#[derive(Serialize, Deserialize)]
struct Row {
    directory: String,
    created: u64,
    security: serde_json::Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revs_limit: Option<usize>,
}

pub(super) struct Catalogue {
    database: Database,
    server_id: String,
}

impl Entry {
    pub(super) fn new(name: &str) -> Self {
        Self::within(name, format!("{}.{}", Uuid::new_v4().simple(), super::EXTENSION))
    }

    /// A database that was put into the directory by hand.
    pub(super) fn adopted(name: &str) -> Self {
        Self::within(name, format!("{name}.{}", super::EXTENSION))
    }

    fn within(name: &str, directory: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Entry { name: name.to_owned(), directory, created, security: Security::default(), revs_limit: None }
    }

    fn row(&self) -> Result<Row> {
        Ok(Row {
            directory: self.directory.clone(),
            created: self.created,
            security: self.security.value().deserialize_into()?,
            revs_limit: self.revs_limit,
        })
    }
}

const SERVER: &str = "_local/server";
/// What the ids of databases begin with, and of directories that are being removed.
const DATABASE: &str = "database:";
const REMOVAL: &str = "removal:";

impl Catalogue {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let database = Database::open(path)?;
        let known = database.local_documents().get(SERVER)?;
        let known = known.as_ref().and_then(|(_, value)| value.get("id")?.as_str());
        let server_id = match known {
            Some(id) => id.to_owned(),
            None => {
                let id = Uuid::new_v4().simple().to_string();
                database.local_documents().put(SERVER, None, &serde_json::json!({ "id": id }))?;
                id
            }
        };
        Ok(Catalogue { database, server_id })
    }

    /// What the server keeps for itself under `name`; made by `make` the first time.
    pub(super) fn kept(&self, name: &str, make: impl FnOnce() -> Result<serde_json::Value>) -> Result<(Value, bool)> {
        let id = format!("_local/{name}");
        if let Some((_, value)) = self.database.local_documents().get(&id)? {
            return Ok((value, false));
        }
        let made = make()?;
        self.database.local_documents().put(&id, None, &made)?;
        Ok((Value::from_serialize(&made)?, true))
    }

    pub(super) fn server_id(&self) -> &str {
        &self.server_id
    }

    pub(super) fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for document in self.documents()? {
            let Some(name) = document.id().as_str().strip_prefix(DATABASE) else { continue };
            let row: Row = document.to()?;
            let security = Security::parse(Value::from_serialize(&row.security)?)?;
            entries.push(Entry {
                name: name.to_owned(),
                directory: row.directory,
                created: row.created,
                security,
                revs_limit: row.revs_limit,
            });
        }
        Ok(entries)
    }

    fn documents(&self) -> Result<Vec<Document>> {
        let changes = self.database.changes(Sequence::ZERO)?.documents(true).run();
        let documents = changes.filter_map(|change| change.map(|change| change.document).transpose());
        let documents: Vec<_> = documents.collect::<Result<_, _>>()?;
        Ok(documents.into_iter().filter(|document| !document.is_deleted()).collect())
    }

    pub(super) fn add(&self, entry: &Entry) -> Result<()> {
        self.database.insert(&database_id(&entry.name), &entry.row()?)?;
        Ok(())
    }

    /// Forgets a database; its directory is remembered as one to remove.
    pub(super) fn remove(&self, entry: &Entry) -> Result<()> {
        let id = database_id(&entry.name);
        self.database.write(|transaction| {
            if let Some(document) = transaction.get(&id)? {
                transaction.delete(&id, document.revision())?;
            }
            transaction.upsert(&format!("{REMOVAL}{}", entry.directory), &serde_json::json!({}))
        })?;
        Ok(())
    }

    /// Directories that are to be removed.
    pub(super) fn removals(&self) -> Result<Vec<String>> {
        let documents = self.documents()?;
        let removals = documents.iter().filter_map(|document| document.id().as_str().strip_prefix(REMOVAL));
        Ok(removals.map(str::to_owned).collect())
    }

    /// Notes that `directory` was removed.
    pub(super) fn removed(&self, directory: &str) -> Result<()> {
        let id = format!("{REMOVAL}{directory}");
        if let Some(document) = self.database.get(&id)? {
            self.database.delete(&id, document.revision())?;
        }
        Ok(())
    }

    pub(super) fn set_security(&self, name: &str, security: &Security) -> Result<()> {
        let security = security.value().deserialize_into()?;
        self.change(name, |row| row.security = security)
    }

    pub(super) fn set_revs_limit(&self, name: &str, revs_limit: usize) -> Result<()> {
        self.change(name, |row| row.revs_limit = Some(revs_limit))
    }

    /// What the server keeps for itself of a kind: names and values.
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
        self.database.upsert(&format!("{kind}:{name}"), value)?;
        Ok(())
    }

    pub(super) fn remove_record(&self, kind: &str, name: &str) -> Result<()> {
        let id = format!("{kind}:{name}");
        if let Some(document) = self.database.get(&id)? {
            self.database.delete(&id, document.revision())?;
        }
        Ok(())
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Row)) -> Result<()> {
        let id = database_id(name);
        let document = self.database.get(&id)?.ok_or_else(Failure::no_database)?;
        let mut row: Row = document.to()?;
        change(&mut row);
        self.database.replace(&id, document.revision(), &row)?;
        Ok(())
    }
}

/// Names may begin with an underscore, ids may not.
fn database_id(name: &str) -> String {
    format!("{DATABASE}{name}")
}
