//! An incorrect target, for testing the simulation: it reports documents as written, and writes them only after the
//! next checkpoint. Until then they are in memory, and are lost if the replication restarts.

use std::time::Duration;

use parking_lot::Mutex;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, WriteOutcome,
};
use stemmadb::{Result, Value};

/// A target that acknowledges documents before it writes them.
pub(super) struct EagerTarget {
    inner: Box<dyn Peer>,
    held: Mutex<HeldTransfers>,
}

#[derive(Default)]
struct HeldTransfers {
    transfers: Vec<Transfer>,
    /// Whether a checkpoint was stored that covers them.
    is_checkpointed: bool,
}

impl HeldTransfers {
    fn take_if_checkpointed(&mut self) -> Vec<Transfer> {
        if std::mem::take(&mut self.is_checkpointed) { std::mem::take(&mut self.transfers) } else { Vec::new() }
    }
}

impl EagerTarget {
    pub(super) fn new(inner: Box<dyn Peer>) -> Self {
        EagerTarget { inner, held: Mutex::default() }
    }
}

impl Peer for EagerTarget {
    /// Called at the start of a replication, which loses the documents that the previous one held.
    fn identity(&self) -> Result<String> {
        *self.held.lock() = HeldTransfers::default();
        self.inner.identity()
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        let late = self.held.lock().take_if_checkpointed();
        self.inner.write(late, &mut WriteOutcome::default())?;
        self.inner.get_checkpoint(id)
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.inner.put_checkpoint(id, body)?;
        self.held.lock().is_checkpointed = true;
        Ok(())
    }

    fn changes(&self, since: Option<&Value>, count: usize, selection: &ReplicationScope) -> Result<ChangesPage> {
        self.inner.changes(since, count, selection)
    }

    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>> {
        self.inner.missing_revisions(leaves)
    }

    fn read(&self, wanted: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()> {
        self.inner.read(wanted, take)
    }

    fn write(&self, transfers: Vec<Transfer>, written: &mut WriteOutcome) -> Result<()> {
        written.count += transfers.len();
        self.held.lock().transfers.extend(transfers);
        Ok(())
    }

    fn wait(&self, since: &Value, timeout: Duration) -> Result<()> {
        self.inner.wait(since, timeout)
    }
}
