//! Bounded queue of notifications for one watcher; the sender never blocks.
//!
//! Invariant: every notification is either in the inbox, was read, or is covered by `missed`. A reader that finds
//! `missed` set reads the database from that sequence; the newest state includes everything that was ever sent.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Instant;

use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex};

/// An inbox holds at most this many bytes, or one transaction.
const BYTES_MAX: usize = 1 << 20;

/// The documents of one transaction that concern one watcher.
#[derive(Debug)]
pub(super) struct Notification<T> {
    /// The newest sequence before the transaction.
    pub(super) after: Sequence,
    /// The last sequence of the transaction.
    pub(super) sequence: Sequence,
    pub(super) items: Vec<T>,
    /// Approximate memory that the items occupy.
    pub(super) byte_count: usize,
}

/// The notifications of one watcher.
pub(super) struct Inbox<T> {
    state: Mutex<InboxState<T>>,
    changed: Condvar,
    /// Called whenever a waiting reader is woken.
    callback: OnceLock<WakeCallback>,
}

/// Wakes a reader that waits elsewhere, for example on a channel or an event loop.
pub(super) type WakeCallback = Box<dyn Fn() + Send + Sync>;

struct InboxState<T> {
    notifications: VecDeque<Notification<T>>,
    byte_count: usize,
    /// Something after this sequence was sent and not stored here.
    missed: Option<Sequence>,
    is_closed: bool,
}

/// The result of reading an inbox.
pub(super) enum InboxRead<T> {
    Notification(Notification<T>),
    /// Everything after this sequence has to be read from the database.
    Missed(Sequence),
    /// The deadline passed.
    TimedOut,
    /// The database was closed, and everything was read.
    Closed,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Self {
        let state = InboxState { notifications: VecDeque::new(), byte_count: 0, missed: None, is_closed: false };
        Inbox { state: Mutex::new(state), changed: Condvar::new(), callback: OnceLock::new() }
    }

    /// Calls `callback` now, and whenever there is something to read or the inbox is closed. Only the first callback is
    /// kept.
    pub(super) fn notify(&self, callback: WakeCallback) {
        self.callback.set(callback).ok();
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_all();
        if let Some(callback) = self.callback.get() {
            callback();
        }
    }

    /// Adds a notification and wakes the reader. If the inbox is full, all notifications are dropped and the reader has
    /// to catch up from the database.
    pub(super) fn push(&self, notification: Notification<T>) {
        let mut state = self.state.lock();
        if state.missed.is_some() {
            return;
        }
        let is_full = !state.notifications.is_empty() && state.byte_count + notification.byte_count > BYTES_MAX;
        if is_full {
            let oldest = state.notifications.front().map_or(notification.after, |first| first.after);
            state.drop_all(oldest);
        } else {
            state.byte_count += notification.byte_count;
            state.notifications.push_back(notification);
        }
        drop(state);
        self.wake();
    }

    /// Records that something after this sequence happened that is in no notification.
    pub(super) fn mark_missed(&self, after: Sequence) {
        let mut state = self.state.lock();
        let oldest = state.notifications.front().map_or(after, |first| first.after).min(after);
        state.drop_all(oldest);
        drop(state);
        self.wake();
    }

    /// Records that nothing more will be added.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake();
    }

    /// Whether nothing more will be added, and everything was read.
    #[cfg(feature = "tokio")]
    pub(super) fn is_closed(&self) -> bool {
        let state = self.state.lock();
        state.is_closed && !state.has_unread()
    }

    pub(super) fn has_unread(&self) -> bool {
        self.state.lock().has_unread()
    }

    /// Returns the next notification, waiting until `deadline`, or without limit if there is none.
    pub(super) fn read(&self, deadline: Option<Instant>) -> InboxRead<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(after) = state.missed.take() {
                return InboxRead::Missed(after);
            }
            if let Some(notification) = state.notifications.pop_front() {
                state.byte_count -= notification.byte_count;
                return InboxRead::Notification(notification);
            }
            if state.is_closed {
                return InboxRead::Closed;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    let is_late = self.changed.wait_until(&mut state, deadline).timed_out();
                    if is_late && state.notifications.is_empty() && state.missed.is_none() && !state.is_closed {
                        return InboxRead::TimedOut;
                    }
                }
            }
        }
    }

    /// Returns the next notification if it is here and occupies at most `bytes_max`.
    pub(super) fn take_small(&self, bytes_max: usize) -> Option<Notification<T>> {
        let mut state = self.state.lock();
        let is_small = state.notifications.front().is_some_and(|notification| notification.byte_count <= bytes_max);
        if !is_small || state.missed.is_some() {
            return None;
        }
        let notification = state.notifications.pop_front()?;
        state.byte_count -= notification.byte_count;
        Some(notification)
    }
}

impl<T> InboxState<T> {
    fn has_unread(&self) -> bool {
        self.missed.is_some() || !self.notifications.is_empty()
    }

    fn drop_all(&mut self, after: Sequence) {
        self.missed = Some(self.missed.map_or(after, |missed| missed.min(after)));
        self.notifications.clear();
        self.byte_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn notification(sequence: u64, byte_count: usize) -> Notification<u64> {
        let (after, sequence) = (Sequence::new(sequence - 1), Sequence::new(sequence));
        Notification { after, sequence, items: vec![sequence.get()], byte_count }
    }

    fn now<T>(inbox: &Inbox<T>) -> InboxRead<T> {
        inbox.read(Some(Instant::now()))
    }

    #[test]
    fn notifications_are_read_in_order_until_closed() {
        let inbox = Inbox::new();
        assert!(matches!(now(&inbox), InboxRead::TimedOut));
        inbox.push(notification(1, 10));
        inbox.push(notification(2, 10));
        inbox.close();
        for sequence in 1..=2 {
            assert!(
                matches!(now(&inbox), InboxRead::Notification(notification) if notification.sequence.get() == sequence)
            );
        }
        assert!(matches!(now(&inbox), InboxRead::Closed));
    }

    #[test]
    fn large_or_missed_notifications_are_not_taken() {
        let inbox = Inbox::new();
        assert!(inbox.take_small(10).is_none());
        inbox.push(notification(1, 10));
        inbox.push(notification(2, 11));
        assert_eq!(inbox.take_small(10).map(|notification| notification.sequence.get()), Some(1));
        assert!(inbox.take_small(10).is_none());
        assert!(matches!(now(&inbox), InboxRead::Notification(notification) if notification.sequence.get() == 2));
        inbox.mark_missed(Sequence::new(2));
        inbox.push(notification(4, 10));
        assert!(inbox.take_small(10).is_none());
        assert!(matches!(now(&inbox), InboxRead::Missed(_)));
    }

    #[test]
    fn callback_is_called_on_every_event() {
        let (inbox, calls) = (Inbox::new(), Arc::new(AtomicUsize::new(0)));
        let count = |expected| assert_eq!(calls.load(Ordering::Relaxed), expected);
        inbox.push(notification(1, 10));
        let counter = calls.clone();
        inbox.notify(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        count(1);
        inbox.push(notification(2, 10));
        inbox.mark_missed(Sequence::new(2));
        inbox.close();
        count(4);
    }

    #[test]
    fn full_inbox_reports_where_to_catch_up() {
        let inbox = Inbox::new();
        inbox.push(notification(5, 10));
        assert!(matches!(now(&inbox), InboxRead::Notification(_)));
        inbox.push(notification(7, BYTES_MAX / 2));
        inbox.push(notification(8, BYTES_MAX / 2));
        inbox.push(notification(9, 10));
        inbox.push(notification(10, 10));
        assert!(matches!(now(&inbox), InboxRead::Missed(after) if after.get() == 6));
        inbox.push(notification(11, 2 * BYTES_MAX));
        assert!(matches!(now(&inbox), InboxRead::Notification(notification) if notification.sequence.get() == 11));
        inbox.push(notification(12, 10));
        inbox.mark_missed(Sequence::new(12));
        assert!(matches!(now(&inbox), InboxRead::Missed(after) if after.get() == 11));
        assert!(matches!(now(&inbox), InboxRead::TimedOut));
    }
}
