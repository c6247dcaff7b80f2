//! Registry of live watchers; dispatches published transactions to them.
//!
//! Invariants: transactions are dispatched in sequence order, by one thread at a time; the watcher table is never
//! locked while the database is called.

use std::collections::VecDeque;
use std::sync::Arc;

use super::router::Router;
use crate::publish::{Observer, Published, Publisher, Written};
use crate::query::Clues;
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Index of a watcher in the watcher table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WatcherNumber(u32);

#[cfg(test)]
impl WatcherNumber {
    pub(super) fn new(number: u32) -> Self {
        WatcherNumber(number)
    }
}

/// A receiver of published changes.
pub(super) trait Watcher: Send + Sync {
    /// Conditions of which a document fulfills at least one, before or after a transaction, if it can concern this
    /// watcher.
    fn clues(&self) -> &[Clues];

    /// Reports a transaction that may concern this watcher, with each of its documents that may. Must not block.
    fn notify_transaction(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>);

    /// Reports that something after this sequence was published but can't be delivered, so the watcher has to read it.
    fn mark_missed(&self, after: Sequence);

    /// Reports that nothing more will be published.
    fn close(&self);
}

/// Dispatches published transactions to watchers.
#[derive(Default)]
pub(crate) struct Hub {
    watcher_count: AtomicUsize,
    backlog: Mutex<Backlog>,
    table: Mutex<WatcherTable>,
}

/// Transactions that were published but not yet dispatched.
#[derive(Default)]
struct Backlog {
    transactions: VecDeque<Published>,
    /// Whether a thread is dispatching.
    is_dispatching: bool,
    is_closing: bool,
}

#[derive(Default)]
struct WatcherTable {
    router: Router,
    slots: Vec<Option<WatcherSlot>>,
    free: Vec<WatcherNumber>,
    is_closed: bool,
    /// Reused buffers.
    matches: Vec<WatcherNumber>,
    affected: Vec<(WatcherNumber, usize)>,
}

struct WatcherSlot {
    watcher: Arc<dyn Watcher>,
    /// Index of the clue list under which the watcher is registered with the router.
    clue_index: Option<usize>,
}

impl Hub {
    /// Creates a hub that observes everything this publisher publishes.
    pub(crate) fn attach(publisher: &Publisher) -> Arc<Self> {
        let hub = Arc::new(Hub::default());
        publisher.observe(hub.clone());
        hub
    }

    /// Registers a watcher for everything that is published from now on.
    pub(super) fn add(&self, publisher: &Publisher, watcher: Arc<dyn Watcher>) -> WatcherNumber {
        let number = self.table.lock().add(watcher);
        publisher.hold(|| self.watcher_count.fetch_add(1, Ordering::AcqRel));
        number
    }

    /// Unregisters a watcher.
    pub(super) fn remove(&self, number: WatcherNumber) {
        self.watcher_count.fetch_sub(1, Ordering::AcqRel);
        let removed = self.table.lock().remove(number);
        drop(removed);
    }

    /// The number of watchers; asserts that the router is empty when it is zero.
    #[cfg(test)]
    pub(crate) fn watcher_count(&self) -> usize {
        let count = self.watcher_count.load(Ordering::Acquire);
        assert_eq!(count == 0, self.table.lock().router.is_empty());
        count
    }
}

impl Observer for Hub {
    fn is_active(&self) -> bool {
        self.watcher_count.load(Ordering::Acquire) > 0
    }

    fn take(&self, transaction: Published) {
        self.backlog.lock().transactions.push_back(transaction);
    }

    /// One thread dispatches at a time, also on behalf of the others, which need not wait for it.
    fn deliver(&self) {
        let mut backlog = self.backlog.lock();
        if backlog.is_dispatching {
            return;
        }
        backlog.is_dispatching = true;
        while let Some(transaction) = backlog.transactions.pop_front() {
            drop(backlog);
            self.table.lock().dispatch(transaction);
            backlog = self.backlog.lock();
        }
        backlog.is_dispatching = false;
        let is_closing = backlog.is_closing;
        drop(backlog);
        if is_closing {
            self.table.lock().close();
        }
    }

    fn close(&self) {
        self.backlog.lock().is_closing = true;
        self.deliver();
    }
}

impl WatcherTable {
    fn add(&mut self, watcher: Arc<dyn Watcher>) -> WatcherNumber {
        if self.is_closed {
            watcher.close();
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            WatcherNumber(self.slots.len() as u32 - 1)
        });
        let clue_index = self.router.add(number, watcher.clues());
        self.slots[number.0 as usize] = Some(WatcherSlot { watcher, clue_index });
        number
    }

    fn remove(&mut self, number: WatcherNumber) -> Option<WatcherSlot> {
        let slot = self.slots[number.0 as usize].take()?;
        self.router.remove(number, slot.clue_index.map(|clue_index| &slot.watcher.clues()[clue_index]));
        self.free.push(number);
        Some(slot)
    }

    fn watchers(&self) -> impl Iterator<Item = &Arc<dyn Watcher>> {
        self.slots.iter().flatten().map(|slot| &slot.watcher)
    }

    fn dispatch(&mut self, mut transaction: Published) {
        let Some(mut written) = transaction.written.take() else {
            // The transaction was written before there were watchers, so its documents were not collected.
            return self.watchers().for_each(|watcher| watcher.mark_missed(transaction.after));
        };
        merge_repeated_edits(&mut written);
        if self.find_affected(&written).is_err() {
            // The watcher finds the damaged document when it reads, and reports the error to its caller.
            return self.watchers().for_each(|watcher| watcher.mark_missed(transaction.after));
        }
        for affected in self.affected.chunk_by(|left, right| left.0 == right.0) {
            if let Some(slot) = &self.slots[affected[0].0.0 as usize] {
                slot.watcher.notify_transaction(&transaction, &mut affected.iter().map(|(_, at)| &written[*at]));
            }
        }
    }

    /// Fills `affected`: each watcher, with the indexes of the documents that may concern it.
    fn find_affected(&mut self, written: &[Written]) -> crate::Result<()> {
        self.affected.clear();
        for (at, document) in written.iter().enumerate() {
            self.matches.clear();
            let Written { id, old, new, .. } = document;
            self.router.find(id.as_str(), old.as_ref(), new.as_ref(), &mut self.matches)?;
            self.affected.extend(self.matches.iter().map(|watcher| (*watcher, at)));
        }
        self.affected.sort_unstable();
        self.affected.dedup();
        Ok(())
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.watchers().for_each(|watcher| watcher.close());
    }
}

/// Merges several edits of one document into one: its state before the first edit and after the last.
fn merge_repeated_edits(written: &mut Vec<Written>) {
    if written.len() < 2 {
        return;
    }
    // The sort is stable, so the edits of one document stay in order.
    written.sort_by_key(|document| document.number);
    written.dedup_by(|later, first| {
        let is_same = later.number == first.number;
        if is_same {
            first.new = later.new.take();
        }
        is_same
    });
    written.retain(|document| document.old.is_some() || document.new.is_some());
}
