//! The interface of one side of a replication.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

use crate::Result;
use crate::revision::{DocumentId, Revision};
use crate::value::Value;

/// Which documents are replicated; see [`Replication::only`](super::Replication::only). See
/// [`Database::replicate_to`](crate::Database::replicate_to) for an example.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ReplicationScope {
    /// All documents.
    #[default]
    All,
    /// Documents with these ids.
    Ids(BTreeSet<String>),
    /// Documents that a selector matches, as Mango JSON.
    Selector(Value),
    /// Documents that pass a filter function of a design document at the source: its name, and its request parameters.
    Filter(String, Vec<(String, String)>),
}

impl ReplicationScope {
    /// The code of the filter function at the source; empty for other scopes.
    pub(super) fn filter_code(&self, source: &dyn Peer) -> Result<String> {
        match self {
            ReplicationScope::Filter(name, parameters) => source.filter_code(name, parameters),
            _ => Ok(String::new()),
        }
    }

    /// A text that identifies the scope within the id of a checkpoint. It contains the code of the filter function,
    /// because changed code may pass documents that were filtered out before the checkpoint.
    pub(super) fn checkpoint_key(&self, filter_code: &str) -> String {
        match self {
            ReplicationScope::All => String::new(),
            ReplicationScope::Ids(ids) => format!("ids {ids:?}"),
            ReplicationScope::Selector(selector) => format!("selector {}", selector.to_json()),
            ReplicationScope::Filter(name, parameters) => format!("filter {name} {parameters:?} {filter_code}"),
        }
    }
}

/// A changed document and all leaves of its revision tree. Exchanged between two [`Peer`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentLeaves {
    /// Id of the document.
    pub id: DocumentId,
    /// Its leaf revisions.
    pub revisions: Vec<Revision>,
}

/// A page of a source's changes feed. Exchanged between two [`Peer`]s.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangesPage {
    /// The changed documents.
    pub leaves: Vec<DocumentLeaves>,
    /// The position after which the next page begins.
    pub position: Value,
    /// Whether there are no later changes at present.
    pub is_last: bool,
    /// About how many later changes there are, if the source knows.
    pub pending_count: Option<u64>,
}

/// Revisions of a document that a target lacks. Exchanged between two [`Peer`]s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRevisions {
    /// Id of the document.
    pub id: DocumentId,
    /// The missing revisions.
    pub revisions: Vec<Revision>,
    /// DocumentLeaves that the target has, which the missing revisions may descend from.
    pub possible_ancestors: Vec<Revision>,
}

/// One revision in transfer, with its ancestry and files. Exchanged between two [`Peer`]s.
pub struct Transfer {
    /// Id of the document.
    pub id: DocumentId,
    /// The revision, then its known ancestors, newest first.
    pub revisions: Vec<Revision>,
    /// Whether the revision is a deletion.
    pub deleted: bool,
    /// The body of the revision.
    pub body: Value,
    /// All files of the revision.
    pub files: Vec<TransferFile>,
    /// Approximate size in bytes, without the content of files.
    pub byte_count: usize,
}

/// A file in transfer. Exchanged between two [`Peer`]s.
pub struct TransferFile {
    /// The file's name.
    pub name: String,
    /// The file's MIME type.
    pub content_type: String,
    /// The generation of the revision that added the file.
    pub generation: u32,
    /// Length of the content in bytes.
    pub length: u64,
    /// MD5 of the content, if known.
    pub md5: Option<[u8; 16]>,
    /// Opens the content, which can be read once.
    pub open: ContentOpener,
}

/// Opens the content of a file. Returns `None` if the revision was replaced since it was read and the content no longer
/// exists; then the transfer is skipped, and the feed lists the revision's successor.
pub type ContentOpener = Box<dyn FnOnce() -> Result<Option<Box<dyn Read + Send>>> + Send>;

/// The outcome of writing transfers. Exchanged between two [`Peer`]s.
#[derive(Debug, Default)]
pub struct WriteOutcome {
    /// Number of transfers written. The others were refused or skipped.
    pub count: usize,
    /// The errors of refused transfers, one each.
    pub refusals: Vec<crate::Error>,
}

impl WriteOutcome {
    /// Counts the outcome of one transfer.
    pub fn add<T>(&mut self, outcome: Result<T>) {
        match outcome {
            Ok(_) => self.count += 1,
            Err(refusal) => self.refusals.push(refusal),
        }
    }
}

/// One side of a replication: a local database, or one that is accessed by some protocol. See
/// [`Database::replicate_to`](crate::Database::replicate_to) for an example.
pub trait Peer: Send + Sync {
    /// A name for the id of checkpoints: always the same for the same database, and different for different ones.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn identity(&self) -> Result<String>;

    /// An id that distinguishes the database from all others, including those that previously or later have the same
    /// name.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn database_id(&self) -> Result<String> {
        self.identity()
    }

    /// Reads the `_local` document of a checkpoint, if there is one.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>>;

    /// Flushes everything that was written before, and then writes the `_local` document of a checkpoint.
    ///
    /// # Errors
    /// Any error that prevents the write.
    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()>;

    /// Returns the next `count` changed documents after `since` (`None`: from the beginning) with all their leaves.
    ///
    /// # Errors
    /// Any error that prevents access, or if the peer does not support the scope.
    fn changes(&self, since: Option<&Value>, count: usize, scope: &ReplicationScope) -> Result<ChangesPage>;

    /// Returns the code of the filter function of a [`ReplicationScope::Filter`]. Default: empty, for a peer that runs
    /// none.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn filter_code(&self, name: &str, parameters: &[(String, String)]) -> Result<String> {
        let _ = (name, parameters);
        Ok(String::new())
    }

    /// Returns which of these revisions the peer lacks.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn missing_revisions(&self, leaves: &[DocumentLeaves]) -> Result<Vec<MissingRevisions>>;

    /// Passes each of these revisions to `take`. Revisions that no longer exist are left out: the feed lists their
    /// successors.
    ///
    /// # Errors
    /// Any error that prevents reading, and the errors of `take`.
    fn read(&self, missing: &[MissingRevisions], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()>;

    /// Writes revisions unchanged, except those whose file content no longer exists. `outcome` is updated even if an
    /// error follows.
    ///
    /// # Errors
    /// Any error that prevents further writes.
    fn write(&self, transfers: Vec<Transfer>, outcome: &mut WriteOutcome) -> Result<()>;

    /// Waits until there may be changes after `since`, at most for `timeout`.
    ///
    /// # Errors
    /// Any error that prevents access.
    fn wait(&self, since: &Value, timeout: Duration) -> Result<()>;
}
