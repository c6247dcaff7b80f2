//! Mirrors a local or remote database to plain files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stemmadb::replication::Peer;
use stemmadb::{Mirror, MirrorOptions};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Database;
use crate::failure::{Failure, Result};

/// Timeout of a long-poll request for changes.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(25);

/// A mirror directory and its options.
pub(crate) struct MirrorTarget {
    pub(crate) directory: PathBuf,
    pub(crate) by: Vec<String>,
    pub(crate) files: bool,
    pub(crate) flush: bool,
    pub(crate) rebuild: bool,
}

/// Counts of the changes made to a mirror.
pub(crate) struct MirrorProgress {
    pub(crate) written_count: u64,
    pub(crate) removed_count: u64,
}

impl MirrorProgress {
    fn new(done: &stemmadb::MirrorStats) -> Self {
        MirrorProgress { written_count: done.written_count, removed_count: done.removed_count }
    }

    /// The number of documents processed.
    pub(crate) fn count(&self) -> u64 {
        self.written_count + self.removed_count
    }
}

impl MirrorTarget {
    fn options(&self) -> MirrorOptions {
        let options = MirrorOptions::new().files(self.files).flush(self.flush).rebuild(self.rebuild);
        self.by.iter().fold(options, MirrorOptions::by)
    }
}

impl Database {
    /// Brings a mirror up to date; stops early when `on_progress` returns false.
    pub(crate) fn mirror(
        &self,
        target: &MirrorTarget,
        mut on_progress: impl FnMut(&MirrorProgress) -> bool,
    ) -> Result<MirrorProgress> {
        let mut mirror = self.inner.mirror_to(&target.directory, target.options())?;
        Ok(MirrorProgress::new(&mirror.catch_up_while(|done| on_progress(&MirrorProgress::new(done)))?))
    }
}

/// A database on a CouchDB-compatible server.
pub(crate) struct RemoteDatabase {
    peer: Arc<dyn Peer>,
    cancelled: watch::Receiver<bool>,
}

impl RemoteDatabase {
    /// Creates a client for the database at `url`; requests end when `cancelled` becomes true.
    pub(crate) fn new(url: &str, runtime: &Handle, cancelled: watch::Receiver<bool>) -> Result<Self> {
        let peer = stemmadb_server::peer(url, runtime.clone(), cancelled.clone());
        let peer = peer.map_err(|failure| Failure::usage(failure.reason()))?;
        Ok(RemoteDatabase { peer, cancelled })
    }

    fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Brings a mirror up to date and calls `on_caught_up`; with `follow`, then applies changes until cancelled.
    pub(crate) fn mirror(
        &self,
        target: &MirrorTarget,
        follow: bool,
        mut on_progress: impl FnMut(&MirrorProgress) -> bool,
        on_caught_up: impl FnOnce(&MirrorProgress),
    ) -> Result<()> {
        let outcome = self.open(target).and_then(|mut mirror| {
            let done = mirror.catch_up_while(|done| on_progress(&MirrorProgress::new(done)) && !self.is_cancelled())?;
            on_caught_up(&MirrorProgress::new(&done));
            match follow {
                true => mirror.follow(LONG_POLL_TIMEOUT, |_| !self.is_cancelled()),
                false => Ok(()),
            }
        });
        match outcome {
            Err(_) if self.is_cancelled() => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    fn open(&self, target: &MirrorTarget) -> stemmadb::Result<Mirror> {
        Mirror::open(self.peer.clone(), &target.directory, target.options())
    }
}
