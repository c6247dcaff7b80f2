//! Where the documents of the catalog are: in a database on this machine, or in the store that the servers of a cluster
//! share.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb::log_storage::ClusterStore;
use stemmadb::{Database, Document, Options, Sequence, Value};
use uuid::Uuid;

use super::space::{self, OpenedAt};
use crate::error::{Failure, Result};

/// Documents by their ids, and a change of one: the value that it gets, or none if it is removed.
pub(super) type Documents = Vec<(String, Value)>;
pub(super) type Change = (String, Option<Value>);

/// Reads a document in the middle of an update.
pub(super) type Lookup<'a> = dyn Fn(&str) -> Result<Option<Value>> + 'a;

/// Where documents of the catalog are.
pub(super) trait DocumentStore: Send + Sync {
    /// The documents whose ids begin with `prefix`.
    fn with_prefix(&self, prefix: &str) -> Result<Documents>;

    /// One document.
    fn get(&self, id: &str) -> Result<Option<Value>>;

    /// Makes the changes that `change` returns, all or none. It may be called several times: what it returns is for the
    /// documents that it has read.
    fn update(&self, change: &dyn Fn(&Lookup<'_>) -> Result<Vec<Change>>) -> Result<()>;
}

/// Documents in a database on this machine.
pub(super) struct LocalDocuments {
    path: PathBuf,
    options: Options,
    opened: Mutex<(Database, OpenedAt)>,
}

impl LocalDocuments {
    pub(super) fn open(path: &Path, options: &Options) -> Result<Self> {
        let opened = Mutex::new((space::open(path, options)?, OpenedAt::now()));
        Ok(LocalDocuments { path: path.to_owned(), options: options.clone(), opened })
    }

    /// The open database; opened again if the disk was full and has space again.
    pub(super) fn database(&self) -> Database {
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
}

impl DocumentStore for LocalDocuments {
    fn with_prefix(&self, prefix: &str) -> Result<Documents> {
        let changes = self.database().changes(Sequence::ZERO)?.documents(true).run();
        let documents = changes.filter_map(|change| change.map(|change| change.document).transpose());
        let documents: Vec<_> = documents.collect::<stemmadb::Result<_>>()?;
        let is_shown = |document: &Document| document.id().as_str().starts_with(prefix) && !document.is_deleted();
        let shown = documents.into_iter().filter(is_shown);
        shown.map(|document| Ok((document.id().as_str().to_owned(), document.value()?))).collect()
    }

    fn get(&self, id: &str) -> Result<Option<Value>> {
        Ok(self.database().get(id)?.map(|document| document.value()).transpose()?)
    }

    fn update(&self, change: &dyn Fn(&Lookup<'_>) -> Result<Vec<Change>>) -> Result<()> {
        let mut refused = None;
        let written = self.database().write(|transaction| {
            let lookup = |id: &str| Ok(transaction.get(id)?.map(|document| document.value()).transpose()?);
            let changes = match change(&lookup) {
                Ok(changes) => changes,
                Err(failure) => {
                    refused = Some(failure);
                    return Err(stemmadb::Error::closed("the change was refused"));
                }
            };
            for (id, value) in changes {
                match value {
                    Some(value) => drop(transaction.upsert(&id, &value)?),
                    None => {
                        if let Some(document) = transaction.get(&id)? {
                            transaction.delete(&id, document.revision())?;
                        }
                    }
                }
            }
            Ok(())
        });
        match refused {
            Some(failure) => Err(failure),
            None => Ok(written.map(drop)?),
        }
    }
}

/// Documents in the store of a cluster, and a copy of them.
pub(super) struct SharedDocuments {
    store: Arc<dyn ClusterStore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    version: Option<Uuid>,
    documents: BTreeMap<String, Value>,
}

impl SharedDocuments {
    pub(super) fn open(store: Arc<dyn ClusterStore>) -> Result<Self> {
        let shared = SharedDocuments { store, known: Mutex::default() };
        shared.refresh()?;
        Ok(shared)
    }

    /// Reads what other servers have changed. Returns the version of the documents, which changes with them.
    pub(super) fn refresh(&self) -> Result<Option<Uuid>> {
        let mut known = self.known.lock();
        self.read_newer(&mut known)?;
        Ok(known.version)
    }

    fn read_newer(&self, known: &mut Known) -> Result<()> {
        let Some(newer) = self.store.records(known.version).map_err(|error| unreachable_cluster(&error))? else {
            return Ok(());
        };
        let parse = |(id, value): (String, Vec<u8>)| Ok((id, Value::parse(&value)?));
        let documents = newer.values.into_iter().map(parse).collect::<Result<_>>()?;
        *known = Known { version: newer.version, documents };
        Ok(())
    }
}

impl DocumentStore for SharedDocuments {
    fn with_prefix(&self, prefix: &str) -> Result<Documents> {
        let known = self.known.lock();
        let from = known.documents.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let with_prefix = from.take_while(|(id, _)| id.starts_with(prefix));
        Ok(with_prefix.map(|(id, value)| (id.clone(), value.clone())).collect())
    }

    fn get(&self, id: &str) -> Result<Option<Value>> {
        Ok(self.known.lock().documents.get(id).cloned())
    }

    fn update(&self, change: &dyn Fn(&Lookup<'_>) -> Result<Vec<Change>>) -> Result<()> {
        let mut known = self.known.lock();
        loop {
            self.read_newer(&mut known)?;
            let changes = change(&|id| Ok(known.documents.get(id).cloned()))?;
            if changes.is_empty() {
                return Ok(());
            }
            let sent: Vec<_> = changes
                .iter()
                .map(|(id, value)| (id.clone(), value.as_ref().map(|value| value.to_json().into())))
                .collect();
            let changed =
                self.store.change_records(known.version, &sent).map_err(|error| unreachable_cluster(&error))?;
            let Some(version) = changed else { continue };
            for (id, value) in changes {
                match value {
                    Some(value) => drop(known.documents.insert(id, value)),
                    None => drop(known.documents.remove(&id)),
                }
            }
            known.version = Some(version);
            return Ok(());
        }
    }
}

/// The error for a cluster that does not answer.
pub(super) fn unreachable_cluster(error: &std::io::Error) -> Failure {
    let reason = format!("The cluster does not answer: {error}");
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}
