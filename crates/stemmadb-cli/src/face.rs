//! The one module that knows how the library is called: the verbs speak in ids, revisions as text and JSON objects.

use std::path::Path;
use std::time::Duration;

use stemmadb::{Object, Value};

use crate::arguments::DurabilityChoice;
use crate::failure::{Exit, Failure, Result};
use crate::progress::Progress;

/// An open database.
pub(crate) struct Database {}

/// A document to write.
pub(crate) struct Write {
    pub(crate) id: String,
    pub(crate) body: Object,
    pub(crate) over: Over,
}

/// What a write may replace.
pub(crate) enum Over {
    /// The document is new.
    Nothing,
    /// This revision.
    Revision(String),
    /// Whatever is there.
    Anything,
}

/// What to show of a document.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// This revision instead of the winner.
    pub(crate) revision: Option<&'a str>,
    /// With the revisions it descends from.
    pub(crate) ancestry: bool,
    /// With the other current revisions.
    pub(crate) conflicts: bool,
}

/// A query.
pub(crate) struct Question {
    pub(crate) selector: Value,
    pub(crate) sort: Vec<SortKey>,
    pub(crate) limit: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) fields: Vec<String>,
    pub(crate) ids: bool,
    pub(crate) page: Option<String>,
}

/// One key of the order of results.
pub(crate) struct SortKey {
    pub(crate) path: String,
    pub(crate) descending: bool,
}

/// Which changes are asked for.
pub(crate) struct Feed {
    pub(crate) since: u64,
    pub(crate) documents: bool,
    pub(crate) ids: Vec<String>,
    pub(crate) selector: Option<Value>,
}

/// What a feed answers.
pub(crate) enum Following {
    Change(Object),
    /// There is nothing more for now.
    Nothing,
}

/// Documents that match, one after the other.
pub(crate) struct Rows {}

impl Rows {
    /// The next document.
    pub(crate) fn next(&mut self) -> Result<Option<Object>> {
        Err(unbuilt())
    }

    /// The token of the next page, if there is one.
    pub(crate) fn more(&mut self) -> Result<Option<String>> {
        Err(unbuilt())
    }
}

/// Changes in order.
pub(crate) struct Changes {}

impl Changes {
    /// The next change; waits for one at most as long as `patience`.
    pub(crate) fn next(&mut self, _patience: Duration) -> Result<Following> {
        Err(unbuilt())
    }
}

fn unbuilt() -> Failure {
    Failure::new(Exit::Internal, "this verb is not built yet")
}

impl Database {
    /// Opens the database at `path`, which must be there.
    pub(crate) fn existing(_path: &Path) -> Result<Self> {
        Err(unbuilt())
    }

    /// Opens the database at `path`, and makes it if there is none.
    pub(crate) fn or_new(_path: &Path, _durability: DurabilityChoice) -> Result<Self> {
        Err(unbuilt())
    }

    /// Writes from now on are acknowledged when they are this durable.
    pub(crate) fn set_durability(&self, _durability: DurabilityChoice) {}

    /// Everything written is safe, and the database closed.
    pub(crate) fn close(self) -> Result<()> {
        Err(unbuilt())
    }

    /// Writes one document; returns its revision.
    pub(crate) fn put(&self, _write: &Write) -> Result<String> {
        Err(unbuilt())
    }

    /// Writes documents independently of each other, acknowledged together.
    pub(crate) fn bulk(&self, _writes: Vec<Write>) -> Result<Vec<Result<String>>> {
        Err(unbuilt())
    }

    /// Deletes `revision` of a document, or whatever is current; returns the revision of the deletion.
    pub(crate) fn delete(&self, _id: &str, _revision: Option<&str>) -> Result<String> {
        Err(unbuilt())
    }

    /// One document with `_id` and `_rev` first.
    pub(crate) fn get(&self, _id: &str, _wanted: Wanted<'_>) -> Result<Object> {
        Err(unbuilt())
    }

    /// How many documents there are.
    pub(crate) fn documents_count(&self) -> Result<u64> {
        Err(unbuilt())
    }

    /// Every document with `_id` and `_rev` first.
    pub(crate) fn everything(&self) -> Result<impl Iterator<Item = Result<Object>>> {
        Ok(std::iter::empty())
    }

    /// Documents that match.
    pub(crate) fn find(&self, _question: &Question) -> Result<Rows> {
        Err(unbuilt())
    }

    /// How documents that match would be found.
    pub(crate) fn explain(&self, _question: &Question, _analyze: bool) -> Result<String> {
        Err(unbuilt())
    }

    /// How many documents match.
    pub(crate) fn count(&self, _selector: &Value) -> Result<u64> {
        Err(unbuilt())
    }

    /// What changed.
    pub(crate) fn changes(&self, _feed: &Feed) -> Result<Changes> {
        Err(unbuilt())
    }

    /// Sizes, counts and settings.
    pub(crate) fn info(&self) -> Result<Object> {
        Err(unbuilt())
    }

    /// Verifies everything; returns what was looked at and what is damaged.
    pub(crate) fn check(&self, _progress: &Progress) -> Result<(Object, Vec<String>)> {
        Err(unbuilt())
    }

    /// Builds the index anew from the log.
    pub(crate) fn rebuild(&self, _progress: &Progress) -> Result<Object> {
        Err(unbuilt())
    }

    /// Gives back space.
    pub(crate) fn compact(&self, _progress: &Progress) -> Result<Object> {
        Err(unbuilt())
    }

    /// Ids that begin with `prefix`, at most `limit`.
    pub(crate) fn ids(&self, _prefix: &str, _limit: usize) -> Result<Vec<String>> {
        Err(unbuilt())
    }

    /// Dotted paths of the fields there are.
    pub(crate) fn fields(&self) -> Result<Vec<String>> {
        Err(unbuilt())
    }
}
