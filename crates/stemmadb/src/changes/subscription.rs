//! Subscriptions to the changes feed.
//!
//! A subscriber has no queue that could overflow: it is notified that something was published and reads it from the
//! database, usually from memory. A slow subscriber misses no document: it catches up from the feed.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::feed::{Change, Changes, Filter};
use super::live::Patterns;
use crate::engine::Store;
use crate::publish::{Listener, WaitOutcome};
use crate::query::Selector;
use crate::revision::Sequence;
use crate::{Error, ErrorKind, Result};

/// Streams changes as they are published, in sequence order, starting after a given sequence.
///
/// A document written several times between two reads appears once, with its latest state. Create one with
/// [`Database::subscribe`](crate::Database::subscribe).
///
/// ```
/// # use stemmadb::{Database};
/// # fn main() -> stemmadb::Result<()> {
/// let db = Database::in_memory();
/// let mut changes = db.subscribe(db.sequence());
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let change = changes.next_change()?.expect("the database is open");
/// assert_eq!(change.id.as_str(), "solaris");
/// # Ok(())
/// # }
/// ```
pub struct Subscription {
    store: Weak<Store>,
    listener: Arc<Listener>,
    filter: Filter,
    position: Sequence,
    /// Changes that were read and not yet returned: at most [`BATCH_COUNT`].
    batch: VecDeque<Change>,
}

/// Maximum number of changes read ahead of the subscriber.
const BATCH_COUNT: usize = 256;

impl Subscription {
    pub(crate) fn new(store: &Arc<Store>, since: Sequence) -> Self {
        Subscription {
            store: Arc::downgrade(store),
            listener: store.parts.publisher.listen(),
            filter: Filter::default(),
            position: since,
            batch: VecDeque::new(),
        }
    }

    /// Includes the winning revision's content in each change. Default: no content.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.filter.documents = documents;
        self
    }

    /// Returns only changes of these documents.
    #[must_use]
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.filter.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Returns only documents whose winning revision matches the selector.
    ///
    /// # Errors
    /// `Invalid` if the selector is malformed.
    pub fn selector(mut self, selector: &Selector) -> Result<Self> {
        self.filter.selector = Some((selector.clone(), selector.matcher()?));
        Ok(self)
    }

    /// With a selector, also returns documents that left those that match it; see [`Changes::departures`].
    #[must_use]
    pub fn departures(mut self, departures: bool) -> Self {
        self.filter.departures = departures;
        self
    }

    /// Returns only documents whose winning revision has a value at a path that matches one of the patterns; see
    /// [`Changes::paths`].
    ///
    /// # Errors
    /// `Invalid` if a pattern is malformed, or if there is none.
    pub fn paths<P: AsRef<str>>(mut self, patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        self.filter.paths = Some(Patterns::parse(patterns)?);
        Ok(self)
    }

    /// The sequence up to which every matching change was returned. To continue after a restart, subscribe from here.
    pub fn reached(&self) -> Sequence {
        match self.batch.front() {
            Some(next) => Sequence::new(next.sequence.get() - 1),
            None => self.position,
        }
    }

    /// Returns the next change, blocking until there is one; `None` once the database is closed.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        self.next_until(None)
    }

    /// Returns the next change, waiting at most `timeout`; `None` after the timeout, or if the database is closed.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Change>> {
        self.next_until(Some(Instant::now() + timeout))
    }

    /// Calls `callback` now, and whenever there may be a change or the database is closed.
    pub(crate) fn on_change(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.listener.on_change(Box::new(move |_| callback()));
    }

    /// Whether the database is closed and every change was returned.
    pub(crate) fn is_closed(&self) -> bool {
        self.batch.is_empty() && self.listener.is_closed_at(self.position)
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.batch.pop_front() {
                return Ok(Some(change));
            }
            match self.listener.wait_past(self.position, deadline) {
                WaitOutcome::Published => match self.read_batch() {
                    Err(error) if error.kind() == ErrorKind::Closed => return Ok(None),
                    read => read?,
                },
                WaitOutcome::TimedOut | WaitOutcome::Closed => return Ok(None),
            }
        }
    }

    fn read_batch(&mut self) -> Result<()> {
        let store = self.store.upgrade().ok_or_else(|| Error::closed("the database is closed"))?;
        let snapshot = store.snapshot()?;
        let newest = snapshot.sequence();
        let changes = Changes::with_filter(snapshot, self.position, self.filter.clone()).limit(BATCH_COUNT);
        self.batch = changes.run().collect::<Result<_>>()?;
        self.position = match self.batch.back() {
            Some(last) if self.batch.len() == BATCH_COUNT => last.sequence,
            _ => newest,
        };
        Ok(())
    }
}

/// Blocks for each change; ends when the database is closed.
impl Iterator for Subscription {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_change().transpose()
    }
}
