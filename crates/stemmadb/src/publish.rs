//! The publisher: makes transactions visible to readers in commit order, each once it and all earlier ones are as
//! durable as requested.
//!
//! Invariants: transactions are published in the order of their sequences; the published sequence never goes back;
//! nothing is published after the log was poisoned.
//!
//! Concurrency: `enqueue` is called under the store's writer lock, which keeps the queue in order. All other functions
//! may be called from any thread.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::document::Document;
use crate::index::DocumentNumber;
use crate::log::{Level, Log, LogPosition, Progress};
use crate::revision::{DocumentId, Sequence};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// A transaction that waits to be published.
struct Pending {
    end: LogPosition,
    level: Level,
    next_number: DocumentNumber,
    transaction: Published,
}

/// A transaction's effects, for the observer.
pub(crate) struct Published {
    /// The newest sequence before the transaction.
    pub(crate) after: Sequence,
    /// The transaction's last sequence.
    pub(crate) sequence: Sequence,
    /// The documents whose winner it changed, in the order of its edits; a document edited twice appears twice. None if
    /// there was no observer while it was written.
    pub(crate) written: Option<Vec<Written>>,
}

/// A document whose winner was changed by a transaction.
pub(crate) struct Written {
    pub(crate) number: DocumentNumber,
    pub(crate) id: DocumentId,
    /// The previous winner; none if there was no document or it was deleted.
    pub(crate) old: Option<Document>,
    /// The new winner; none if it is a deletion.
    pub(crate) new: Option<Document>,
    /// Whether unique constraints apply to it: not if the revision was written in another database.
    pub(crate) checks_uniqueness: bool,
}

/// Receives the effects of each transaction, in order, as it is published.
pub(crate) trait Observer: Send + Sync {
    /// Whether anything consumes the effects. Changes only within [`Publisher::hold`].
    fn is_active(&self) -> bool;

    /// Queues the next transaction. Called with the publisher's queue locked, so it must do nothing else.
    fn take(&self, transaction: Published);

    /// Delivers the queued transactions. Called after they were published, without any lock of the publisher.
    fn deliver(&self);

    /// Reports that no more transactions follow.
    fn close(&self);
}

/// Publishes transactions in order, and wakes the threads that wait for them.
pub(crate) struct Publisher {
    published: AtomicU64,
    /// Document numbers below this are published. Stored after `published`, so a reader that loads it first sees all
    /// their documents.
    published_numbers: AtomicU64,
    queue: Mutex<VecDeque<Pending>>,
    changed: Condvar,
    listeners: Mutex<Vec<std::sync::Weak<Listener>>>,
    observer: OnceLock<Arc<dyn Observer>>,
    /// Whether nothing more will be published, because the database was closed.
    is_closed: AtomicBool,
}

/// A consumer that waits for, or is called on, each publication.
#[derive(Default)]
pub(crate) struct Listener {
    state: Mutex<ListenerState>,
    changed: Condvar,
    /// Called on each publication, by listeners that do not wait.
    callback: OnceLock<PublishCallback>,
}

/// A callback that receives the newest sequence.
type PublishCallback = Box<dyn Fn(Sequence) + Send + Sync>;

/// The registration of a callback that is called after each publication; dropping it unregisters
/// the callback.
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
            is_closed: AtomicBool::new(false),
        }
    }

    /// Registers the observer of all later transactions. Only the first one registered is used.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        self.observer.set(observer).ok();
    }

    /// Whether transactions should record their effects for the observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some_and(|observer| observer.is_active())
    }

    /// Runs `work` while nothing is published.
    pub(crate) fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        let _queue = self.queue.lock();
        work()
    }

    /// Publishes everything up to `sequence`, which recovery found in the log.
    pub(crate) fn recovered(&self, sequence: Sequence, next_number: DocumentNumber) {
        assert!(self.queue.lock().is_empty(), "recovery ends before the first transaction");
        self.publish(sequence, next_number);
    }

    fn publish(&self, sequence: Sequence, next_number: DocumentNumber) {
        self.published.fetch_max(sequence.0, Ordering::AcqRel);
        self.published_numbers.fetch_max(next_number.0, Ordering::AcqRel);
    }

    /// The number after that of the newest published document. Read this before taking a snapshot.
    pub(crate) fn published_numbers(&self) -> DocumentNumber {
        DocumentNumber(self.published_numbers.load(Ordering::Acquire))
    }

    /// The newest sequence that readers may see.
    pub(crate) fn published(&self) -> Sequence {
        Sequence(self.published.load(Ordering::Acquire))
    }

    /// Queues a transaction, which is published once the log has reached `end` at `level`.
    pub(crate) fn enqueue(&self, end: LogPosition, level: Level, next_number: DocumentNumber, transaction: Published) {
        debug_assert!(transaction.after < transaction.sequence, "a transaction has a sequence of its own");
        let mut queue = self.queue.lock();
        debug_assert!(
            queue.back().is_none_or(|last| last.end < end && last.transaction.sequence <= transaction.after),
            "transactions are queued in log order"
        );
        queue.push_back(Pending { end, level, next_number, transaction });
    }

    /// Publishes what the log's progress allows. Returns false, and publishes nothing, once the log has failed. The
    /// log's state is read with the queue locked, so a transaction that is unpublished after a failure stays
    /// unpublished.
    pub(crate) fn advance(&self, log: &Log) -> bool {
        let mut queue = self.queue.lock();
        let Some(Progress { written, durable }) = log.progress() else { return false };
        let observer = self.observer.get().filter(|observer| observer.is_active());
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
        debug_assert!(self.published() < newest, "the published sequence never goes back");
        self.publish(newest, next_number);
        self.changed.notify_all();
        drop(queue);
        self.notify_listeners(newest, false);
        if let Some(observer) = observer {
            observer.deliver();
        }
        true
    }

    /// Waits until `sequence` is published; returns false if `given_up` reports that it never will be.
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

    /// Wakes all waiting threads, so that they check whether the log was poisoned or the database closed.
    pub(crate) fn wake(&self, closed: bool) {
        let queue = self.queue.lock();
        self.changed.notify_all();
        drop(queue);
        if closed {
            self.is_closed.store(true, Ordering::Release);
        }
        self.notify_listeners(self.published(), closed);
        if let Some(observer) = self.observer.get().filter(|_| closed) {
            observer.close();
        }
    }

    /// Registers a listener for everything published from now on; dropping it unregisters it.
    pub(crate) fn listen(&self) -> Arc<Listener> {
        let listener = Arc::new(Listener::default());
        self.listeners.lock().push(Arc::downgrade(&listener));
        listener.notify(self.published(), self.is_closed.load(Ordering::Acquire));
        listener
    }

    /// Registers a callback that receives the newest sequence on each publication; dropping the returned notifier
    /// unregisters it.
    pub(crate) fn notify(&self, callback: PublishCallback) -> Notifier {
        let listener = Arc::new(Listener { callback: callback.into(), ..Listener::default() });
        self.listeners.lock().push(Arc::downgrade(&listener));
        listener.notify(self.published(), false);
        Notifier { _listener: listener }
    }

    fn notify_listeners(&self, published: Sequence, closed: bool) {
        self.listeners.lock().retain(|listener| match listener.upgrade() {
            Some(listener) => {
                listener.notify(published, closed);
                true
            }
            None => false,
        });
    }
}

impl Listener {
    fn notify(&self, published: Sequence, closed: bool) {
        let mut state = self.state.lock();
        state.published = state.published.max(published);
        state.closed |= closed;
        self.changed.notify_all();
        let published = state.published;
        drop(state);
        if let Some(callback) = self.callback.get() {
            callback(published);
        }
    }

    /// Calls `callback` now, and after each publication or when the database is closed. Only the first callback is
    /// kept.
    pub(crate) fn on_change(&self, callback: PublishCallback) {
        self.callback.set(callback).ok();
        self.notify(Sequence::ZERO, false);
    }

    /// Whether the database is closed and nothing after `sequence` was published.
    pub(crate) fn is_closed_at(&self, sequence: Sequence) -> bool {
        let state = self.state.lock();
        state.closed && state.published <= sequence
    }

    /// Waits until something after `sequence` is published, at most until `deadline`.
    pub(crate) fn wait_past(&self, sequence: Sequence, deadline: Option<std::time::Instant>) -> WaitOutcome {
        let mut state = self.state.lock();
        loop {
            if state.published > sequence {
                return WaitOutcome::Published;
            }
            if state.closed {
                return WaitOutcome::Closed;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() && state.published <= sequence {
                        return WaitOutcome::TimedOut;
                    }
                }
            }
        }
    }
}

/// The result of waiting for a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// A newer sequence was published.
    Published,
    /// The deadline passed.
    TimedOut,
    /// The database was closed; nothing more will be published.
    Closed,
}
