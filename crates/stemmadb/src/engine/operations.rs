//! Operations that the current thread is running while code of the caller runs: transactions, map functions of views,
//! progress functions. A nested call that would wait for a lock which its own thread holds is refused.
//!
//! Each operation is named after the first lock it takes. Locks are taken in the order of [`Operation`], so a nested
//! operation may wait only for locks that come later than all those that are held.
//!
//! Concurrency: the list of operations belongs to the thread.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::engine::Store;
use crate::{Error, Result};

/// An operation, by the first lock that it takes, in the order of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// Closing the database, which waits for everything else.
    Close,
    /// Building a declared index.
    BuildIndex,
    /// A compaction, or a check.
    Compact,
    Checkpoint,
    /// Everything that takes the writer lock.
    Write,
    /// Updating a view, which runs its map function.
    UpdateView,
}

impl Operation {
    /// What a nested call attempts.
    fn attempt(self) -> &'static str {
        match self {
            Operation::Close => "closing the database",
            Operation::BuildIndex => "building an index",
            Operation::Compact => "a compaction or a check",
            Operation::Checkpoint => "a checkpoint",
            Operation::Write => "a write to the database itself",
            Operation::UpdateView => "updating a view",
        }
    }

    /// Where the nested call is made, and what to do instead.
    fn context(self) -> (&'static str, &'static str) {
        match self {
            Operation::Write => {
                ("within a transaction of the same thread", "call it after the transaction, or write through it")
            }
            Operation::UpdateView => {
                ("within the map function of a view", "a map function should read nothing but its document")
            }
            _ => ("within a progress function of the same thread", "call it after the operation"),
        }
    }
}

crate::sync::thread_local! {
    /// The running operations of this thread: the address of the store, and the operation. Gone while a thread ends
    /// and drops a database that it kept in a `thread_local!`; it runs no other operation then.
    static RUNNING: RefCell<Vec<(usize, Operation)>> = RefCell::default();
}

/// An operation that this thread is running, until dropped.
pub(crate) struct RunningOperation<'a> {
    store: &'a Store,
    operation: Operation,
    /// It belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl Store {
    /// Records that this thread runs an operation during which code of the caller may run.
    ///
    /// # Errors
    /// Those of [`Store::refuse_reentry`].
    pub(crate) fn begin(&self, operation: Operation) -> Result<RunningOperation<'_>> {
        self.refuse_reentry(operation)?;
        RUNNING.try_with(|running| running.borrow_mut().push((self.address(), operation))).ok();
        Ok(RunningOperation { store: self, operation, _not_send: PhantomData })
    }

    /// Returns an error for an operation that would wait for a lock which this thread holds.
    ///
    /// # Errors
    /// `Invalid` if this thread runs an operation with the same first lock, or with a later one.
    pub(crate) fn refuse_reentry(&self, operation: Operation) -> Result<()> {
        let address = self.address();
        let held = RUNNING.try_with(|running| {
            let running = running.borrow();
            running.iter().filter(|(store, held)| *store == address && *held >= operation).map(|(_, held)| *held).max()
        });
        let Ok(Some(held)) = held else { return Ok(()) };
        let (place, hint) = held.context();
        Err(Error::invalid(format!("{} {place}", operation.attempt())).with_hint(hint))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Drop for RunningOperation<'_> {
    fn drop(&mut self) {
        let ended = (self.store.address(), self.operation);
        let remove = |running: &RefCell<Vec<(usize, Operation)>>| {
            let mut running = running.borrow_mut();
            if let Some(index) = running.iter().rposition(|running| *running == ended) {
                running.remove(index);
            }
        };
        RUNNING.try_with(remove).ok();
    }
}
