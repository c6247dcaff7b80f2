//! Adaptive polling: reading without sleeping, while that is usually successful.

use std::io;
use std::time::{Duration, Instant};

/// The score up to which successes count.
const SCORE_MAX: u32 = 8;
/// A success counts as much as so many failures: answers to reads come soon, those to durable writes later.
const SUCCESS: u32 = 2;
/// Without a success lately, one of so many waits polls.
const TRIAL_INTERVAL: u32 = 32;
/// A poll that did not run for so long has lost the processor to other work.
const LOSS_MIN: Duration = Duration::from_micros(500);
/// After a loss, polling pauses for so many times as long.
const PAUSE_FACTOR: u32 = 100;

/// Decides when the reads of one connection poll before they sleep, because waking a sleeping thread on another
/// processor takes longer than serving a request.
///
/// A read polls as long as at least a third of the polls are successful. A thread that polls on a busy machine may lose
/// the processor for milliseconds, where one that sleeps is woken at once: then polling pauses for a hundred times as
/// long.
#[derive(Debug)]
pub struct Polling {
    time: Duration,
    score: u32,
    waits: u32,
    paused_until: Option<Instant>,
}

impl Polling {
    /// Polls for at most `time`; zero: never.
    pub fn new(time: Duration) -> Self {
        Polling { time, score: SCORE_MAX, waits: 0, paused_until: None }
    }

    /// Whether the next read should poll. To be asked once for each read.
    pub fn is_due(&mut self) -> bool {
        self.waits = self.waits.wrapping_add(1);
        if self.time.is_zero() || self.score == 0 && !self.waits.is_multiple_of(TRIAL_INTERVAL) {
            return false;
        }
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.paused_until = None;
        true
    }

    /// Polls with `read`, which returns `WouldBlock` while there is nothing. Returns its result, or `None` if the time
    /// is over.
    pub fn poll(&mut self, mut read: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
        let start = Instant::now();
        let (until, mut last) = (start + self.time, start);
        let result = loop {
            let result = read();
            let now = Instant::now();
            let gap = now.duration_since(last);
            if gap >= LOSS_MIN {
                self.paused_until = Some(now + gap * PAUSE_FACTOR);
            }
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now < until => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break None,
                result => break Some(result),
            }
            last = now;
            // Lets the peer run if it is on this processor.
            std::thread::yield_now();
        };
        self.score = match result {
            Some(_) => (self.score + SUCCESS).min(SCORE_MAX),
            None => self.score.saturating_sub(1),
        };
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn polling_that_never_succeeds_is_given_up() {
        let mut polling = Polling::new(Duration::from_micros(1));
        let mut trials = Vec::new();
        for wait in 0..1000 {
            // A loss of the processor would pause it.
            polling.paused_until = None;
            if polling.is_due() {
                trials.push(wait);
                assert!(polling.poll(nothing).is_none());
            }
        }
        assert!(trials.len() < 100 && trials.last() > Some(&900), "{trials:?}");
        polling.paused_until = None;
        while !polling.is_due() {}
        assert_eq!(polling.poll(|| Ok(5)).unwrap().unwrap(), 5);
        polling.paused_until = None;
        assert!(polling.is_due(), "a success counts");
    }

    #[test]
    fn losing_the_processor_pauses_polling() {
        let mut polling = Polling::new(Duration::from_secs(10));
        assert!(polling.is_due());
        let mut reads = 0;
        let read = || {
            reads += 1;
            std::thread::sleep(2 * LOSS_MIN);
            if reads < 3 { nothing() } else { Ok(7) }
        };
        assert_eq!(polling.poll(read).unwrap().unwrap(), 7);
        let until = polling.paused_until.expect("it pauses");
        assert!(!polling.is_due() || Instant::now() >= until);
        while Instant::now() < until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        assert!(polling.is_due());
        assert_eq!(polling.paused_until, None);
    }

    #[test]
    fn no_time_means_no_polling() {
        assert!(!Polling::new(Duration::ZERO).is_due());
    }
}
