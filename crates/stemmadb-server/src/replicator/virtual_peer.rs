//! A virtual database of this server as a replication peer. Writes obey what those of clients do, wherever the shards
//! are. Checkpoints are `_local` documents of the virtual database itself, so they outlive moves of documents.

use std::sync::Arc;
use std::time::Duration;

use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, WriteOutcome,
};
use stemmadb::{Error, Value};
use stemmadb_http::library_error;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::local::write_transfers;
use crate::error::Result;
use crate::virtual_databases::{EnteredVirtual, OpenVirtual, Shard, ShardSignals, VirtualDatabases};
use crate::writes::WriteOptions;

/// A virtual database of this server as a replication peer.
pub(super) struct VirtualPeer {
    databases: Arc<VirtualDatabases>,
    name: String,
    options: WriteOptions,
    runtime: Handle,
    /// Becomes true when the job is cancelled.
    cancelled: watch::Receiver<bool>,
    /// Of changes since changes were last read.
    signals: tokio::sync::Mutex<Option<ShardSignals>>,
}

impl VirtualPeer {
    /// Opens the virtual database `name`. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if a shard can't be opened.
    pub(super) fn open(
        databases: Arc<VirtualDatabases>,
        name: &str,
        options: WriteOptions,
        runtime: Handle,
        cancelled: watch::Receiver<bool>,
    ) -> Result<Self> {
        runtime.block_on(databases.open(name))?;
        let (name, signals) = (name.to_owned(), tokio::sync::Mutex::default());
        Ok(VirtualPeer { databases, name, options, runtime, cancelled, signals })
    }

    /// Waits until a document may have changed since `changes` was called. Holds no thread.
    pub(super) async fn changed(&self) -> stemmadb::Result<()> {
        let mut signals = self.signals.lock().await;
        match signals.as_mut() {
            Some(signals) => match signals.changed().await {
                true => Ok(()),
                false => Err(Error::closed("the virtual database is closed")),
            },
            None => Ok(()),
        }
    }

    /// The open virtual database, which is opened again if a full disk or another owner has closed it.
    fn opened(&self) -> stemmadb::Result<Arc<OpenVirtual>> {
        self.runtime.block_on(self.databases.open(&self.name)).map_err(|failure| library_error(&failure))
    }

    fn enter(&self) -> stemmadb::Result<EnteredVirtual> {
        self.runtime.block_on(self.databases.enter(&self.name)).map_err(|failure| library_error(&failure))
    }
}

impl Peer for VirtualPeer {
    fn identity(&self) -> stemmadb::Result<String> {
        self.opened()?.own.database().identity()
    }

    fn get_checkpoint(&self, id: &str) -> stemmadb::Result<Option<Value>> {
        self.opened()?.own.database().get_checkpoint(id)
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> stemmadb::Result<()> {
        let open = self.opened()?;
        open.database.flush()?;
        open.own.database().put_checkpoint(id, body)
    }

    fn changes(&self, since: Option<&Value>, count: usize, scope: &ReplicationScope) -> stemmadb::Result<ChangesPage> {
        let open = self.opened()?;
        // Before the changes are read, so that nothing is missed in between.
        *self.signals.blocking_lock() = Some(open.signals());
        Peer::changes(&open.database, since, count, scope)
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> stemmadb::Result<Vec<MissingRevisions>> {
        self.opened()?.database.missing_revisions(leaves)
    }

    fn read(
        &self,
        wanted: &[MissingRevisions],
        take: &mut dyn FnMut(Transfer) -> stemmadb::Result<()>,
    ) -> stemmadb::Result<()> {
        self.opened()?.database.read(wanted, take)
    }

    /// Writes to the shard of each document. No document moves in between.
    fn write(&self, transfers: Vec<Transfer>, written: &mut WriteOutcome) -> stemmadb::Result<()> {
        let entered = self.enter()?;
        let has_designs = transfers.iter().any(|transfer| transfer.id.is_design());
        let begin = || self.runtime.block_on(entered.open.begin_design_write());
        let _design_write = has_designs.then(begin).transpose().map_err(|failure| library_error(&failure))?;
        let layout = entered.layout();
        let mut parts: Vec<Vec<Transfer>> = layout.all().iter().map(|_| Vec::new()).collect();
        for transfer in transfers {
            let shard = layout.index_of(transfer.id.as_str());
            parts[shard].push(transfer);
        }
        for (shard, part) in layout.all().iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            match shard {
                Shard::Here(served) => write_transfers(served, part, &self.options, written)?,
                Shard::There(remote) => {
                    let peer = remote.peer_on_behalf(&entered.open, &self.options.validator.user);
                    let peer = self.runtime.block_on(peer).map_err(|failure| library_error(&failure))?;
                    peer.write(part, written)?;
                }
            }
        }
        Ok(())
    }

    fn wait(&self, _since: &Value, timeout: Duration) -> stemmadb::Result<()> {
        let mut cancelled = self.cancelled.clone();
        self.runtime.block_on(async {
            tokio::select! {
                changed = self.changed() => changed,
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Error::stopped("the replication was cancelled")),
                () = tokio::time::sleep(timeout) => Ok(()),
            }
        })
    }
}
