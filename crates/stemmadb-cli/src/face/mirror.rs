//! Copies in plain files, of a database that is open here or on a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stemmadb::{Mirror, MirrorOptions, Peer};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Database;
use crate::failure::{Failure, Result};

/// How long a server keeps a follower waiting for news.
const PATIENCE: Duration = Duration::from_secs(25);

/// Which copy.
pub(crate) struct Copy {
    pub(crate) directory: PathBuf,
    pub(crate) by: Vec<String>,
    pub(crate) files: bool,
    pub(crate) flush: bool,
    pub(crate) rebuild: bool,
}

/// What was done to a copy.
pub(crate) struct Copied {
    pub(crate) written_count: u64,
    pub(crate) removed_count: u64,
}

impl Copied {
    fn of(done: &stemmadb::MirrorStats) -> Self {
        Copied { written_count: done.written_count, removed_count: done.removed_count }
    }

    /// Documents that were looked at.
    pub(crate) fn count(&self) -> u64 {
        self.written_count + self.removed_count
    }
}

impl Copy {
    fn options(&self) -> MirrorOptions {
        let options = MirrorOptions::new().files(self.files).flush(self.flush).rebuild(self.rebuild);
        self.by.iter().fold(options, MirrorOptions::by)
    }
}

impl Database {
    /// Brings a copy up to date, as long as `go_on` says so.
    pub(crate) fn mirror(&self, copy: &Copy, mut go_on: impl FnMut(&Copied) -> bool) -> Result<Copied> {
        let mut mirror = self.inner.mirror_to(&copy.directory, copy.options())?;
        Ok(Copied::of(&mirror.catch_up_while(|done| go_on(&Copied::of(done)))?))
    }
}

/// A database on a server.
pub(crate) struct Origin {
    peer: Arc<dyn Peer>,
    cancelled: watch::Receiver<bool>,
}

impl Origin {
    /// The one at `url`, until `cancelled` becomes true.
    pub(crate) fn reach(url: &str, runtime: &Handle, cancelled: watch::Receiver<bool>) -> Result<Self> {
        let peer = stemmadb_server::peer(url, runtime.clone(), cancelled.clone());
        let peer = peer.map_err(|failure| Failure::usage(failure.reason()))?;
        Ok(Origin { peer, cancelled })
    }

    fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Brings a copy up to date, and tells `caught_up` of it; then, if it is to `follow`, keeps it so until cancelled.
    pub(crate) fn mirror(
        &self,
        copy: &Copy,
        follow: bool,
        mut go_on: impl FnMut(&Copied) -> bool,
        caught_up: impl FnOnce(&Copied),
    ) -> Result<()> {
        let outcome = self.open(copy).and_then(|mut mirror| {
            let done = mirror.catch_up_while(|done| go_on(&Copied::of(done)) && !self.is_cancelled())?;
            caught_up(&Copied::of(&done));
            match follow {
                true => mirror.follow(PATIENCE, |_| !self.is_cancelled()),
                false => Ok(()),
            }
        });
        match outcome {
            Err(_) if self.is_cancelled() => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    fn open(&self, copy: &Copy) -> stemmadb::Result<Mirror> {
        Mirror::open(self.peer.clone(), &copy.directory, copy.options())
    }
}
