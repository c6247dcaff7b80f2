//! Cancellation of work from another thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

std::thread_local! {
    /// What cancels the reads of this thread.
    static CURRENT: RefCell<Option<Cancellation>> = const { RefCell::new(None) };
}

/// A handle that cancels queries from another thread. Clones cancel the same queries.
///
/// ```
/// # use stemmadb::{Cancellation, Database, ErrorKind, Selector};
/// # let db = Database::in_memory();
/// let cancellation = Cancellation::new();
/// let find = db.find(Selector::everything()).cancelled_by(&cancellation);
/// cancellation.cancel();
/// assert_eq!(find.count().unwrap_err().kind(), ErrorKind::Stopped);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Returns a handle that is not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels every query that has this handle, now and in future: each fails with `Stopped` at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Cancellation::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs `work`. Reads of any kind that it does on this thread fail with `Stopped` once this is cancelled: queries,
    /// listings, views, `paths`. Iterators that were made in `work` and are advanced later are not concerned.
    ///
    /// Writes in `work` should be able to fail, too: they read what they change.
    ///
    /// ```
    /// # use stemmadb::{Cancellation, Database, ErrorKind};
    /// # let db = Database::in_memory();
    /// let cancellation = Cancellation::new();
    /// cancellation.cancel();
    /// let paths = cancellation.during(|| db.indexes().paths());
    /// assert_eq!(paths.unwrap_err().kind(), ErrorKind::Stopped);
    /// ```
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// Restores what cancels the reads of this thread, also if the work panics.
struct Restored(Option<Cancellation>);

impl Drop for Restored {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns an error if the reads of this thread are cancelled.
///
/// # Errors
/// `Stopped`.
pub(crate) fn refuse_if_cancelled() -> Result<()> {
    let is_cancelled = CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancellation::is_cancelled));
    if is_cancelled { Err(Error::stopped("the request was cancelled")) } else { Ok(()) }
}
