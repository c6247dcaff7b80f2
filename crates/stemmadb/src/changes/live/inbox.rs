//! What a watcher was told and has not read yet: bounded, and never in the way of who tells.
//!
//! Invariant: whatever was told is in the inbox, was read, or came after `missed`. A reader who finds `missed` set looks the
//! rest up in the database, whose newest state has everything that was ever told.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Instant;

use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex};

/// An inbox holds this many bytes, or one transaction.
const BYTES_MAX: usize = 1 << 20;

/// What one transaction means to one watcher.
#[derive(Debug)]
pub(super) struct Letter<T> {
    /// The newest sequence before the transaction.
    pub(super) after: Sequence,
    /// Its last sequence.
    pub(super) sequence: Sequence,
    pub(super) items: Vec<T>,
    /// About what the items keep in memory.
    pub(super) byte_count: usize,
}

/// The letters of one watcher.
pub(super) struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Called wherever a reader who waits is woken.
    notice: OnceLock<Notice>,
}

/// What tells a reader who waits elsewhere.
pub(super) type Notice = Box<dyn Fn() + Send + Sync>;

struct State<T> {
    letters: VecDeque<Letter<T>>,
    byte_count: usize,
    /// Something after this sequence was told and not kept.
    missed: Option<Sequence>,
    is_closed: bool,
}

/// What a reader finds.
pub(super) enum Found<T> {
    Letter(Letter<T>),
    /// What happened after this sequence has to be looked up.
    Missed(Sequence),
    /// The time ran out.
    Nothing,
    /// The database was closed, and everything was read.
    Closed,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Self {
        let state = State { letters: VecDeque::new(), byte_count: 0, missed: None, is_closed: false };
        Inbox { state: Mutex::new(state), changed: Condvar::new(), notice: OnceLock::new() }
    }

    /// Calls `notice` now, and whenever there is something to read or there will be nothing more. Only the first is kept.
    pub(super) fn notify(&self, notice: Notice) {
        self.notice.set(notice).ok();
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_all();
        if let Some(notice) = self.notice.get() {
            notice();
        }
    }

    /// Puts a letter in, and wakes the reader. A full inbox is emptied: the reader has to look for itself.
    pub(super) fn put(&self, letter: Letter<T>) {
        let mut state = self.state.lock();
        if state.missed.is_some() {
            return;
        }
        let is_full = !state.letters.is_empty() && state.byte_count + letter.byte_count > BYTES_MAX;
        if is_full {
            let oldest = state.letters.front().map_or(letter.after, |first| first.after);
            state.forget(oldest);
        } else {
            state.byte_count += letter.byte_count;
            state.letters.push_back(letter);
        }
        drop(state);
        self.wake();
    }

    /// Says that something after this sequence happened that is in no letter.
    pub(super) fn miss(&self, after: Sequence) {
        let mut state = self.state.lock();
        let oldest = state.letters.front().map_or(after, |first| first.after).min(after);
        state.forget(oldest);
        drop(state);
        self.wake();
    }

    /// Says that nothing more will come.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.wake();
    }

    /// The next letter, waiting for it until `deadline`, or as long as it takes.
    pub(super) fn take(&self, deadline: Option<Instant>) -> Found<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(after) = state.missed.take() {
                return Found::Missed(after);
            }
            if let Some(letter) = state.letters.pop_front() {
                state.byte_count -= letter.byte_count;
                return Found::Letter(letter);
            }
            if state.is_closed {
                return Found::Closed;
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) => {
                    let is_late = self.changed.wait_until(&mut state, deadline).timed_out();
                    if is_late && state.letters.is_empty() && state.missed.is_none() && !state.is_closed {
                        return Found::Nothing;
                    }
                }
            }
        }
    }
}

impl<T> State<T> {
    fn forget(&mut self, after: Sequence) {
        self.missed = Some(self.missed.map_or(after, |missed| missed.min(after)));
        self.letters.clear();
        self.byte_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn letter(sequence: u64, byte_count: usize) -> Letter<u64> {
        let (after, sequence) = (Sequence::new(sequence - 1), Sequence::new(sequence));
        Letter { after, sequence, items: vec![sequence.get()], byte_count }
    }

    fn now<T>(inbox: &Inbox<T>) -> Found<T> {
        inbox.take(Some(Instant::now()))
    }

    #[test]
    fn letters_come_in_order_until_it_is_closed() {
        let inbox = Inbox::new();
        assert!(matches!(now(&inbox), Found::Nothing));
        inbox.put(letter(1, 10));
        inbox.put(letter(2, 10));
        inbox.close();
        for sequence in 1..=2 {
            assert!(matches!(now(&inbox), Found::Letter(letter) if letter.sequence.get() == sequence));
        }
        assert!(matches!(now(&inbox), Found::Closed));
    }

    #[test]
    fn whoever_waits_elsewhere_is_told() {
        let (inbox, told) = (Inbox::new(), Arc::new(AtomicUsize::new(0)));
        let count = |expected| assert_eq!(told.load(Ordering::Relaxed), expected);
        inbox.put(letter(1, 10));
        let counted = told.clone();
        inbox.notify(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        count(1);
        inbox.put(letter(2, 10));
        inbox.miss(Sequence::new(2));
        inbox.close();
        count(4);
    }

    #[test]
    fn a_full_inbox_says_from_where_to_look() {
        let inbox = Inbox::new();
        inbox.put(letter(5, 10));
        assert!(matches!(now(&inbox), Found::Letter(_)));
        inbox.put(letter(7, BYTES_MAX / 2));
        inbox.put(letter(8, BYTES_MAX / 2));
        inbox.put(letter(9, 10));
        inbox.put(letter(10, 10));
        assert!(matches!(now(&inbox), Found::Missed(after) if after.get() == 6));
        inbox.put(letter(11, 2 * BYTES_MAX));
        assert!(matches!(now(&inbox), Found::Letter(letter) if letter.sequence.get() == 11));
        inbox.put(letter(12, 10));
        inbox.miss(Sequence::new(12));
        assert!(matches!(now(&inbox), Found::Missed(after) if after.get() == 11));
        assert!(matches!(now(&inbox), Found::Nothing));
    }
}
