//! What one transaction, or several at once, changed in an answer.

use crate::Result;
use crate::document::Document;
use crate::index::{DocumentNumber, DocumentSet};
use crate::query::Limits;
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};

/// A step from one answer to the next: apply all of it, or none.
///
/// The first delta of a [`Watch`](super::Watch) has the whole answer as `Added`. One that catches up, because its reader was
/// slower than the writers, stands for several transactions at once. Both read their documents while you go through
/// [`events`](Delta::events), from a snapshot that they hold: don't keep them for long.
#[derive(Debug)]
pub struct Delta {
    sequence: Sequence,
    is_first: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Told(Vec<Event>),
    Stored(Box<Stored>),
}

/// A difference whose documents are in a snapshot.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) snapshot: Snapshot,
    pub(super) added: DocumentSet,
    pub(super) changed: DocumentSet,
    pub(super) removed: DocumentSet,
    pub(super) limits: Limits,
}

/// Documents read together.
const BATCH_COUNT: usize = 64;

/// What happened to one document of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It is part of the answer now and was not before.
    Added(Document),
    /// It is still part of the answer, with another winning revision.
    Changed(Document),
    /// It was part of the answer and is no more.
    Removed {
        /// The document.
        id: DocumentId,
        /// Whether it was deleted; else it no longer matches.
        deleted: bool,
    },
}

impl Event {
    /// The document's id.
    pub fn id(&self) -> &DocumentId {
        match self {
            Event::Added(document) | Event::Changed(document) => document.id(),
            Event::Removed { id, .. } => id,
        }
    }
}

impl Delta {
    pub(super) fn told(sequence: Sequence, events: Vec<Event>) -> Self {
        Delta { sequence, is_first: false, content: Content::Told(events) }
    }

    pub(super) fn stored(is_first: bool, stored: Stored) -> Self {
        let sequence = stored.snapshot.sequence();
        Delta { sequence, is_first, content: Content::Stored(Box::new(stored)) }
    }

    /// The answer after this delta is the one of this sequence.
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Whether this is the whole answer, with which a watch begins.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// How many events it has.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Told(events) => events.len() as u64,
            Content::Stored(stored) => stored.added.len() + stored.changed.len() + stored.removed.len(),
        }
    }

    /// Whether it has none: only a first delta may.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The events, each document once, in no order that means anything. Documents that are not in memory are read as they are come to.
    ///
    /// # Errors
    /// `Stopped` if the query was cancelled meanwhile; `Corrupt` if stored bytes are damaged.
    pub fn events(&self) -> impl Iterator<Item = Result<Event>> + '_ {
        let (told, stored) = match &self.content {
            Content::Told(events) => (Some(events), None),
            Content::Stored(stored) => (None, Some(stored)),
        };
        let told = told.into_iter().flatten().cloned().map(Ok);
        told.chain(stored.into_iter().flat_map(|stored| stored.events()))
    }
}

impl Stored {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn events(&self) -> impl Iterator<Item = Result<Event>> + '_ {
        let removed = self.removed.iter().map(|number| self.removed(number));
        let added = self.documents(&self.added).map(|document| document.map(Event::Added));
        let changed = self.documents(&self.changed).map(|document| document.map(Event::Changed));
        let events = removed.chain(added).chain(changed);
        events.map(|event| self.limits.proceed().and(event))
    }

    /// These documents, read some at a time. An error stands for all that were to be read together.
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

    fn removed(&self, number: DocumentNumber) -> Result<Event> {
        let id = self.snapshot.id(number)?;
        let deleted = self.snapshot.live_number(id.as_str())?.is_none();
        Ok(Event::Removed { id, deleted })
    }
}
