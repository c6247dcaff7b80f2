//! Live queries: reads a query's result and then its changes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::delta::{Delta, DeltaEvent, StoredDelta};
use super::hub::{Hub, Watcher, WatcherNumber};
use super::inbox::{Inbox, InboxRead, Notification};
use crate::document::Document;
use crate::engine::Store;
use crate::index::{DocumentNumber, DocumentSet};
use crate::publish::{Published, Written};
use crate::query::{Clues, LiveQuery, Query};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::{Error, Result};

/// A live query: returns the query's result, and then what each published transaction changes in it.
///
/// Create one with [`Database::watch`](crate::Database::watch). Memory: less than a bit to two bytes per document in
/// the result, and at most one mebibyte (or one transaction) of unread changes. Dropping it ends the watch.
///
/// ```
/// # use stemmadb::{Database, field};
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// let mut open = db.watch(field("state").eq("open"))?;
/// let first = open.next_delta()?.expect("the database is open");
/// assert!(first.is_first() && first.is_empty());
/// db.insert("order-1", &serde_json::json!({"state": "open"}))?;
/// let delta = open.next_delta()?.expect("the database is open");
/// assert_eq!(delta.len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    store: Weak<Store>,
    hub: Arc<Hub>,
    number: WatcherNumber,
    watcher: Arc<QueryWatcher>,
    query: Query,
    /// The result as of the last returned delta.
    members: DocumentSet,
    /// `members` is the result at this sequence.
    position: Sequence,
    /// Whether the initial delta was returned.
    is_started: bool,
}

/// A watch saved between two openings of a database; created by [`Watch::suspend`], continued by
/// [`SuspendedWatch::resume`]. See [`Watch`] for an example.
#[derive(Debug, Clone)]
pub struct SuspendedWatch {
    query: Query,
    members: DocumentSet,
    position: Sequence,
    database_id: [u8; 16],
}

/// The hub's side of a watch.
struct QueryWatcher {
    query: LiveQuery,
    inbox: Inbox<MatchedDocument>,
}

/// A document that matches, or did before the transaction.
struct MatchedDocument {
    number: DocumentNumber,
    id: DocumentId,
    is_deleted: bool,
    /// The document, if it matches now.
    document: Option<Document>,
}

/// Memory overhead of an item besides its document, in bytes.
const ITEM_OVERHEAD_BYTES: usize = 128;

/// How often a waiting watch checks whether its query was cancelled.
const CANCELLATION_POLL: Duration = Duration::from_millis(50);

/// Events looked up in one call when catching up.
const BATCH_COUNT: usize = 256;

impl Watch {
    pub(crate) fn new(store: &Arc<Store>, hub: &Arc<Hub>, query: Query) -> Result<Self> {
        Watch::register(store, hub, query, DocumentSet::new(), Sequence::ZERO)
    }

    pub(crate) fn resume(store: &Arc<Store>, hub: &Arc<Hub>, suspended: SuspendedWatch) -> Result<Self> {
        let SuspendedWatch { query, members, position, database_id } = suspended;
        if database_id != store.parts.identity || position > store.parts.publisher.published() {
            return Err(Error::invalid("the watch was suspended in another database, or in a later state of this one")
                .with_hint("begin a new watch: its first delta is the whole answer"));
        }
        let mut watch = Watch::register(store, hub, query, members, position)?;
        watch.is_started = true;
        watch.watcher.inbox.mark_missed(position);
        Ok(watch)
    }

    fn register(
        store: &Arc<Store>,
        hub: &Arc<Hub>,
        query: Query,
        members: DocumentSet,
        position: Sequence,
    ) -> Result<Self> {
        let watcher = Arc::new(QueryWatcher { query: LiveQuery::new(&query)?, inbox: Inbox::new() });
        let number = hub.add(&store.parts.publisher, watcher.clone());
        Ok(Watch {
            store: Arc::downgrade(store),
            hub: hub.clone(),
            number,
            watcher,
            query,
            members,
            position,
            is_started: false,
        })
    }

    /// The sequence of the result after all returned deltas, which stays current until the next delta.
    pub fn reached(&self) -> Sequence {
        self.position
    }

    /// Returns the next delta, blocking until there is one; `None` once the database is closed and everything was read.
    /// The first delta contains the whole result and is computed within the limits of the query.
    ///
    /// # Errors
    /// `Stopped` if the initial result exceeds a limit, or if the query was cancelled; `Corrupt` if stored bytes are
    /// damaged; `Closed` if the database was closed before this watch caught up. Nothing is skipped: the next call
    /// tries again.
    pub fn next_delta(&mut self) -> Result<Option<Delta>> {
        self.next_until(None)
    }

    /// Returns the next delta, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    ///
    /// # Errors
    /// As [`Watch::next_delta`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delta>> {
        self.next_until(Some(Instant::now() + timeout))
    }

    /// Returns the next delta if it is in memory with at most `bytes_max` bytes of documents. It neither waits nor
    /// reads the database, so that it can be called where nothing may block. After `None`, [`Watch::has_unread`] says
    /// whether there may be a delta that only [`Watch::next_within`] returns.
    pub fn next_in_memory(&mut self, bytes_max: usize) -> Option<Delta> {
        if !self.is_started {
            return None;
        }
        loop {
            let notification = self.watcher.inbox.take_small(bytes_max)?;
            if let Some(delta) = self.apply(notification) {
                return Some(delta);
            }
        }
    }

    /// Whether there may be a delta to read.
    pub fn has_unread(&self) -> bool {
        !self.is_started || self.watcher.inbox.has_unread()
    }

    /// Calls `callback` now, and whenever there may be a delta to read or the database is closed, for callers that
    /// can't block in [`Watch::next_delta`] and read with [`Watch::next_within`] and a timeout of zero instead. It runs
    /// on the writer's thread, so it must be quick and must not call the database. Only the first callback is kept.
    pub fn notify(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.watcher.inbox.notify(Box::new(callback));
    }

    /// Whether the database is closed and every notification was read.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_started && self.watcher.inbox.is_closed()
    }

    /// Ends the watch and returns its state, to continue after the database was closed and opened again.
    ///
    /// # Errors
    /// `Closed` if the database is already closed; `Invalid` if the initial delta was not read yet.
    pub fn suspend(self) -> Result<SuspendedWatch> {
        if !self.is_started {
            return Err(Error::invalid("a watch can't be suspended before its first delta was read"));
        }
        let store = self.store()?;
        store.parts.refuse_if_closed()?;
        let database_id = store.parts.identity;
        let (query, members, position) = (self.query.clone(), self.members.clone(), self.position);
        Ok(SuspendedWatch { query, members, position, database_id })
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<Delta>> {
        if !self.is_started {
            return self.read_initial().map(Some);
        }
        loop {
            let next_poll = self.watcher.query.limits().check_cancelled()?.then(|| Instant::now() + CANCELLATION_POLL);
            let until = [deadline, next_poll].into_iter().flatten().min();
            let delta = match self.watcher.inbox.read(until) {
                InboxRead::Notification(notification) => self.apply(notification),
                InboxRead::Missed(after) => self.catch_up(after)?,
                InboxRead::TimedOut if deadline.is_none_or(|deadline| Instant::now() < deadline) => None,
                InboxRead::TimedOut | InboxRead::Closed => return Ok(None),
            };
            if delta.is_some() {
                return Ok(delta);
            }
        }
    }

    /// Reads the whole result. Notifications of earlier transactions are included in it and will be skipped.
    fn read_initial(&mut self) -> Result<Delta> {
        let snapshot = self.store()?.snapshot()?;
        self.members = self.watcher.query.members(&snapshot)?;
        self.position = snapshot.sequence();
        self.is_started = true;
        let (changed, removed) = (DocumentSet::new(), DocumentSet::new());
        let (added, limits) = (self.members.clone(), self.watcher.query.limits().clone());
        Ok(Delta::from_stored(true, StoredDelta { snapshot, added, changed, removed, limits }))
    }

    /// Applies a notification to the result; returns `None` if it is outdated or changes nothing.
    fn apply(&mut self, notification: Notification<MatchedDocument>) -> Option<Delta> {
        if notification.sequence <= self.position {
            return None;
        }
        self.position = notification.sequence;
        let mut events = Vec::with_capacity(notification.items.len());
        for MatchedDocument { number, id, is_deleted, document } in notification.items {
            match document {
                Some(document) if self.members.insert(number) => events.push(DeltaEvent::Added(document)),
                Some(document) => events.push(DeltaEvent::Changed(document)),
                None if self.members.remove(number) => events.push(DeltaEvent::Removed { id, deleted: is_deleted }),
                None => {}
            }
        }
        (!events.is_empty()).then(|| Delta::of_events(notification.sequence, false, events))
    }

    /// Compares the last returned result with the current documents; only those written after `after` can differ. If
    /// this fails, the next call tries again.
    fn catch_up(&mut self, after: Sequence) -> Result<Option<Delta>> {
        let store = self.store()?;
        self.compare(&store, after).inspect_err(|_| self.watcher.inbox.mark_missed(after))
    }

    fn compare(&mut self, store: &Store, after: Sequence) -> Result<Option<Delta>> {
        let snapshot = store.snapshot()?;
        let (mut added, mut changed, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        let mut reached = after.max(self.position);
        while reached < snapshot.sequence() {
            self.watcher.query.limits().check_cancelled()?;
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
        let stored = StoredDelta { snapshot, added, changed, removed, limits: self.watcher.query.limits().clone() };
        Ok((!stored.is_empty()).then(|| Delta::from_stored(false, stored)))
    }

    fn matches(&self, snapshot: &Snapshot, number: DocumentNumber) -> Result<bool> {
        match snapshot.state(number)?.filter(|state| state.is_live()) {
            Some(state) => {
                let document = snapshot.winner(&state)?;
                Ok(!snapshot.has_expired(&document)? && self.watcher.query.matches(&document)?)
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

impl QueryWatcher {
    /// Returns the document if it matches now or matched before.
    fn evaluate(&self, written: &Written) -> Result<Option<MatchedDocument>> {
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
        Ok(Some(MatchedDocument { number, id, is_deleted, document }))
    }
}

impl Watcher for QueryWatcher {
    fn clues(&self) -> &[Clues] {
        self.query.clues()
    }

    /// The selector is evaluated on the writer's thread: that costs less than waking a reader needlessly.
    fn notify_transaction(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>) {
        let matched: Result<Vec<MatchedDocument>> =
            documents.filter_map(|written| self.evaluate(written).transpose()).collect();
        let Published { after, sequence, .. } = *transaction;
        match matched {
            Ok(items) if items.is_empty() => {}
            Ok(items) => {
                let document_bytes =
                    |matched: &MatchedDocument| matched.document.as_ref().map_or(0, Document::byte_count);
                let byte_count = items.iter().map(|matched| ITEM_OVERHEAD_BYTES + document_bytes(matched)).sum();
                self.inbox.push(Notification { after, sequence, items, byte_count });
            }
            // The reader finds the damaged document when it catches up, and returns the error.
            Err(_) => self.inbox.mark_missed(after),
        }
    }

    fn mark_missed(&self, after: Sequence) {
        self.inbox.mark_missed(after);
    }

    fn close(&self) {
        self.inbox.close();
    }
}
