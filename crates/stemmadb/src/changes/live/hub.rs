//! Who watches, and handing on what is published.
//!
//! Invariants: transactions are handed on in the order of their sequences, by one thread at a time; the board is never locked while
//! the database is called.

use std::collections::VecDeque;
use std::sync::Arc;

use super::router::Router;
use crate::publish::{Observer, Published, Publisher, Written};
use crate::query::Clues;
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// A watcher's place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WatcherNumber(u32);

#[cfg(test)]
impl WatcherNumber {
    pub(super) fn of(number: u32) -> Self {
        WatcherNumber(number)
    }
}

/// Someone who wants to know of some documents.
pub(super) trait Watcher: Send + Sync {
    /// What the documents show that can concern it, before or after a transaction.
    fn clues(&self) -> &[Clues];

    /// Tells of a transaction that may concern it, and of each document in it that may. It must not wait.
    fn tell(&self, transaction: &Published, documents: &mut dyn Iterator<Item = &Written>);

    /// Something after this sequence happened that can't be told.
    fn miss(&self, after: Sequence);

    /// There will be nothing more.
    fn close(&self);
}

/// Tells watchers what is published.
#[derive(Default)]
pub(crate) struct Hub {
    watcher_count: AtomicUsize,
    backlog: Mutex<Backlog>,
    board: Mutex<Board>,
}

/// What was published and not handed on yet.
#[derive(Default)]
struct Backlog {
    transactions: VecDeque<Published>,
    /// Whether some thread is handing on.
    is_busy: bool,
    is_closing: bool,
}

#[derive(Default)]
struct Board {
    router: Router,
    places: Vec<Option<Place>>,
    free: Vec<WatcherNumber>,
    is_closed: bool,
    /// Buffers that are used again.
    found: Vec<WatcherNumber>,
    concerned: Vec<(WatcherNumber, usize)>,
}

struct Place {
    watcher: Arc<dyn Watcher>,
    /// Under which of its clues it is filed.
    chosen: Option<usize>,
}

impl Hub {
    /// A hub that hears of everything this publisher publishes.
    pub(crate) fn attach(publisher: &Publisher) -> Arc<Self> {
        let hub = Arc::new(Hub::default());
        publisher.observe(hub.clone());
        hub
    }

    /// Tells `watcher` of what is published from now on.
    pub(super) fn add(&self, publisher: &Publisher, watcher: Arc<dyn Watcher>) -> WatcherNumber {
        let number = self.board.lock().add(watcher);
        publisher.hold(|| self.watcher_count.fetch_add(1, Ordering::AcqRel));
        number
    }

    /// Tells it no more.
    pub(super) fn remove(&self, number: WatcherNumber) {
        self.watcher_count.fetch_sub(1, Ordering::AcqRel);
        let removed = self.board.lock().remove(number);
        drop(removed);
    }

    /// How many watch; zero only if nothing is left of any.
    #[cfg(test)]
    pub(crate) fn watcher_count(&self) -> usize {
        let count = self.watcher_count.load(Ordering::Acquire);
        assert_eq!(count == 0, self.board.lock().router.is_empty());
        count
    }
}

impl Observer for Hub {
    fn is_wanted(&self) -> bool {
        self.watcher_count.load(Ordering::Acquire) > 0
    }

    fn take(&self, transaction: Published) {
        self.backlog.lock().transactions.push_back(transaction);
    }

    /// One thread hands on at a time, and for the others too: they need not wait for it.
    fn deliver(&self) {
        let mut backlog = self.backlog.lock();
        if backlog.is_busy {
            return;
        }
        backlog.is_busy = true;
        while let Some(transaction) = backlog.transactions.pop_front() {
            drop(backlog);
            self.board.lock().hand_on(transaction);
            backlog = self.backlog.lock();
        }
        backlog.is_busy = false;
        let is_closing = backlog.is_closing;
        drop(backlog);
        if is_closing {
            self.board.lock().close();
        }
    }

    fn close(&self) {
        self.backlog.lock().is_closing = true;
        self.deliver();
    }
}

impl Board {
    fn add(&mut self, watcher: Arc<dyn Watcher>) -> WatcherNumber {
        if self.is_closed {
            watcher.close();
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            WatcherNumber(self.places.len() as u32 - 1)
        });
        let chosen = self.router.add(number, watcher.clues());
        self.places[number.0 as usize] = Some(Place { watcher, chosen });
        number
    }

    fn remove(&mut self, number: WatcherNumber) -> Option<Place> {
        let place = self.places[number.0 as usize].take()?;
        self.router.remove(number, place.chosen.map(|chosen| &place.watcher.clues()[chosen]));
        self.free.push(number);
        Some(place)
    }

    fn watchers(&self) -> impl Iterator<Item = &Arc<dyn Watcher>> {
        self.places.iter().flatten().map(|place| &place.watcher)
    }

    fn hand_on(&mut self, mut transaction: Published) {
        let Some(mut written) = transaction.written.take() else {
            // Nobody watched yet when it was written.
            return self.watchers().for_each(|watcher| watcher.miss(transaction.after));
        };
        join_repeated(&mut written);
        if self.find_concerned(&written).is_err() {
            // Whoever looks at the damaged document is told.
            return self.watchers().for_each(|watcher| watcher.miss(transaction.after));
        }
        for concerned in self.concerned.chunk_by(|left, right| left.0 == right.0) {
            if let Some(place) = &self.places[concerned[0].0.0 as usize] {
                place.watcher.tell(&transaction, &mut concerned.iter().map(|(_, at)| &written[*at]));
            }
        }
    }

    /// Fills `concerned`: each watcher, with the places of the documents it may be concerned with.
    fn find_concerned(&mut self, written: &[Written]) -> crate::Result<()> {
        self.concerned.clear();
        for (at, document) in written.iter().enumerate() {
            self.found.clear();
            let Written { id, old, new, .. } = document;
            self.router.find(id.as_str(), old.as_ref(), new.as_ref(), &mut self.found)?;
            self.concerned.extend(self.found.iter().map(|watcher| (*watcher, at)));
        }
        self.concerned.sort_unstable();
        self.concerned.dedup();
        Ok(())
    }

    fn close(&mut self) {
        self.is_closed = true;
        self.watchers().for_each(|watcher| watcher.close());
    }
}

/// Makes one of several edits of a document: what it was before the first, and is after the last.
fn join_repeated(written: &mut Vec<Written>) {
    if written.len() < 2 {
        return;
    }
    // Stable: the edits of one document stay in their order.
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
