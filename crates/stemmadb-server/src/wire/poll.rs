//! Adaptive polling, by few threads at a time.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stemmadb_wire::Polling;

/// The threads of this process that poll now.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// Half of the processors; the others are left to the peers.
fn polling_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).max(1)))
}

/// Decides when the reads of one connection poll: as [`Polling`], and as long as few threads do.
#[derive(Debug)]
pub(crate) struct SharedPolling(Polling);

impl SharedPolling {
    pub(crate) fn new(time: Duration) -> Self {
        SharedPolling(Polling::new(time))
    }

    /// Polls with `read`, which returns `WouldBlock` while there is nothing. Returns its result, or `None` if the time
    /// is over.
    pub(crate) fn poll(&mut self, read: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
        if !self.0.is_due() {
            return None;
        }
        let is_allowed = POLLING.fetch_add(1, Ordering::Relaxed) < polling_max();
        let result = if is_allowed { self.0.poll(read) } else { None };
        POLLING.fetch_sub(1, Ordering::Relaxed);
        result
    }
}
