//! When may readers see a transaction? As soon as it, and every one before it, is as durable as was asked.
//!
//! Invariants: transactions are published in the order of their sequences; the published sequence never goes back; nothing
//! is published after the log was poisoned.
//!
//! Concurrency: `enqueue` is called under the store's writer lock (so the queue is in order); everything else by anyone.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::log::{Level, Log, LogPosition, Progress};
use crate::revision::{DocumentId, Sequence};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// A transaction that waits to become visible.
struct Pending {
    end: LogPosition,
    level: Level,
    next_number: DocumentNumber,
    transaction: Published,
}

/// What a transaction did, for whoever observes.
pub(crate) struct Published {
    /// The newest sequence before it.
    pub(crate) after: Sequence,
    /// Its last sequence.
    pub(crate) sequence: Sequence,
    /// The documents whose winner it changed, in the order of its edits; a document edited twice is there twice. None if
    /// nobody observed while it was written.
    pub(crate) written: Option<Vec<Written>>,
}

/// A document whose winner a transaction changed.
pub(crate) struct Written {
    pub(crate) number: DocumentNumber,
    pub(crate) id: DocumentId,
    /// The winner before; none if there was no document, or it was deleted.
    pub(crate) old: Option<Document>,
    /// The winner now; none if it is a deletion.
    pub(crate) new: Option<Document>,
    /// Whether it may be refused for what it shares with another document: not if it was written elsewhere.
    pub(crate) is_judged: bool,
}

/// Someone who is told what each transaction did, in order, as it is published.
pub(crate) trait Observer: Send + Sync {
    /// Whether there is anyone to tell; changes only within [`Publisher::hold`].
    fn is_wanted(&self) -> bool;

    /// Takes the next transaction. Called with the publisher's queue locked, so it must not do more than keep it.
    fn take(&self, transaction: Published);

    /// Hands on what was taken. Called after it was published, without any lock of the publisher.
    fn deliver(&self);

    /// There will be nothing more.
    fn close(&self);
}

/// Makes transactions visible in order, and wakes whoever waits for one.
pub(crate) struct Publisher {
    published: AtomicU64,
    /// Document numbers below this are published. It follows `published`, so whoever reads it first sees all their documents.
    published_numbers: AtomicU64,
    queue: Mutex<VecDeque<Pending>>,
    changed: Condvar,
    listeners: Mutex<Vec<std::sync::Weak<Listener>>>,
    observer: OnceLock<Arc<dyn Observer>>,
}

/// Someone who wants to know when something new was published.
#[derive(Default)]
pub(crate) struct Listener {
    state: Mutex<ListenerState>,
    changed: Condvar,
    /// What is called then, by those who don't wait.
    notice: Option<Notice>,
}

/// What is called with the newest sequence.
type Notice = Box<dyn Fn(Sequence) + Send + Sync>;

/// Ends the calls of [`Database::on_publish`](crate::Database::on_publish) when it is dropped.
#[must_use = "the calls end when this is dropped"]
pub struct Notifier {
    _listener: Arc<Listener>,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
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
            observer: OnceLock::new(),
        }
    }

    /// Tells `observer` of everything from now on; only the first one is heard.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        self.observer.set(observer).ok();
    }

    /// Whether what a transaction writes should be kept for the observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some_and(|observer| observer.is_wanted())
    }

    /// Runs `work` while nothing is published.
    pub(crate) fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let _queue = self.queue.lock();
        work()
    }

    /// Says that everything up to `sequence` was found in the log when it was opened.
    pub(crate) fn recovered(&self, sequence: Sequence, next_number: DocumentNumber) {
        self.publish(sequence, next_number);
    }

    fn publish(&self, sequence: Sequence, next_number: DocumentNumber) {
        self.published.fetch_max(sequence.0, Ordering::AcqRel);
        self.published_numbers.fetch_max(next_number.0, Ordering::AcqRel);
    }

    /// The number after that of the newest published document. Ask this before taking a snapshot.
    pub(crate) fn published_numbers(&self) -> DocumentNumber {
        DocumentNumber(self.published_numbers.load(Ordering::Acquire))
    }

    /// The newest sequence readers may see.
    pub(crate) fn published(&self) -> Sequence {
        Sequence(self.published.load(Ordering::Acquire))
    }

    /// Puts a transaction in the queue: it becomes visible once the log has reached `end` at `level`.
    pub(crate) fn enqueue(&self, end: LogPosition, level: Level, next_number: DocumentNumber, transaction: Published) {
        self.queue.lock().push_back(Pending { end, level, next_number, transaction });
    }

    /// Publishes what the log's progress allows; nothing, and false, once the log failed. That is asked with the queue locked, so that
    /// who finds something unpublished after that finds it so for ever.
    pub(crate) fn advance(&self, log: &Log) -> bool {
        let mut queue = self.queue.lock();
        let Some(Progress { written, durable }) = log.progress() else { return false };
        let observer = self.observer.get().filter(|observer| observer.is_wanted());
        let mut newest = None;
        while let Some(first) = queue.front() {
            let reached = match first.level {
                Level::Written => written,
                Level::Flushed => durable,
            };
            if reached < first.end {
                break;
            }
            newest = Some((first.transaction.sequence, first.next_number));
            if let (Some(first), Some(observer)) = (queue.pop_front(), observer) {
                observer.take(first.transaction);
            }
        }
        let Some((newest, next_number)) = newest else { return true };
        self.publish(newest, next_number);
        self.changed.notify_all();
        drop(queue);
        self.tell(newest, false);
        if let Some(observer) = observer {
            observer.deliver();
        }
        true
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
        if let Some(observer) = self.observer.get().filter(|_| closed) {
            observer.close();
        }
    }

    /// A listener that is told of everything published from now on, until it is dropped.
    pub(crate) fn listen(&self) -> Arc<Listener> {
        let listener = Arc::new(Listener::default());
        self.listeners.lock().push(Arc::downgrade(&listener));
        listener.tell(self.published(), false);
        listener
    }

    /// Calls `notice` with the newest sequence whenever something was published, until what this returns is dropped.
    pub(crate) fn notify(&self, notice: Notice) -> Notifier {
        let listener = Arc::new(Listener { notice: Some(notice), ..Listener::default() });
        self.listeners.lock().push(Arc::downgrade(&listener));
        listener.tell(self.published(), false);
        Notifier { _listener: listener }
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
        let published = state.published;
        drop(state);
        if let Some(notice) = &self.notice {
            notice(published);
        }
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
