//! Open files of all databases of the process: how many there are, and limits above which some are closed.
//!
//! A program with many databases, such as a server, can't know how many files each has open: runs of the tree and
//! segments of the log are opened when they are read. It sets a limit, and is asked to close databases when more files
//! are open, or when the system refuses to open another one. In the second case, the operation waits for that and tries
//! again.
//!
//! Invariants:
//! - The count is never below the number of open files and directories of databases on the disk.
//! - The thread that closes databases never waits for itself: it does not wait when it opens files.
//!
//! Concurrency: an operation that waits may hold locks of its own database. So it waits for a bounded time, and
//! databases are closed on a thread that holds none.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex};

/// How often a file is opened again after the system refused it.
const RETRY_COUNT: u32 = 6;
/// How long an operation waits until databases were closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause after nothing could be closed, since all databases were in use; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(5);
/// After nothing could be closed, files above the limit cause another attempt only after this time.
const REST: Duration = Duration::from_millis(100);
/// When files are closed, this part of the limit more is closed, so that the next file does not exceed it again.
const HEADROOM: usize = 16;

/// The system's errors for want of descriptors; on Windows `ERROR_TOO_MANY_OPEN_FILES`.
#[cfg(unix)]
pub(super) const EXHAUSTED: [i32; 2] =
    [rustix::io::Errno::MFILE.raw_os_error(), rustix::io::Errno::NFILE.raw_os_error()];
#[cfg(not(unix))]
pub(super) const EXHAUSTED: [i32; 1] = [4];

static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);
static SMALLEST_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);

thread_local! {
    /// Whether this is the thread that closes databases.
    static IS_CLOSER: Cell<bool> = const { Cell::new(false) };
}

/// The number of files and directories that databases of this process have open, not counting those in memory.
pub fn open_file_count() -> usize {
    OPEN_COUNT.load(Ordering::Relaxed)
}

/// Whether most files that a limit allows are open, so that caches of open files should be small.
pub(crate) fn files_are_scarce() -> bool {
    open_file_count() > SMALLEST_MAX.load(Ordering::Relaxed) / 4 * 3
}

/// Whether there is a limit.
pub(super) fn is_limited() -> bool {
    SMALLEST_MAX.load(Ordering::Relaxed) != usize::MAX
}

/// Counts an open file until it is dropped.
pub(super) struct CountedFile(());

impl CountedFile {
    /// Counts a file that was just opened.
    pub(super) fn new() -> Self {
        let count = OPEN_COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        if count > SMALLEST_MAX.load(Ordering::Relaxed) && !IS_CLOSER.get() {
            closer().request(Request::Excess);
        }
        CountedFile(())
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        OPEN_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens a file. If the process or the system has no descriptor left, has databases closed and tries again.
pub(super) fn open_with_retry<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for attempt in 0..RETRY_COUNT {
        match open() {
            Err(error) if is_exhausted(&error) && !IS_CLOSER.get() && closer().has_limits() => {
                if !closer().close_and_wait() {
                    std::thread::sleep(PAUSE * (1 << attempt));
                }
            }
            outcome => return outcome,
        }
    }
    open()
}

/// Whether a file could not be opened because the process or the system has no descriptor left.
pub fn is_exhausted(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code))
}

/// A limit of the files that databases of this process have open. It ends when it is dropped.
///
/// It is soft: files above it are opened while databases are closed.
///
/// # Examples
/// ```
/// use std::sync::{Arc, Mutex};
/// use stemmadb::{Database, open_files::{OpenFileLimit, open_file_count}};
///
/// # let directory = tempfile::tempdir()?;
/// let idle = Arc::new(Mutex::new(vec![Database::open(&directory.path().join("a.stemma"))?]));
/// let to_close = idle.clone();
/// let limit = OpenFileLimit::new(1_000, move |target| {
///     let mut closed_count = 0;
///     while open_file_count() > target && let Some(database) = to_close.lock().unwrap().pop() {
///         database.close().ok();
///         closed_count += 1;
///     }
///     closed_count
/// })?;
/// assert!(open_file_count() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OpenFileLimit {
    limit: Arc<Limit>,
}

struct Limit {
    max: usize,
    close: Box<dyn Fn(usize) -> usize + Send + Sync>,
}

impl OpenFileLimit {
    /// Sets a limit: `close` is called when more than `max` files are open, or the system refuses to open another.
    ///
    /// `close` gets the number of files that should stay open, closes databases until [`open_file_count`] is that low,
    /// and returns how many databases it closed. It is called on a thread of its own, by one caller at a time, and
    /// should skip databases [with running upkeep](crate::handles::Maintenance::is_busy), for which it would wait.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn new(max: usize, close: impl Fn(usize) -> usize + Send + Sync + 'static) -> io::Result<Self> {
        let limit = Arc::new(Limit { max, close: Box::new(close) });
        closer().add(&limit)?;
        Ok(OpenFileLimit { limit })
    }
}

impl std::fmt::Debug for OpenFileLimit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OpenFileLimit").field("max", &self.limit.max).finish()
    }
}

impl Drop for OpenFileLimit {
    fn drop(&mut self) {
        closer().remove(&self.limit);
    }
}

/// Why databases are to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    /// More files are open than a limit allows.
    Excess,
    /// The system refuses to open another file.
    Exhausted,
}

/// The thread that closes databases.
#[derive(Default)]
struct Closer {
    state: Mutex<CloserState>,
    /// Signaled when databases are to be closed, and when that was done.
    changed: Condvar,
    limit_count: AtomicU64,
}

#[derive(Default)]
struct CloserState {
    limits: Vec<Weak<Limit>>,
    has_thread: bool,
    request: Option<Request>,
    /// Runs that began, and that ended.
    begun: u64,
    ended: u64,
    /// How many databases the last run closed.
    closed_count: usize,
    rests_until: Option<Instant>,
}

fn closer() -> &'static Closer {
    static CLOSER: OnceLock<Closer> = OnceLock::new();
    CLOSER.get_or_init(Closer::default)
}

impl Closer {
    fn has_limits(&self) -> bool {
        self.limit_count.load(Ordering::Relaxed) > 0
    }

    fn add(&'static self, limit: &Arc<Limit>) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.has_thread {
            std::thread::Builder::new().name("stemma-files".to_owned()).spawn(|| self.run())?;
            state.has_thread = true;
        }
        state.limits.push(Arc::downgrade(limit));
        self.count_limits(&state);
        Ok(())
    }

    fn remove(&self, limit: &Arc<Limit>) {
        let mut state = self.state.lock();
        state.limits.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(limit)));
        self.count_limits(&state);
    }

    fn count_limits(&self, state: &CloserState) {
        self.limit_count.store(state.limits.len() as u64, Ordering::Relaxed);
        let maxima = state.limits.iter().filter_map(Weak::upgrade).map(|limit| limit.max);
        SMALLEST_MAX.store(maxima.min().unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Has databases closed soon.
    fn request(&self, request: Request) {
        let mut state = self.state.lock();
        let rests = state.rests_until.is_some_and(|until| Instant::now() < until);
        if request == Request::Excess && rests || state.request >= Some(request) {
            return;
        }
        state.request = Some(request);
        self.changed.notify_all();
    }

    /// Has databases closed and waits for it. Returns whether any was closed.
    fn close_and_wait(&self) -> bool {
        let mut state = self.state.lock();
        // The run that has begun may have closed files before the system refused this one.
        let run = state.begun + 1;
        state.request = Some(Request::Exhausted);
        self.changed.notify_all();
        let deadline = Instant::now() + CLOSING_TIMEOUT;
        while state.ended < run {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        state.closed_count > 0
    }

    /// What the thread does, for as long as the process runs.
    fn run(&self) {
        IS_CLOSER.set(true);
        let mut state = self.state.lock();
        loop {
            let Some(request) = state.request.take() else {
                self.changed.wait(&mut state);
                continue;
            };
            state.begun += 1;
            let limits: Vec<_> = state.limits.iter().filter_map(Weak::upgrade).collect();
            drop(state);
            let closed_count = limits.iter().map(|limit| limit.apply(request)).sum();
            // Dropping a limit may drop what owns it, which locks the state.
            drop(limits);
            state = self.state.lock();
            state.ended = state.begun;
            state.closed_count = closed_count;
            state.rests_until = (closed_count == 0).then(|| Instant::now() + REST);
            self.changed.notify_all();
        }
    }
}

impl Limit {
    /// Has databases closed as far as the limit requires. Returns how many were.
    fn apply(&self, request: Request) -> usize {
        let count = open_file_count();
        let target = match request {
            Request::Excess if count <= self.max => return 0,
            Request::Excess => self.max - self.max / HEADROOM,
            // Not files of databases, but others, such as connections, took the descriptors.
            Request::Exhausted => (self.max - self.max / HEADROOM).min(count / 2),
        };
        let close = std::panic::AssertUnwindSafe(|| (self.close)(target));
        std::panic::catch_unwind(close).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn out_of_descriptors() -> io::Error {
        io::Error::from_raw_os_error(EXHAUSTED[0])
    }

    #[test]
    fn a_refused_file_is_opened_once_databases_were_closed() {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closes = is_closed.clone();
        let limit = OpenFileLimit::new(usize::MAX, move |_| usize::from(!closes.swap(true, Ordering::AcqRel))).unwrap();
        let opened = open_with_retry(|| match is_closed.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(out_of_descriptors()),
        });
        assert!(opened.is_ok());
        drop(limit);
        let mut attempt_count = 0;
        let refused = open_with_retry(|| {
            attempt_count += 1;
            File::open("/nowhere")
        });
        assert!(refused.is_err() && attempt_count == 1, "other errors are returned at once");
    }

    #[test]
    fn files_above_the_limit_have_databases_closed() {
        let files: Arc<Mutex<Vec<CountedFile>>> = Arc::default();
        let to_close = files.clone();
        // Other tests of this process open files as well: their count does not fall below what this test opened.
        let _limit = OpenFileLimit::new(20, move |_| std::mem::take(&mut *to_close.lock()).len()).unwrap();
        files.lock().extend((0..20).map(|_| CountedFile::new()));
        let _one_more = CountedFile::new();
        while !files.lock().is_empty() {
            std::thread::yield_now();
        }
    }
}
