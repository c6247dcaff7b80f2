//! The difference that one or more transactions made to a live query's result.

use crate::Result;
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentSet};
use crate::query::QueryLimits;
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};

/// A step from one result of a live query to the next; apply all of its events, or none.
///
/// The first delta of a [`Watch`](super::Watch) contains the whole result as `Added` events. A delta that catches up,
/// because the reader was slower than the writers, covers several transactions. Both kinds hold a snapshot and read
/// their documents while you iterate over [`events`](Delta::events): don't keep them for long. See
/// [`Watch`](super::Watch) for an example.
#[derive(Debug)]
pub struct Delta {
    sequence: Sequence,
    is_first: bool,
    content: DeltaContent,
}

#[derive(Debug)]
enum DeltaContent {
    Events(Vec<DeltaEvent>),
    Stored(Box<StoredDelta>),
}

/// A difference whose documents are read from a snapshot.
#[derive(Debug)]
pub(super) struct StoredDelta {
    pub(super) snapshot: Snapshot,
    pub(super) added: DocumentSet,
    pub(super) changed: DocumentSet,
    pub(super) removed: DocumentSet,
    pub(super) limits: QueryLimits,
}

/// Documents read together.
const BATCH_COUNT: usize = 64;

/// What happened to one document of a live query's result. See [`Watch`](crate::Watch) for an example.
#[derive(Debug, Clone, PartialEq)]
pub enum DeltaEvent {
    /// The document is now part of the result and was not before.
    Added(Document),
    /// The document is still part of the result, with another winning revision.
    Changed(Document),
    /// The document is no longer part of the result.
    Removed {
        /// Id of the document.
        id: DocumentId,
        /// True if it was deleted or expired; false if it no longer matches.
        deleted: bool,
    },
}

impl DeltaEvent {
    /// The id of the document that the event is about.
    pub fn id(&self) -> &DocumentId {
        match self {
            DeltaEvent::Added(document) | DeltaEvent::Changed(document) => document.id(),
            DeltaEvent::Removed { id, .. } => id,
        }
    }
}

impl Delta {
    /// Makes a delta of its events, for example of those that came from a database in another process.
    pub fn of_events(sequence: Sequence, is_first: bool, events: Vec<DeltaEvent>) -> Self {
        Delta { sequence, is_first, content: DeltaContent::Events(events) }
    }

    pub(super) fn from_stored(is_first: bool, stored: StoredDelta) -> Self {
        let sequence = stored.snapshot.sequence();
        Delta { sequence, is_first, content: DeltaContent::Stored(Box::new(stored)) }
    }

    /// The sequence of the result after this delta is applied.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Whether this delta contains the whole initial result.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// The number of events.
    pub fn len(&self) -> u64 {
        match &self.content {
            DeltaContent::Events(events) => events.len() as u64,
            DeltaContent::Stored(stored) => stored.added.len() + stored.changed.len() + stored.removed.len(),
        }
    }

    /// Whether there are no events; only an initial delta can be empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the events, each document once, in no particular order. Documents that are not in memory are read
    /// during the iteration.
    ///
    /// # Errors
    /// `Stopped` if the query was cancelled during the iteration; `Corrupt` if stored bytes are damaged.
    pub fn events(&self) -> impl Iterator<Item = Result<DeltaEvent>> + '_ {
        let (events, stored) = match &self.content {
            DeltaContent::Events(events) => (Some(events), None),
            DeltaContent::Stored(stored) => (None, Some(stored)),
        };
        let events = events.into_iter().flatten().cloned().map(Ok);
        events.chain(stored.into_iter().flat_map(|stored| stored.events()))
    }
}

impl StoredDelta {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn events(&self) -> impl Iterator<Item = Result<DeltaEvent>> + '_ {
        let removed = self.removed.iter().map(|number| self.removed(number));
        let added = self.documents(&self.added).map(|document| document.map(DeltaEvent::Added));
        let changed = self.documents(&self.changed).map(|document| document.map(DeltaEvent::Changed));
        let events = removed.chain(added).chain(changed);
        events.map(|event| self.limits.check_cancelled().and(event))
    }

    /// Reads these documents in batches. A batch that fails to load yields one error in place of its remaining
    /// documents.
    fn documents<'a>(&'a self, numbers: &'a DocumentSet) -> impl Iterator<Item = Result<Document>> + 'a {
        let mut numbers = numbers.iter();
        let batches = std::iter::from_fn(move || {
            let batch: Vec<DocumentNumber> = numbers.by_ref().take(BATCH_COUNT).collect();
            (!batch.is_empty()).then_some(batch)
        });
        batches.flat_map(|batch| {
            let mut documents = Vec::with_capacity(batch.len());
            let loaded = self.snapshot.load(&batch, &mut |_, document| {
                documents.push(Ok(document));
                Ok(())
            });
            documents.extend(loaded.err().map(Err));
            documents
        })
    }

    fn removed(&self, number: DocumentNumber) -> Result<DeltaEvent> {
        let id = self.snapshot.id(number)?;
        let deleted = self.snapshot.live_number(id.as_str())?.is_none();
        Ok(DeltaEvent::Removed { id, deleted })
    }
}
