//! When may readers see a transaction? As soon as it, and every one before it, is as durable as was asked.
//!
//! Invariants: transactions are published in the order of their sequences; the published sequence never goes back; nothing
//! is published after the log was poisoned.
//!
//! Concurrency: `enqueue` is called under the store's writer lock (so the queue is in order); everything else by anyone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::index::DocumentNumber;
use crate::log::{Level, LogPosition};
use crate::revision::Sequence;

/// A transaction that waits to become visible.
struct Pending {
    end: LogPosition,
    level: Level,
    last_sequence: Sequence,
    next_number: DocumentNumber,
}

/// Makes transactions visible in order, and wakes whoever waits for one.
pub(crate) struct Publisher {
    published: AtomicU64,
    /// Document numbers below this are published. It follows `published`, so whoever reads it first sees all their documents.
    published_numbers: AtomicU64,
    queue: Mutex<VecDeque<Pending>>,
    changed: Condvar,
    listeners: Mutex<Vec<std::sync::Weak<Listener>>>,
}

/// Someone who wants to know when something new was published.
#[derive(Default)]
pub(crate) struct Listener {
    state: Mutex<ListenerState>,
    changed: Condvar,
}

#[derive(Default)]
struct ListenerState {
    published: Sequence,
    closed: bool,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        Publisher {
            published: AtomicU64::new(0),
            published_numbers: AtomicU64::new(0),
            queue: Mutex::default(),
            changed: Condvar::new(),
            listeners: Mutex::default(),
        }
    }

    /// Says that everything up to `sequence` was found in the log when it was opened.
    pub(super) fn recovered(&self, sequence: Sequence, next_number: DocumentNumber) {
        self.publish(sequence, next_number);
    }

    fn publish(&self, sequence: Sequence, next_number: DocumentNumber) {
        self.published.fetch_max(sequence.0, Ordering::AcqRel);
        self.published_numbers.fetch_max(next_number.0, Ordering::AcqRel);
    }

    /// The number after that of the newest published document. Ask this before taking a snapshot.
    pub(super) fn published_numbers(&self) -> DocumentNumber {
        DocumentNumber(self.published_numbers.load(Ordering::Acquire))
    }

    /// The newest sequence readers may see.
    pub(crate) fn published(&self) -> Sequence {
        Sequence(self.published.load(Ordering::Acquire))
    }

    /// Puts a transaction in the queue: it becomes visible once the log has reached `end` at `level`.
    pub(crate) fn enqueue(&self, end: LogPosition, level: Level, last_sequence: Sequence, next_number: DocumentNumber) {
        self.queue.lock().push_back(Pending { end, level, last_sequence, next_number });
    }

    /// Publishes what the log's progress allows.
    pub(crate) fn advance(&self, written: LogPosition, durable: LogPosition) {
        let mut queue = self.queue.lock();
        let mut newest = None;
        while let Some(first) = queue.front() {
            let reached = match first.level {
                Level::Written => written,
                Level::Flushed => durable,
            };
            if reached < first.end {
                break;
            }
            newest = Some((first.last_sequence, first.next_number));
            queue.pop_front();
        }
        let Some((newest, next_number)) = newest else { return };
        self.publish(newest, next_number);
        self.changed.notify_all();
        drop(queue);
        self.tell(newest, false);
    }

    /// Waits until `sequence` is published; false when `given_up` says it never will be.
    pub(crate) fn wait_for(&self, sequence: Sequence, given_up: impl Fn() -> bool) -> bool {
        let mut queue = self.queue.lock();
        while self.published() < sequence {
            if given_up() {
                return false;
            }
            self.changed.wait(&mut queue);
        }
        true
    }

    /// Wakes everyone who waits, to look again whether the log was poisoned or the database closed.
    pub(crate) fn wake(&self, closed: bool) {
        let queue = self.queue.lock();
        self.changed.notify_all();
        drop(queue);
        self.tell(self.published(), closed);
    }

    /// A listener that is told of everything published from now on, until it is dropped.
    pub(crate) fn listen(&self) -> Arc<Listener> {
        let listener = Arc::new(Listener::default());
        self.listeners.lock().push(Arc::downgrade(&listener));
        listener.tell(self.published(), false);
        listener
    }

    fn tell(&self, published: Sequence, closed: bool) {
        self.listeners.lock().retain(|listener| match listener.upgrade() {
            Some(listener) => {
                listener.tell(published, closed);
                true
            }
            None => false,
        });
    }
}

impl Listener {
    fn tell(&self, published: Sequence, closed: bool) {
        let mut state = self.state.lock();
        state.published = state.published.max(published);
        state.closed |= closed;
        self.changed.notify_all();
    }

    /// Waits until something after `sequence` is published, at most until `deadline`.
    pub(crate) fn wait_past(&self, sequence: Sequence, deadline: Option<std::time::Instant>) -> Heard {
        let mut state = self.state.lock();
        loop {
            if state.published > sequence {
                return Heard::News;
            }
            if state.closed {
                return Heard::Closed;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() && state.published <= sequence {
                        return Heard::Nothing;
                    }
                }
            }
        }
    }
}

/// How a wait for news ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Something newer is published.
    News,
    /// The time ran out.
    Nothing,
    /// The database was closed; there will be nothing more.
    Closed,
}
