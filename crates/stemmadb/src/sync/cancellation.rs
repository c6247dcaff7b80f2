//! Cancellation of work from another thread.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
#[derive(Clone, Default)]
pub struct Cancellation(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_cancelled: AtomicBool,
    /// What runs on cancellation, each with a number that is unique here.
    callbacks: Mutex<Vec<(u64, Callback)>>,
}

type Callback = Arc<dyn Fn() + Send + Sync>;

/// Removes a callback of [`Cancellation::on_cancel`] when it is dropped.
pub struct CancelCallback {
    cancellation: Cancellation,
    number: u64,
}

impl Drop for CancelCallback {
    fn drop(&mut self) {
        self.cancellation.callbacks().retain(|(number, _)| *number != self.number);
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancellation").field(&self.is_cancelled()).finish()
    }
}

impl Cancellation {
    /// Returns a handle that is not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels every query that has this handle, now and in future: each fails with `Stopped` at its next step.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        let callbacks: Vec<Callback> = self.callbacks().iter().map(|(_, callback)| callback.clone()).collect();
        callbacks.iter().for_each(|callback| callback());
    }

    /// Calls `callback` when this is cancelled, on the thread that cancels, to wake what waits; or now, if it is
    /// cancelled already. It may be called more than once, and must not block. Dropping the returned value removes it.
    ///
    /// ```
    /// # use stemmadb::Cancellation;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let cancellation = Cancellation::new();
    /// let _registered = cancellation.on_cancel(move || {
    ///     sender.send(()).ok();
    /// });
    /// cancellation.cancel();
    /// assert!(receiver.recv().is_ok());
    /// ```
    #[must_use]
    pub fn on_cancel(&self, callback: impl Fn() + Send + Sync + 'static) -> CancelCallback {
        let callback: Callback = Arc::new(callback);
        let number = {
            let mut callbacks = self.callbacks();
            let number = callbacks.last().map_or(0, |(last, _)| last + 1);
            callbacks.push((number, callback.clone()));
            number
        };
        if self.is_cancelled() {
            callback();
        }
        CancelCallback { cancellation: self.clone(), number }
    }

    fn callbacks(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Callback)>> {
        self.0.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what cancels the work of this thread: the innermost [`Cancellation::during`] that runs here.
    pub fn current() -> Option<Cancellation> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }

    /// Returns whether [`Cancellation::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
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
    let is_cancelled =
        CURRENT.try_with(|current| current.borrow().as_ref().is_some_and(Cancellation::is_cancelled)).unwrap_or(false);
    if is_cancelled { Err(Error::stopped("the request was cancelled")) } else { Ok(()) }
}
