//! A target that is wrong: it says that documents are written, and writes them some time after the next checkpoint. Meanwhile they are in
//! memory, and lost with it.

use std::time::Duration;

use parking_lot::Mutex;
use stemmadb::replication::{
    ChangesPage, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, WriteOutcome,
};
use stemmadb::{Result, Value};

/// A target that writes too late.
pub(super) struct EagerTarget {
    inner: Box<dyn Peer>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    transfers: Vec<Transfer>,
    /// Whether a checkpoint says that they are written.
    is_said: bool,
}

impl Held {
    fn take_if_said(&mut self) -> Vec<Transfer> {
        if std::mem::take(&mut self.is_said) { std::mem::take(&mut self.transfers) } else { Vec::new() }
    }
}

impl EagerTarget {
    pub(super) fn new(inner: Box<dyn Peer>) -> Self {
        EagerTarget { inner, held: Mutex::default() }
    }
}

impl Peer for EagerTarget {
    /// It is asked for when a replication begins: what was held by one before is gone.
    fn identity(&self) -> Result<String> {
        *self.held.lock() = Held::default();
        self.inner.identity()
    }

    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>> {
        let late = self.held.lock().take_if_said();
        self.inner.write(late, &mut WriteOutcome::default())?;
        self.inner.get_checkpoint(id)
    }

    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()> {
        self.inner.put_checkpoint(id, body)?;
        self.held.lock().is_said = true;
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

    fn wait(&self, since: &Value, patience: Duration) -> Result<()> {
        self.inner.wait(since, patience)
    }
}
