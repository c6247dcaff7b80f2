//! One side of a replication.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

use crate::Result;
use crate::revision::{DocumentId, Revision};
use crate::value::Value;

/// Which documents are replicated.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// Those with these ids.
    Ids(BTreeSet<String>),
    /// Those that a selector matches: Mango JSON.
    Selector(Value),
    /// Those that a filter of a design document at the source keeps: its name, and the parameters it is given.
    Filter(String, Vec<(String, String)>),
}

impl Selection {
    /// What tells it from others.
    pub(super) fn text(&self) -> String {
        match self {
            Selection::All => String::new(),
            Selection::Ids(ids) => format!("ids {ids:?}"),
            Selection::Selector(selector) => format!("selector {}", selector.to_json()),
            Selection::Filter(name, parameters) => format!("filter {name} {parameters:?}"),
        }
    }
}

/// The leaves of a changed document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaves {
    /// The document.
    pub id: DocumentId,
    /// Its leaves.
    pub revisions: Vec<Revision>,
}

/// A page of a source's feed.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Documents that changed.
    pub leaves: Vec<Leaves>,
    /// Where the next page begins.
    pub position: Value,
    /// Whether there is nothing after it, for now.
    pub is_last: bool,
}

/// Revisions that a target lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The document.
    pub id: DocumentId,
    /// The revisions it lacks.
    pub revisions: Vec<Revision>,
    /// Leaves it has, which these may descend from.
    pub known: Vec<Revision>,
}

/// One revision on its way.
pub struct Transfer {
    /// The document.
    pub id: DocumentId,
    /// The revision, then its ancestors as far as they are known, newest first.
    pub revisions: Vec<Revision>,
    /// Whether it is a deletion.
    pub deleted: bool,
    /// Its body.
    pub body: Value,
    /// All its files.
    pub files: Vec<TransferFile>,
    /// About how many bytes it takes, without the content of its files.
    pub byte_count: usize,
}

/// A file on its way.
pub struct TransferFile {
    /// Its name.
    pub name: String,
    /// What it is.
    pub content_type: String,
    /// The generation of the revision that brought it.
    pub generation: u32,
    /// How many bytes its content has.
    pub length: u64,
    /// The MD5 of its content, if that is known.
    pub md5: Option<[u8; 16]>,
    /// Opens the content, to be read once.
    pub open: Content,
}

/// Opens the content of a file; none if its revision was replaced since it was read, and the content is gone: then the transfer is passed
/// over, what took its place is told by the feed.
pub type Content = Box<dyn FnOnce() -> Result<Option<Box<dyn Read + Send>>> + Send>;

/// What became of transfers.
#[derive(Debug, Default)]
pub struct Written {
    /// How many were written. The others were refused, or passed over.
    pub count: usize,
    /// Why some were refused: one for each of them.
    pub refusals: Vec<crate::Error>,
}

impl Written {
    /// Counts what became of one.
    pub fn add<T>(&mut self, outcome: Result<T>) {
        match outcome {
            Ok(_) => self.count += 1,
            Err(refusal) => self.refusals.push(refusal),
        }
    }
}

/// One side of a replication: a database here, or one that is reached by some protocol.
pub trait Peer: Send + Sync {
    /// What it is called in the name of a checkpoint: the same whenever the same database is meant, and another's never.
    ///
    /// # Errors
    /// If it can't be asked.
    fn identity(&self) -> Result<String>;

    /// What tells the database itself from every other, also from one that had or comes to have its name.
    ///
    /// # Errors
    /// If it can't be asked.
    fn database_id(&self) -> Result<String> {
        self.identity()
    }

    /// A `_local` document of a checkpoint, if there is one.
    ///
    /// # Errors
    /// If it can't be asked.
    fn get_checkpoint(&self, id: &str) -> Result<Option<Value>>;

    /// Writes a `_local` document of a checkpoint, after what was written before is flushed.
    ///
    /// # Errors
    /// If it can't be written.
    fn put_checkpoint(&self, id: &str, body: &Value) -> Result<()>;

    /// The next `count` changed documents after `since`, or from the beginning, with all their leaves.
    ///
    /// # Errors
    /// If it can't be asked, or does not know the selection.
    fn changes(&self, since: Option<&Value>, count: usize, selection: &Selection) -> Result<Page>;

    /// Which of these revisions it lacks.
    ///
    /// # Errors
    /// If it can't be asked.
    fn lacking(&self, leaves: &[Leaves]) -> Result<Vec<Wanted>>;

    /// Shows each of these revisions to `take`. Revisions that are there no longer are left out: what took their place is told by the feed.
    ///
    /// # Errors
    /// If it can't be read; whatever `take` returns.
    fn read(&self, wanted: &[Wanted], take: &mut dyn FnMut(Transfer) -> Result<()>) -> Result<()>;

    /// Writes revisions as they are, but for those whose content is gone; `written` is told what was done, also before an error.
    ///
    /// # Errors
    /// If nothing more can be written.
    fn write(&self, transfers: Vec<Transfer>, written: &mut Written) -> Result<()>;

    /// Waits until there may be something after `since`, at most for `patience`.
    ///
    /// # Errors
    /// If it can't be asked.
    fn wait(&self, since: &Value, patience: Duration) -> Result<()>;
}
