//! Replication: copies the revisions that the target lacks from the source to the target.
//!
//! It follows CouchDB's protocol: read a page of the source's changes feed, ask the target which of these revisions are
//! missing, copy those with their ancestry and files, and write a checkpoint to a `_local` document on both sides.
//! Either side is a [`Peer`]; a [`Database`] is one.
//!
//! Invariants: a checkpoint is written only after everything it covers was flushed at the target; a checkpoint is used
//! only if both sides have it. An interrupted replication therefore repeats work, which has no effect where it was
//! already done.

mod background;
mod checkpoint;
mod conflict;
mod follow;
mod local;
mod peer;
mod topology;

use std::ops::Deref;
use std::sync::Arc;

use crate::database::Database;
use crate::query::Cancellation;
use crate::value::Value;
use crate::{Error, ErrorKind, Result};
pub use background::{BackgroundReplication, ReplicationState, ReplicationStatus};
use checkpoint::Checkpoints;
pub use conflict::{Conflict, ConflictFunction, ConflictRule, ResolvedConflicts};
use follow::Nudge;
pub use follow::{ReplicationEvent, Retry};
pub use peer::{
    ChangesPage, ContentOpener, DocumentLeaves, MissingRevisions, Peer, ReplicationScope, Transfer, TransferFile,
    WriteOutcome,
};
pub use topology::{RunningTopology, Topology, TopologyEdge};

/// Counters and the position of a replication. See [`Database::replicate_to`] for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicationStats {
    /// Revisions that the source listed and the target was asked about.
    pub checked_count: u64,
    /// Revisions that the target lacked.
    pub missing_count: u64,
    /// Revisions read at the source.
    pub read_count: u64,
    /// Revisions written at the target.
    pub written_count: u64,
    /// Revisions that the target refused because of a schema or missing permissions. They are not retried.
    pub failed_count: u64,
    /// The source position up to which everything was replicated, in the source's own format.
    pub source_position: Value,
    /// About how many changes of the source were not read yet, if the source knows.
    pub pending_count: Option<u64>,
}

/// A replication from one peer to another, of everything unless narrowed.
///
/// Run it once with [`Replication::run`], or continuously with [`Replication::follow`] or [`BackgroundReplication`].
/// See [`Database::replicate_to`] for an example.
#[derive(Clone)]
pub struct Replication<'a> {
    source: PeerRef<'a>,
    target: PeerRef<'a>,
    scope: ReplicationScope,
    since: Option<Value>,
    batch_count: usize,
    cancellation: Option<Cancellation>,
    retry: Option<Retry>,
    /// Ends the wait before the next attempt.
    nudge: Option<Arc<Nudge>>,
}

/// A peer that a replication borrows, or owns together with others.
#[derive(Clone)]
enum PeerRef<'a> {
    Borrowed(&'a dyn Peer),
    Shared(Arc<dyn Peer>),
}

impl<'a> Deref for PeerRef<'a> {
    type Target = dyn Peer + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            PeerRef::Borrowed(peer) => *peer,
            PeerRef::Shared(peer) => &**peer,
        }
    }
}

/// Changes requested per page.
const BATCH_COUNT: usize = 500;
/// Maximum number of documents per write.
const WRITE_COUNT_MAX: usize = 100;
/// Approximate maximum of document bytes held in memory.
const WRITE_BYTES_MAX: usize = 2 << 20;

impl<'a> Replication<'a> {
    /// Creates a replication of everything from `source` to `target`.
    pub fn new(source: &'a dyn Peer, target: &'a dyn Peer) -> Self {
        Self::between(PeerRef::Borrowed(source), PeerRef::Borrowed(target))
    }

    /// Creates a replication that owns its peers, so that it can be kept and passed to other threads.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use stemmadb::{Database, Replication};
    /// # fn main() -> stemmadb::Result<()> {
    /// let (here, there) = (Database::in_memory(), Database::in_memory());
    /// let mut running = Replication::shared(Arc::new(here.clone()), Arc::new(there)).begin()?;
    /// here.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let caught_up = std::thread::spawn(move || running.catch_up().map(|stats| stats.written_count));
    /// assert_eq!(caught_up.join().expect("it did not panic")?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shared(source: Arc<dyn Peer>, target: Arc<dyn Peer>) -> Replication<'static> {
        Replication::between(PeerRef::Shared(source), PeerRef::Shared(target))
    }

    fn between(source: PeerRef<'a>, target: PeerRef<'a>) -> Self {
        let scope = ReplicationScope::All;
        let (since, cancellation, retry, nudge) = (None, None, None, None);
        Replication { source, target, scope, since, batch_count: BATCH_COUNT, cancellation, retry, nudge }
    }

    /// Replicates only the selected documents. Each scope has its own checkpoints.
    #[must_use]
    pub fn only(mut self, scope: ReplicationScope) -> Self {
        self.scope = scope;
        self
    }

    /// Starts after this position of the source, ignoring checkpoints.
    #[must_use]
    pub fn since(mut self, position: Value) -> Self {
        self.since = Some(position);
        self
    }

    /// Sets the number of changes requested per page. Default: 500; at least 1.
    #[must_use]
    pub fn batch(mut self, count: usize) -> Self {
        self.batch_count = count.max(1);
        self
    }

    /// Ends with `Stopped` soon after `cancellation` is used. Checkpointed progress is kept.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: &Cancellation) -> Self {
        self.cancellation = Some(cancellation.clone());
        self
    }

    /// Tries again after a failure that may pass. Default: never in [`Replication::run`], always in
    /// [`Replication::follow`].
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Replicates everything that the target lacks now.
    ///
    /// Costs one lookup per change since the last checkpoint. Holds about two megabytes of documents in memory, and
    /// never the content of files.
    ///
    /// # Errors
    /// The errors of the peers; `Stopped` if it was cancelled.
    pub fn run(self) -> Result<ReplicationStats> {
        self.run_showing(|_| ())
    }

    /// Reads the checkpoints, and returns a replication that can catch up repeatedly; see
    /// [`RunningReplication::catch_up`].
    ///
    /// # Errors
    /// The errors of the peers.
    pub fn begin(self) -> Result<RunningReplication<'a>> {
        let filter_code = self.scope.filter_code(&*self.source)?;
        let (source, target) = (self.source.clone(), self.target.clone());
        let checkpoints = Checkpoints::open(source, target, &self.scope, &filter_code)?;
        let position = self.since.clone().or_else(|| checkpoints.position());
        let stats = ReplicationStats::default();
        Ok(RunningReplication { replication: self, filter_code, checkpoints, position, stats })
    }

    fn refuse_if_cancelled(&self) -> Result<()> {
        match &self.cancellation {
            Some(cancellation) if cancellation.is_cancelled() => Err(Error::stopped("the replication was cancelled")),
            _ => Ok(()),
        }
    }

    /// Replicates what the target lacks of one page.
    fn transfer_page(&self, page: &ChangesPage, stats: &mut ReplicationStats) -> Result<()> {
        stats.checked_count += page.leaves.iter().map(|leaves| leaves.revisions.len() as u64).sum::<u64>();
        let missing = self.target.missing_revisions(&page.leaves)?;
        stats.missing_count += missing.iter().map(|missing| missing.revisions.len() as u64).sum::<u64>();
        let mut batch = Vec::new();
        let mut bytes = 0;
        self.source.read(&missing, &mut |transfer| {
            stats.read_count += 1;
            bytes += transfer.byte_count;
            batch.push(transfer);
            if batch.len() >= WRITE_COUNT_MAX || bytes >= WRITE_BYTES_MAX {
                bytes = 0;
                self.refuse_if_cancelled()?;
                self.write(std::mem::take(&mut batch), stats)?;
            }
            Ok(())
        })?;
        self.write(batch, stats)
    }

    fn write(&self, batch: Vec<Transfer>, stats: &mut ReplicationStats) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut outcome = WriteOutcome::default();
        let result = self.target.write(batch, &mut outcome);
        let WriteOutcome { count, refusals } = outcome;
        stats.written_count += count as u64;
        result?;
        // An error that is not specific to one document would fail for all of them, so it ends the replication.
        if let Some(refusal) = refusals.iter().find(|refusal| !is_document_error(refusal)) {
            return Err(refusal.duplicate());
        }
        stats.failed_count += refusals.len() as u64;
        Ok(())
    }
}

/// A replication that has read its checkpoints and can catch up repeatedly; created by [`Replication::begin`]. See
/// [`Database::replicate_to`] for an example.
pub struct RunningReplication<'a> {
    replication: Replication<'a>,
    /// The code of the filter function that the checkpoints belong to.
    filter_code: String,
    checkpoints: Checkpoints<'a>,
    position: Option<Value>,
    stats: ReplicationStats,
}

impl RunningReplication<'_> {
    /// Replicates everything that the target lacks now; returns the totals since it began.
    ///
    /// # Errors
    /// The errors of the peers; `Stopped` if it was cancelled. It can be called again and continues at its last
    /// position.
    pub fn catch_up(&mut self) -> Result<&ReplicationStats> {
        self.catch_up_showing(|_| ())
    }

    /// Same as [`RunningReplication::catch_up`]; calls `progress` with the totals after each page of changes.
    ///
    /// # Errors
    /// Those of [`RunningReplication::catch_up`].
    pub fn catch_up_showing(&mut self, mut progress: impl FnMut(&ReplicationStats)) -> Result<&ReplicationStats> {
        self.follow_filter_code()?;
        let Replication { source, scope, batch_count, .. } = &self.replication;
        loop {
            self.replication.refuse_if_cancelled()?;
            let page = source.changes(self.position.as_ref(), *batch_count, scope)?;
            if !page.leaves.is_empty() {
                self.replication.transfer_page(&page, &mut self.stats)?;
            }
            self.stats.source_position = page.position.clone();
            self.stats.pending_count = page.pending_count;
            progress(&self.stats);
            if self.position.as_ref() != Some(&page.position) {
                self.position = Some(page.position);
                self.checkpoints.write(&self.stats)?;
            } else if page.is_last {
                self.checkpoints.verify_unchanged()?;
            }
            if page.is_last {
                return Ok(&self.stats);
            }
        }
    }

    /// Continues at the checkpoint of the filter function's current code if the code changed.
    fn follow_filter_code(&mut self) -> Result<()> {
        let Replication { source, target, scope, since, .. } = &self.replication;
        let filter_code = scope.filter_code(&**source)?;
        if filter_code != self.filter_code {
            self.checkpoints = Checkpoints::open(source.clone(), target.clone(), scope, &filter_code)?;
            self.position = since.clone().or_else(|| self.checkpoints.position());
            self.filter_code = filter_code;
        }
        Ok(())
    }

    /// Waits until the source may have changes, at most for `timeout`.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn wait(&self, timeout: std::time::Duration) -> Result<()> {
        match &self.position {
            Some(position) => self.replication.source.wait(position, timeout),
            None => Ok(()),
        }
    }

    /// The id of this run, which its checkpoints contain.
    pub fn session_id(&self) -> &str {
        self.checkpoints.session()
    }

    /// The source position up to which everything is replicated; `None` at the beginning of the feed.
    pub fn position(&self) -> Option<&Value> {
        self.position.as_ref()
    }

    /// The totals since it began.
    pub fn stats(&self) -> &ReplicationStats {
        &self.stats
    }
}

/// Whether a refusal concerns only one document, so that others may still be written.
fn is_document_error(refusal: &Error) -> bool {
    matches!(refusal.kind(), ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound)
}

impl Database {
    /// Replicates everything that `peer` lacks from this database to it. Both sides keep a checkpoint, so repeating it
    /// is cheap.
    ///
    /// ```
    /// # use stemmadb::Database;
    /// # fn main() -> stemmadb::Result<()> {
    /// let (here, there) = (Database::in_memory(), Database::in_memory());
    /// here.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let done = here.replicate_to(&there)?;
    /// assert_eq!((done.written_count, there.get("solaris")?.is_some()), (1, true));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Replication::run`].
    pub fn replicate_to(&self, peer: &dyn Peer) -> Result<ReplicationStats> {
        Replication::new(self, peer).run()
    }

    /// Replicates everything that this database lacks from `peer`. See [`Database::replicate_to`] for an example.
    ///
    /// # Errors
    /// As [`Replication::run`].
    pub fn replicate_from(&self, peer: &dyn Peer) -> Result<ReplicationStats> {
        Replication::new(peer, self).run()
    }
}
