//! Following the feed as it grows.
//!
//! A subscriber holds no queue that could overflow: it is told that something new was published and reads it from the
//! database, most of the time from memory. However slow it is, it misses no document: it catches up from the feed.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::feed::{Change, Changes, Filter};
use crate::engine::Store;
use crate::publish::{Heard, Listener};
use crate::query::Selector;
use crate::revision::Sequence;
use crate::{Error, Result};

/// Changes as they are published, in order, from a sequence on. A document written several times between two reads appears once, with its
/// latest state.
pub struct Subscription {
    store: Weak<Store>,
    listener: Arc<Listener>,
    filter: Filter,
    position: Sequence,
    /// Read and not yet handed out: at most [`BATCH_COUNT`].
    batch: VecDeque<Change>,
}

/// Changes read ahead of the subscriber.
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

    /// With the winning documents.
    #[must_use]
    pub fn documents(mut self, documents: bool) -> Self {
        self.filter.documents = documents;
        self
    }

    /// Only of these documents.
    #[must_use]
    pub fn ids<I: Into<String>>(mut self, ids: impl IntoIterator<Item = I>) -> Self {
        self.filter.ids = Some(ids.into_iter().map(Into::into).collect());
        self
    }

    /// Only of documents whose winner the selector matches.
    ///
    /// # Errors
    /// `Invalid` if the selector is wrong.
    pub fn selector(mut self, selector: &Selector) -> Result<Self> {
        self.filter.selector = Some((selector.clone(), selector.matcher()?));
        Ok(self)
    }

    /// The sequence up to which everything wanted was handed out: subscribe from here to continue after a restart.
    pub fn reached(&self) -> Sequence {
        match self.batch.front() {
            Some(next) => Sequence::new(next.sequence.get() - 1),
            None => self.position,
        }
    }

    /// The next change, waiting for it as long as it takes; none once the database is closed and everything was read.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        self.next_until(None)
    }

    /// The next change, waiting at most this long; none if there was none, or the database is closed.
    ///
    /// # Errors
    /// `Corrupt` if stored bytes are damaged.
    pub fn next_within(&mut self, patience: Duration) -> Result<Option<Change>> {
        self.next_until(Some(Instant::now() + patience))
    }

    fn next_until(&mut self, deadline: Option<Instant>) -> Result<Option<Change>> {
        loop {
            if let Some(change) = self.batch.pop_front() {
                return Ok(Some(change));
            }
            match self.listener.wait_past(self.position, deadline) {
                Heard::News => self.read_on()?,
                Heard::Nothing => return Ok(None),
                Heard::Closed => {
                    // What was published before the end is still handed out.
                    let before = self.position;
                    if self.read_on().is_err() || self.position == before {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn read_on(&mut self) -> Result<()> {
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
