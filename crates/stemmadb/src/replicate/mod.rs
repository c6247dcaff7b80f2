//! How do two databases come to agree? What the target lacks is read from the source and written there, revision by revision.
//!
//! It is CouchDB's protocol: a page of the source's feed, the question which of these revisions the target does not know, those revisions with
//! their ancestry and files, and a checkpoint in a `_local` document on both sides. Either side is a [`Peer`]; a [`Database`] is one.
//!
//! Invariants: a checkpoint is written only after what it covers is flushed at the target; a checkpoint that the other side does not have
//! too is not believed. So whatever is interrupted is done again, which changes nothing where it was done already.

mod checkpoint;
mod local;
mod peer;

use crate::database::Database;
use crate::query::Cancellation;
use crate::value::Value;
use crate::{Error, ErrorKind, Result};
use checkpoint::Checkpoints;
pub use peer::{Content, Leaves, Page, Peer, Selection, Transfer, TransferFile, Wanted, Written};

/// What a replication did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicated {
    /// Revisions that the source named, and the target was asked about.
    pub checked_count: u64,
    /// Those that the target lacked.
    pub missing_count: u64,
    /// Documents, each with one revision, that were read at the source.
    pub read_count: u64,
    /// Those that were written at the target.
    pub written_count: u64,
    /// Those that the target refused: by a schema, or by rights. They are not tried again.
    pub failed_count: u64,
    /// The source's position up to which everything was brought over, as the source tells it.
    pub source_position: Value,
}

/// A replication from one peer to another: everything, unless narrowed. Run it with [`Replication::run`].
pub struct Replication<'a> {
    source: &'a dyn Peer,
    target: &'a dyn Peer,
    selection: Selection,
    since: Option<Value>,
    batch_count: usize,
    cancellation: Option<Cancellation>,
}

/// Changes that are asked for at once.
const BATCH_COUNT: usize = 500;
/// Documents that are written at once.
const WRITE_COUNT_MAX: usize = 100;
/// Bytes of bodies that are held at once, about.
const WRITE_BYTES_MAX: usize = 2 << 20;

impl<'a> Replication<'a> {
    /// A replication of everything from `source` to `target`.
    pub fn new(source: &'a dyn Peer, target: &'a dyn Peer) -> Self {
        let (selection, since, cancellation) = (Selection::All, None, None);
        Replication { source, target, selection, since, batch_count: BATCH_COUNT, cancellation }
    }

    /// Only what is selected. Each selection has checkpoints of its own.
    #[must_use]
    pub fn only(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Begins after this position of the source, whatever the checkpoints say.
    #[must_use]
    pub fn since(mut self, position: Value) -> Self {
        self.since = Some(position);
        self
    }

    /// So many changes are looked at, at once. Default: 500.
    #[must_use]
    pub fn batch(mut self, count: usize) -> Self {
        self.batch_count = count.max(1);
        self
    }

    /// Ends with `Stopped` soon after `cancellation` is used. What was checkpointed stays done.
    #[must_use]
    pub fn cancelled_by(mut self, cancellation: &Cancellation) -> Self {
        self.cancellation = Some(cancellation.clone());
        self
    }

    /// Brings over what the target lacks now. Costs a look at each change since the last checkpoint; holds about two megabytes of
    /// documents, and the content of files never.
    ///
    /// # Errors
    /// Those of the peers; `Stopped` if it was cancelled.
    pub fn run(self) -> Result<Replicated> {
        let mut running = self.begin()?;
        running.catch_up()?;
        Ok(running.done)
    }

    /// Looks how far it came before, to go on from there as often as there is something new: see [`Running::catch_up`].
    ///
    /// # Errors
    /// Those of the peers.
    pub fn begin(self) -> Result<Running<'a>> {
        let checkpoints = Checkpoints::open(self.source, self.target, &self.selection)?;
        let position = self.since.clone().or_else(|| checkpoints.position());
        Ok(Running { replication: self, checkpoints, position, done: Replicated::default() })
    }

    fn refuse_if_cancelled(&self) -> Result<()> {
        match &self.cancellation {
            Some(cancellation) if cancellation.is_cancelled() => Err(Error::stopped("the replication was cancelled")),
            _ => Ok(()),
        }
    }

    /// Brings over what the target lacks of one page.
    fn bring(&self, page: &Page, done: &mut Replicated) -> Result<()> {
        done.checked_count += page.leaves.iter().map(|leaves| leaves.revisions.len() as u64).sum::<u64>();
        let wanted = self.target.lacking(&page.leaves)?;
        done.missing_count += wanted.iter().map(|wanted| wanted.revisions.len() as u64).sum::<u64>();
        let mut batch = Vec::new();
        let mut bytes = 0;
        self.source.read(&wanted, &mut |transfer| {
            done.read_count += 1;
            bytes += transfer.byte_count;
            batch.push(transfer);
            if batch.len() >= WRITE_COUNT_MAX || bytes >= WRITE_BYTES_MAX {
                bytes = 0;
                self.refuse_if_cancelled()?;
                self.write(std::mem::take(&mut batch), done)?;
            }
            Ok(())
        })?;
        self.write(batch, done)
    }

    fn write(&self, batch: Vec<Transfer>, done: &mut Replicated) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut written = Written::default();
        let ended = self.target.write(batch, &mut written);
        let Written { count, refusals } = written;
        done.written_count += count as u64;
        ended?;
        // What can't be helped by another document is an end of it.
        if let Some(refusal) = refusals.iter().find(|refusal| !is_of_a_document(refusal)) {
            return Err(refusal.duplicate());
        }
        done.failed_count += refusals.len() as u64;
        Ok(())
    }
}

/// A replication that goes on.
pub struct Running<'a> {
    replication: Replication<'a>,
    checkpoints: Checkpoints<'a>,
    position: Option<Value>,
    done: Replicated,
}

impl Running<'_> {
    /// Brings over what the target lacks now; returns what was done since it began.
    ///
    /// # Errors
    /// Those of the peers; `Stopped` if it was cancelled. It may be called again: it goes on where it was.
    pub fn catch_up(&mut self) -> Result<&Replicated> {
        let Replication { source, selection, batch_count, .. } = &self.replication;
        loop {
            self.replication.refuse_if_cancelled()?;
            let page = source.changes(self.position.as_ref(), *batch_count, selection)?;
            if !page.leaves.is_empty() {
                self.replication.bring(&page, &mut self.done)?;
            }
            self.done.source_position = page.position.clone();
            if self.position.as_ref() != Some(&page.position) {
                self.position = Some(page.position);
                self.checkpoints.write(&self.done)?;
            } else if page.is_last {
                self.checkpoints.verify()?;
            }
            if page.is_last {
                return Ok(&self.done);
            }
        }
    }

    /// Waits until the source may have something new, at most for `patience`.
    ///
    /// # Errors
    /// Those of the source.
    pub fn wait(&self, patience: std::time::Duration) -> Result<()> {
        match &self.position {
            Some(position) => self.replication.source.wait(position, patience),
            None => Ok(()),
        }
    }

    /// What was done since it began.
    pub fn done(&self) -> &Replicated {
        &self.done
    }
}

/// Whether a refusal is of one document, and others may be written.
fn is_of_a_document(refusal: &Error) -> bool {
    matches!(refusal.kind(), ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Duplicate | ErrorKind::NotFound)
}

impl Database {
    /// Brings everything to `peer` that it lacks. Both sides keep a checkpoint, so doing it again costs little.
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
    pub fn replicate_to(&self, peer: &dyn Peer) -> Result<Replicated> {
        Replication::new(self, peer).run()
    }

    /// Brings everything from `peer` that is lacking here.
    ///
    /// # Errors
    /// As [`Replication::run`].
    pub fn replicate_from(&self, peer: &dyn Peer) -> Result<Replicated> {
        Replication::new(peer, self).run()
    }
}
