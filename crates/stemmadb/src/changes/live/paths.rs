//! Reading what changes at some paths of the documents.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::hub::{Hub, Watcher, WatcherNumber};
use super::inbox::{Found, Inbox, Letter};
use super::pattern::{PathEvent, Patterns};
use crate::document::Document;
use crate::engine::Store;
use crate::publish::{Published, Written};
use crate::query::Clues;
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::{Error, Result};

/// Each change of a value whose path matches one of some patterns, as it is published.
///
/// Begin with [`Database::subscribe_paths`](crate::Database::subscribe_paths), which says what a pattern matches. Costs at most a mebibyte (or one
/// transaction) of what was not read yet. Dropping it ends it.
pub struct PathSubscription {
    store: Weak<Store>,
    hub: Arc<Hub>,
    number: WatcherNumber,
    subscriber: Arc<Subscriber>,
    position: Sequence,
    /// Read and not handed out yet, the next one last.
    ready: Vec<PathChange>,
    /// What is to be looked up: what this snapshot has after the sequence.
    missed: Option<(Sequence, Snapshot)>,
}

/// A document whose values at some paths changed.
#[derive(Debug, Clone, PartialEq)]
pub struct PathChange {
    /// The last sequence of the transaction that changed it.
    pub sequence: Sequence,
    /// The document's id.
    pub id: DocumentId,
    /// The document as it is now; none if it was deleted.
    pub document: Option<Document>,
    /// What happened at which path, in order; the first thousand of each pattern. Empty if the reader was so slow that it is not known any more:
    /// the document was written, and a value may have changed.
    pub paths: Vec<PathEvent>,
}

struct Subscriber {
    patterns: Patterns,
    inbox: Inbox<Edited>,
}

/// A document with at least one change to tell.
struct Edited {
    id: DocumentId,
    old: Option<Document>,
    new: Option<Document>,
}

/// Paths told of one document, for each pattern.
const PATHS_MAX: usize = 1_000;
/// Events looked up at once.
const BATCH_COUNT: usize = 256;
/// What a letter's item costs beside the documents.
const EDITED_BYTES: usize = 128;

impl PathSubscription {
    pub(crate) fn new<P: AsRef<str>>(
        store: &Arc<Store>,
        hub: &Arc<Hub>,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Self> {
        let subscriber = Arc::new(Subscriber { patterns: Patterns::parse(patterns)?, inbox: Inbox::new() });
        let number = hub.add(&store.parts.publisher, subscriber.clone());
        let position = store.parts.publisher.published();
        let (store, hub) = (Arc::downgrade(store), hub.clone());
        Ok(PathSubscription { store, hub, number, subscriber, position, ready: Vec::new(), missed: None })
    }

    /// The next change, waiting for it as long as it takes; none once the database is closed and everything was read.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Closed` if the database was closed before this subscription had caught up.
    pub fn next_change(&mut self) -> Result<Option<PathChange>> {
        self.next_until(None)
    }

    /// The next change, waiting at most this long; none if there was none, or the database is closed.
    ///
    /// # Errors
    /// As [`PathSubscription::next_change`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<PathChange>> {
        self.next_until(Some(Instant::now() + patience))
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<PathChange>> {
        loop {
            if let Some(change) = self.ready.pop() {
                return Ok(Some(change));
            }
            if let Some((after, snapshot)) = self.missed.clone() {
                self.catch_up(after, &snapshot)?;
                continue;
            }
            match self.subscriber.inbox.take(deadline) {
                Found::Letter(letter) => self.open(letter)?,
                Found::Missed(after) => {
                    let store = self.store.upgrade().ok_or_else(|| {
                        Error::closed("the database was closed before this subscription had caught up")
                    })?;
                    let snapshot = store.snapshot().inspect_err(|_| self.subscriber.inbox.miss(after))?;
                    self.missed = Some((after.max(self.position), snapshot));
                }
                Found::Nothing | Found::Closed => return Ok(None),
            }
        }
    }

    fn open(&mut self, letter: Letter<Edited>) -> Result<()> {
        if letter.sequence <= self.position {
            return Ok(());
        }
        self.position = letter.sequence;
        for Edited { id, old, new } in letter.items.into_iter().rev() {
            let paths = self.subscriber.touched(&id, old.as_ref(), new.as_ref(), PATHS_MAX)?;
            self.ready.push(PathChange { sequence: letter.sequence, id, document: new, paths });
        }
        Ok(())
    }

    /// Makes ready some of the documents that were written after `after`.
    fn catch_up(&mut self, after: Sequence, snapshot: &Snapshot) -> Result<()> {
        if after >= snapshot.sequence() {
            self.position = self.position.max(snapshot.sequence());
            self.missed = None;
            return Ok(());
        }
        let found = snapshot.events_after(after, BATCH_COUNT)?;
        let mut changes = Vec::new();
        for (sequence, number) in found.events {
            let Some(state) = snapshot.state(number)? else { continue };
            if self.subscriber.patterns.may_mean(state.id.as_str()) {
                let document = if state.is_live() { Some(snapshot.winner(&state)?) } else { None };
                changes.push(PathChange { sequence, id: state.id.clone(), document, paths: Vec::new() });
            }
        }
        changes.reverse();
        self.ready = changes;
        self.missed = Some((found.reached, snapshot.clone()));
        Ok(())
    }
}

impl Drop for PathSubscription {
    fn drop(&mut self) {
        self.hub.remove(self.number);
    }
}

/// Blocks for each change; ends when the database is closed.
impl Iterator for PathSubscription {
    type Item = Result<PathChange>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_change().transpose()
    }
}

impl Subscriber {
    fn touched(
        &self,
        id: &DocumentId,
        old: Option<&Document>,
        new: Option<&Document>,
        limit: usize,
    ) -> Result<Vec<PathEvent>> {
        let old = old.map(Document::packed).transpose()?;
        let new = new.map(Document::packed).transpose()?;
        self.patterns.touched(id.as_str(), old, new, limit)
    }

    /// The document as a letter says it; none if no path that is meant changed.
    fn look(&self, written: &Written) -> Result<Option<Edited>> {
        let Written { id, old, new, .. } = written;
        let is_touched = !self.touched(id, old.as_ref(), new.as_ref(), 1)?.is_empty();
        Ok(is_touched.then(|| Edited { id: id.clone(), old: old.clone(), new: new.clone() }))
    }
}

impl Watcher for Subscriber {
    fn clues(&self) -> &[Clues] {
        self.patterns.clues()
    }

    fn tell(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>) {
        let edited: Result<Vec<Edited>> = documents.filter_map(|written| self.look(written).transpose()).collect();
        let Published { after, sequence, .. } = *transaction;
        match edited {
            Ok(items) if items.is_empty() => {}
            Ok(items) => {
                let bytes = |document: &Option<Document>| document.as_ref().map_or(0, Document::byte_count);
                let byte_count = items.iter().map(|it| EDITED_BYTES + bytes(&it.old) + bytes(&it.new)).sum();
                self.inbox.put(Letter { after, sequence, items, byte_count });
            }
            Err(_) => self.inbox.miss(after),
        }
    }

    fn miss(&self, after: Sequence) {
        self.inbox.miss(after);
    }

    fn close(&self) {
        self.inbox.close();
    }
}
