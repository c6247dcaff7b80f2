//! Reading what changes in the answer to a query.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::delta::{Delta, Event, Stored};
use super::hub::{Hub, Watcher, WatcherNumber};
use super::inbox::{Found, Inbox, Letter};
use crate::document::Document;
use crate::engine::Store;
use crate::index::{DocumentNumber, DocumentSet};
use crate::publish::{Published, Written};
use crate::query::{Clues, LiveQuery, Query};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::{Error, Result};

/// A query that stays: its answer, and then what each published transaction changes in it.
///
/// Begin with [`Database::watch`](crate::Database::watch). Costs memory for the documents in the answer, less than a bit to two bytes each, and at most
/// a mebibyte (or one transaction) of what was not read yet. Dropping it ends it.
pub struct Watch {
    store: Weak<Store>,
    hub: Arc<Hub>,
    number: WatcherNumber,
    watched: Arc<Watched>,
    query: Query,
    /// The answer as it was told so far.
    members: DocumentSet,
    /// `members` is the answer at this sequence.
    position: Sequence,
    /// Whether the first delta was told.
    is_begun: bool,
}

/// A watch between two openings of a database: what it has told so far. Get one from [`Watch::suspend`].
#[derive(Debug, Clone)]
pub struct Suspended {
    query: Query,
    members: DocumentSet,
    position: Sequence,
    database_id: [u8; 16],
}

/// The watcher's side of a watch.
struct Watched {
    query: LiveQuery,
    inbox: Inbox<Seen>,
}

/// A document that matches, or did.
struct Seen {
    number: DocumentNumber,
    id: DocumentId,
    is_deleted: bool,
    /// The document, if it matches now.
    document: Option<Document>,
}

/// What a letter's item costs beside the document.
const SEEN_BYTES: usize = 128;

/// How long a watch that can be cancelled waits before it looks whether it was.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Events looked up at once when catching up.
const BATCH_COUNT: usize = 256;

impl Watch {
    pub(crate) fn new(store: &Arc<Store>, hub: &Arc<Hub>, query: Query) -> Result<Self> {
        Watch::register(store, hub, query, DocumentSet::new(), Sequence::ZERO)
    }

    pub(crate) fn resume(store: &Arc<Store>, hub: &Arc<Hub>, suspended: Suspended) -> Result<Self> {
        let Suspended { query, members, position, database_id } = suspended;
        if database_id != store.parts.log.database_id() || position > store.parts.publisher.published() {
            return Err(Error::invalid("the watch was suspended in another database, or in a later state of this one")
                .with_hint("begin a new watch: its first delta is the whole answer"));
        }
        let mut watch = Watch::register(store, hub, query, members, position)?;
        watch.is_begun = true;
        watch.watched.inbox.miss(position);
        Ok(watch)
    }

    fn register(
        store: &Arc<Store>,
        hub: &Arc<Hub>,
        query: Query,
        members: DocumentSet,
        position: Sequence,
    ) -> Result<Self> {
        let watched = Arc::new(Watched { query: LiveQuery::new(&query)?, inbox: Inbox::new() });
        let number = hub.add(&store.parts.publisher, watched.clone());
        Ok(Watch {
            store: Arc::downgrade(store),
            hub: hub.clone(),
            number,
            watched,
            query,
            members,
            position,
            is_begun: false,
        })
    }

    /// The sequence up to which everything was told: the answer told so far is the one of this sequence, and the same until the next
    /// delta.
    pub fn reached(&self) -> Sequence {
        self.position
    }

    /// The next delta, waiting for it as long as it takes; none once the database is closed and everything was read. The first
    /// one, the whole answer, is made within the limits of the query.
    ///
    /// # Errors
    /// `Stopped` at a limit of the first answer, and whenever the query was cancelled; `Corrupt` if stored bytes are damaged; `Closed` if the database was closed before this watch had caught up. Nothing
    /// is skipped: the next call tries again.
    pub fn next_delta(&mut self) -> Result<Option<Delta>> {
        self.next_until(None)
    }

    /// The next delta, waiting at most this long; none if there was none, or the database is closed.
    ///
    /// # Errors
    /// As [`Watch::next_delta`].
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Delta>> {
        self.next_until(Some(Instant::now() + patience))
    }

    /// Calls `notice` now, and whenever there may be a delta to read or the database is closed: for those who can't wait in
    /// [`Watch::next_delta`]; they read by [`Watch::next_within`] without patience. It is called on the thread of whoever writes, so it
    /// must be quick, and must not call the database. Only the first one is kept.
    pub fn notify(&self, notice: impl Fn() + Send + Sync + 'static) {
        self.watched.inbox.notify(Box::new(notice));
    }

    /// Ends the watch and keeps what it has told, to go on after the database was closed and opened again.
    ///
    /// # Errors
    /// `Closed` if the database is closed already.
    pub fn suspend(self) -> Result<Suspended> {
        if !self.is_begun {
            return Err(Error::invalid("a watch can't be suspended before its first delta was read"));
        }
        let database_id = self.store()?.parts.log.database_id();
        let (query, members, position) = (self.query.clone(), self.members.clone(), self.position);
        Ok(Suspended { query, members, position, database_id })
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<Delta>> {
        if !self.is_begun {
            return self.begin().map(Some);
        }
        loop {
            let look_up = self.watched.query.limits().proceed()?.then(|| Instant::now() + LOOK_UP);
            let until = [deadline, look_up].into_iter().flatten().min();
            let delta = match self.watched.inbox.take(until) {
                Found::Letter(letter) => self.open(letter),
                Found::Missed(after) => self.catch_up(after)?,
                Found::Nothing if deadline.is_none_or(|deadline| Instant::now() < deadline) => None,
                Found::Nothing | Found::Closed => return Ok(None),
            };
            if delta.is_some() {
                return Ok(delta);
            }
        }
    }

    /// The whole answer. What was told before belongs to it, and will be passed over as old.
    fn begin(&mut self) -> Result<Delta> {
        let snapshot = self.store()?.snapshot()?;
        self.members = self.watched.query.members(&snapshot)?;
        self.position = snapshot.sequence();
        self.is_begun = true;
        let (changed, removed) = (DocumentSet::new(), DocumentSet::new());
        let (added, limits) = (self.members.clone(), self.watched.query.limits().clone());
        Ok(Delta::stored(true, Stored { snapshot, added, changed, removed, limits }))
    }

    /// What a letter changes in the answer; none if it is old, or changes nothing.
    fn open(&mut self, letter: Letter<Seen>) -> Option<Delta> {
        if letter.sequence <= self.position {
            return None;
        }
        self.position = letter.sequence;
        let mut events = Vec::with_capacity(letter.items.len());
        for Seen { number, id, is_deleted, document } in letter.items {
            match document {
                Some(document) if self.members.insert(number) => events.push(Event::Added(document)),
                Some(document) => events.push(Event::Changed(document)),
                None if self.members.remove(number) => events.push(Event::Removed { id, deleted: is_deleted }),
                None => {}
            }
        }
        (!events.is_empty()).then(|| Delta::told(letter.sequence, events))
    }

    /// Compares the answer told so far with the documents as they are now; those that were not written after `after` are as they
    /// were. If that fails, it is still to be done.
    fn catch_up(&mut self, after: Sequence) -> Result<Option<Delta>> {
        let store = self.store()?;
        self.compare(&store, after).inspect_err(|_| self.watched.inbox.miss(after))
    }

    fn compare(&mut self, store: &Store, after: Sequence) -> Result<Option<Delta>> {
        let snapshot = store.snapshot()?;
        let (mut added, mut changed, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        let mut reached = after.max(self.position);
        while reached < snapshot.sequence() {
            self.watched.query.limits().proceed()?;
            let found = snapshot.events_after(reached, BATCH_COUNT)?;
            reached = found.reached;
            for (_, number) in found.events {
                match (self.members.contains(number), self.matches(&snapshot, number)?) {
                    (false, true) => added.push(number),
                    (true, true) => changed.push(number),
                    (true, false) => removed.push(number),
                    (false, false) => {}
                }
            }
        }
        let [added, changed, removed] = [added, changed, removed].map(|mut numbers| {
            numbers.sort_unstable();
            DocumentSet::from_sorted(numbers)
        });
        self.position = self.position.max(snapshot.sequence());
        self.members.and_not_with(&removed);
        self.members.or_with(&added);
        let stored = Stored { snapshot, added, changed, removed, limits: self.watched.query.limits().clone() };
        Ok((!stored.is_empty()).then(|| Delta::stored(false, stored)))
    }

    fn matches(&self, snapshot: &Snapshot, number: DocumentNumber) -> Result<bool> {
        match snapshot.state(number)?.filter(|state| state.is_live()) {
            Some(state) => {
                let document = snapshot.winner(&state)?;
                Ok(!snapshot.has_ended(&document)? && self.watched.query.matches(&document)?)
            }
            None => Ok(false),
        }
    }

    fn store(&self) -> Result<Arc<Store>> {
        self.store.upgrade().ok_or_else(|| Error::closed("the database was closed before this watch had caught up"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub.remove(self.number);
    }
}

/// Blocks for each delta; ends when the database is closed.
impl Iterator for Watch {
    type Item = Result<Delta>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_delta().transpose()
    }
}

impl Watched {
    /// The document as a letter says it; none if it neither matches nor did.
    fn look(&self, written: &Written) -> Result<Option<Seen>> {
        let matches = |document: &Option<Document>| match document {
            Some(document) => self.query.matches(document),
            None => Ok(false),
        };
        let is_now = matches(&written.new)?;
        if !is_now && !matches(&written.old)? {
            return Ok(None);
        }
        let document = written.new.clone().filter(|_| is_now);
        let (number, id, is_deleted) = (written.number, written.id.clone(), written.new.is_none());
        Ok(Some(Seen { number, id, is_deleted, document }))
    }
}

impl Watcher for Watched {
    fn clues(&self) -> &[Clues] {
        self.query.clues()
    }

    /// The matcher is asked here, on the writer's thread: it costs less than waking a reader for nothing.
    fn tell(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>) {
        let seen: Result<Vec<Seen>> = documents.filter_map(|written| self.look(written).transpose()).collect();
        let Published { after, sequence, .. } = *transaction;
        match seen {
            Ok(items) if items.is_empty() => {}
            Ok(items) => {
                let document_bytes = |seen: &Seen| seen.document.as_ref().map_or(0, Document::byte_count);
                let byte_count = items.iter().map(|seen| SEEN_BYTES + document_bytes(seen)).sum();
                self.inbox.put(Letter { after, sequence, items, byte_count });
            }
            // Whoever reads the document is told what is wrong with it.
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
