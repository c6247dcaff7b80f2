//! Adaptive polling: a thread polls its socket for a bounded time before it sleeps, because waking a sleeping thread on
//! another processor takes longer than serving a request.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The threads of this process that poll now.
static POLLING: AtomicUsize = AtomicUsize::new(0);

/// The score up to which successes count.
const SCORE_MAX: u32 = 8;
/// Without a success lately, one of so many waits polls.
const TRIAL_INTERVAL: u32 = 32;

/// Decides when the reads of one connection poll: as long as polling is usually successful.
#[derive(Debug)]
pub(super) struct Polling {
    time: Duration,
    score: u32,
    waits: u32,
}

/// Half of the processors; the others are left to the peers.
fn polling_max() -> usize {
    static MAX: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).max(1)))
}

impl Polling {
    pub(super) fn new(time: Duration) -> Self {
        Polling { time, score: SCORE_MAX, waits: 0 }
    }

    /// Polls with `read`, which returns `WouldBlock` while there is nothing. Returns its result, or `None` if the time
    /// is over.
    pub(super) fn poll(&mut self, mut read: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
        self.waits = self.waits.wrapping_add(1);
        if self.time.is_zero() || self.score == 0 && !self.waits.is_multiple_of(TRIAL_INTERVAL) {
            return None;
        }
        if POLLING.fetch_add(1, Ordering::Relaxed) >= polling_max() {
            POLLING.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let until = Instant::now() + self.time;
        let result = loop {
            match read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => break Some(result),
            }
            if Instant::now() >= until {
                break None;
            }
            // Lets the peer run if it is on this processor.
            std::thread::yield_now();
        };
        POLLING.fetch_sub(1, Ordering::Relaxed);
        self.score = if result.is_some() { (self.score + 1).min(SCORE_MAX) } else { self.score / 2 };
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_that_never_succeeds_is_given_up() {
        let mut polling = Polling::new(Duration::from_micros(1));
        let mut read_count = 0;
        let mut last_trial = 0;
        for wait in 0..1000 {
            let before = read_count;
            let result = polling.poll(|| {
                read_count += 1;
                Err(io::ErrorKind::WouldBlock.into())
            });
            assert!(result.is_none());
            if read_count > before {
                last_trial = wait;
            }
        }
        assert!(read_count < 1000 && last_trial > 900, "{read_count} {last_trial}");
    }
}
