//! Path subscriptions: changes of the values at matching paths, as they are published.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::super::feed::Filter;
use super::hub::{Hub, Watcher, WatcherNumber};
use super::inbox::{Inbox, InboxRead, Notification};
use super::pattern::{PathEvent, Patterns};
use crate::document::Document;
use crate::engine::Store;
use crate::publish::{Published, Written};
use crate::query::{Clues, Selector};
use crate::read::Snapshot;
use crate::revision::{DocumentId, Sequence};
use crate::{Error, Result};

/// Streams each change of a value whose path matches one of several patterns, as it is published.
///
/// Create one with [`Database::subscribe_paths`](crate::Database::subscribe_paths), which defines the pattern syntax.
/// Memory: at most one mebibyte (or one transaction) of unread changes. Dropping it ends the subscription.
///
/// ```
/// # use stemmadb::{Database, PathEvent};
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// let mut changes = db.subscribe_paths(["status"])?;
/// db.insert("order-1", &serde_json::json!({"status": "new"}))?;
/// let change = changes.next_change()?.expect("the database is open");
/// assert_eq!(change.paths, [PathEvent::Added("status".into())]);
/// # Ok(())
/// # }
/// ```
pub struct PathSubscription {
    store: Weak<Store>,
    hub: Arc<Hub>,
    number: WatcherNumber,
    subscriber: Arc<Subscriber>,
    position: Sequence,
    /// The documents that count as present.
    filter: Filter,
    /// Changes to return, the next one last.
    ready: Vec<PathChange>,
    /// The reader has to catch up with what this snapshot contains after the sequence.
    missed: Option<(Sequence, Snapshot)>,
}

/// A document whose values at matching paths changed. See [`PathSubscription`] for an example.
#[derive(Debug, Clone, PartialEq)]
pub struct PathChange {
    /// The last sequence of the transaction that changed the document.
    pub sequence: Sequence,
    /// Id of the document.
    pub id: DocumentId,
    /// The document after the change; `None` if it was deleted.
    pub document: Option<Document>,
    /// The changed paths in order, at most the first thousand of each pattern. Empty if the reader was too slow for the
    /// individual changes to be known: the document was written, and a value may have changed.
    pub paths: Vec<PathEvent>,
}

struct Subscriber {
    patterns: Patterns,
    /// Whether a document may begin or cease to count as present, which changes all its values.
    has_selector: AtomicBool,
    inbox: Inbox<ChangedDocument>,
}

/// A document with at least one matching change.
struct ChangedDocument {
    id: DocumentId,
    old: Option<Document>,
    new: Option<Document>,
}

/// Maximum number of changed paths reported per document and pattern.
const PATHS_MAX: usize = 1_000;
/// Events looked up in one call.
const BATCH_COUNT: usize = 256;
/// Memory overhead of an item besides its documents, in bytes.
const ITEM_OVERHEAD_BYTES: usize = 128;

impl PathSubscription {
    pub(crate) fn new<P: AsRef<str>>(
        store: &Arc<Store>,
        hub: &Arc<Hub>,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Self> {
        let subscriber = Arc::new(Subscriber {
            patterns: Patterns::parse(patterns)?,
            has_selector: AtomicBool::new(false),
            inbox: Inbox::new(),
        });
        let number = hub.add(&store.parts.publisher, subscriber.clone());
        let position = store.parts.publisher.published();
        let (store, hub) = (Arc::downgrade(store), hub.clone());
        let filter = Filter { documents: true, departures: true, ..Filter::default() };
        Ok(PathSubscription { store, hub, number, subscriber, position, filter, ready: Vec::new(), missed: None })
    }

    /// Documents that do not match the selector count as absent: a change by which a document begins to match it adds
    /// all its values, one by which it no longer does removes them, and is returned like a deletion. A subscription
    /// that catches up knows of such a change only if a deleted branch tells of it: see
    /// [`Changes::departures`](crate::Changes::departures).
    ///
    /// ```
    /// # use stemmadb::{Database, PathEvent, field};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// let mut changes = db.subscribe_paths(["status"])?.selector(&field("shop").eq("Berlin"))?;
    /// db.insert("order-1", &serde_json::json!({"shop": "Rome", "status": "new"}))?;
    /// db.upsert("order-1", &serde_json::json!({"shop": "Berlin", "status": "new"}))?;
    /// let change = changes.next_change()?.expect("the database is open");
    /// assert_eq!(change.paths, [PathEvent::Added("status".into())]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    pub fn selector(mut self, selector: &Selector) -> Result<Self> {
        self.filter.selector = Some((selector.clone(), selector.matcher()?));
        self.subscriber.has_selector.store(true, Ordering::Relaxed);
        Ok(self)
    }

    /// Also returns the documents that were written after `since`, before the subscription began. What changed in them
    /// is not known, so each is returned unless the patterns exclude its id, and its [`PathChange::paths`] are empty.
    /// Default: only what changes from now on.
    ///
    /// ```
    /// # use stemmadb::{Database, Sequence};
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// db.insert("order-1", &serde_json::json!({"status": "new"}))?;
    /// let mut changes = db.subscribe_paths(["status"])?.since(Sequence::ZERO)?;
    /// let change = changes.next_change()?.expect("the database is open");
    /// assert!(change.id.as_str() == "order-1" && change.paths.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Closed` if the database is closed.
    pub fn since(mut self, since: Sequence) -> Result<Self> {
        let store = self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))?;
        // Taken after the subscription began: what this snapshot lacks is delivered.
        self.missed = Some((since, store.snapshot()?));
        Ok(self)
    }

    /// Calls `callback` now, and whenever there may be a change or the database is closed. Only the first callback is
    /// kept. It runs on the writer's thread, so it must not block.
    pub fn notify(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.subscriber.inbox.notify(Box::new(callback));
    }

    /// Whether the database is closed and every change was read.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_closed(&self) -> bool {
        self.ready.is_empty() && self.missed.is_none() && self.subscriber.inbox.is_closed()
    }

    /// Returns the next change, blocking until there is one; `None` once the database is closed and everything was
    /// read.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged; `Closed` if the database was closed before this subscription caught up.
    pub fn next_change(&mut self) -> Result<Option<PathChange>> {
        self.next_until(None)
    }

    /// Returns the next change, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    ///
    /// # Errors
    /// As [`PathSubscription::next_change`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<PathChange>> {
        self.next_until(Some(Instant::now() + timeout))
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
            match self.subscriber.inbox.read(deadline) {
                InboxRead::Notification(notification) => self.enqueue(notification)?,
                InboxRead::Missed(after) => {
                    let store = self.store.upgrade().ok_or_else(|| {
                        Error::closed("the database was closed before this subscription had caught up")
                    })?;
                    let snapshot = store.snapshot().inspect_err(|_| self.subscriber.inbox.mark_missed(after))?;
                    self.missed = Some((after.max(self.position), snapshot));
                }
                InboxRead::TimedOut | InboxRead::Closed => return Ok(None),
            }
        }
    }

    fn enqueue(&mut self, notification: Notification<ChangedDocument>) -> Result<()> {
        if notification.sequence <= self.position {
            return Ok(());
        }
        self.position = notification.sequence;
        for ChangedDocument { id, old, new } in notification.items.into_iter().rev() {
            let (old, new) = (self.filter.present(old)?, self.filter.present(new)?);
            let paths = self.subscriber.changed_paths(&id, old.as_ref(), new.as_ref(), PATHS_MAX)?;
            if !paths.is_empty() {
                self.ready.push(PathChange { sequence: notification.sequence, id, document: new, paths });
            }
        }
        Ok(())
    }

    /// Queues the next batch of documents that were written after `after`.
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
            if self.subscriber.patterns.may_match_id(state.id.as_str())
                && let Some(change) = self.filter.change(snapshot, &state, after)?
            {
                let document = change.document.filter(|_| !change.deleted);
                changes.push(PathChange { sequence, id: change.id, document, paths: Vec::new() });
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
    fn changed_paths(
        &self,
        id: &DocumentId,
        old: Option<&Document>,
        new: Option<&Document>,
        limit: usize,
    ) -> Result<Vec<PathEvent>> {
        let old = old.map(Document::packed).transpose()?;
        let new = new.map(Document::packed).transpose()?;
        self.patterns.changed_paths(id.as_str(), old, new, limit)
    }

    /// Returns the document if a value at a matching path may have changed.
    fn evaluate(&self, written: &Written) -> Result<Option<ChangedDocument>> {
        let Written { id, old, new, .. } = written;
        let is_changed = self.has_selector.load(Ordering::Relaxed)
            || !self.changed_paths(id, old.as_ref(), new.as_ref(), 1)?.is_empty();
        Ok(is_changed.then(|| ChangedDocument { id: id.clone(), old: old.clone(), new: new.clone() }))
    }
}

impl Watcher for Subscriber {
    fn clues(&self) -> &[Clues] {
        self.patterns.clues()
    }

    fn notify_transaction(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>) {
        let changed: Result<Vec<ChangedDocument>> =
            documents.filter_map(|written| self.evaluate(written).transpose()).collect();
        let Published { after, sequence, .. } = *transaction;
        match changed {
            Ok(items) if items.is_empty() => {}
            Ok(items) => {
                let bytes = |document: &Option<Document>| document.as_ref().map_or(0, Document::byte_count);
                let byte_count =
                    items.iter().map(|item| ITEM_OVERHEAD_BYTES + bytes(&item.old) + bytes(&item.new)).sum();
                self.inbox.push(Notification { after, sequence, items, byte_count });
            }
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
