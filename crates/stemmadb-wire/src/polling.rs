//! Adaptive polling: reading without sleeping, while that is usually successful.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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

/// Decides when the reads of one connection poll.
///
/// A read polls as long as at least a third of the polls are successful. A thread that polls on a busy machine may lose
/// the processor for milliseconds, where one that sleeps is woken at once: then polling pauses for a hundred times as
/// long.
#[derive(Debug)]
struct Polling {
    time: Duration,
    score: u32,
    waits: u32,
    paused_until: Option<Instant>,
}

impl Polling {
    /// Polls for at most `time`; zero: never.
    fn new(time: Duration) -> Self {
        Polling { time, score: SCORE_MAX, waits: 0, paused_until: None }
    }

    /// Whether the next read should poll. To be asked once for each read.
    fn is_due(&mut self) -> bool {
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
    fn poll(&mut self, mut read: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
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

/// The threads of this process that poll now.
static POLLING: AtomicUsize = AtomicUsize::new(0);
/// When something was received, in milliseconds of [`now_ms`], by connections whose numbers share a place.
static RECEIVED: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];
/// The number of the next connection.
static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(0);
/// A connection is active for so long after it received something.
const ACTIVE_MS: u32 = 2;

/// The milliseconds since some time before the first call, at least [`ACTIVE_MS`].
fn now_ms() -> u32 {
    static START: OnceLock<Instant> = OnceLock::new();
    // Wrapping around after seven weeks, it takes a silent connection for an active one for two milliseconds.
    START.get_or_init(Instant::now).elapsed().as_millis() as u32 + 1 + ACTIVE_MS
}

/// Half of the processors, at most 16; the others are left to the peers.
fn polling_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).clamp(1, RECEIVED.len() / 2))
    })
}

/// Decides when the reads of one connection poll before they sleep, because waking a sleeping thread on another
/// processor takes longer than serving a request.
///
/// They do while it is usually successful, and as long as no more connections of the process are active than half of
/// its processors: with more, there is other work for a processor that polls.
#[derive(Debug)]
pub struct SharedPolling {
    polling: Polling,
    connection: usize,
}

impl SharedPolling {
    /// Polls for at most `time`; zero: never.
    pub fn new(time: Duration) -> Self {
        SharedPolling {
            polling: Polling::new(time),
            connection: NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed) % RECEIVED.len(),
        }
    }

    /// A further one for the same connection, for reads with other chances of success.
    #[must_use]
    pub fn beside(&self) -> Self {
        SharedPolling { polling: Polling::new(self.polling.time), connection: self.connection }
    }

    /// Polls with `read`, which returns `WouldBlock` while there is nothing. Returns its result, or `None` if the time
    /// is over, or it should sleep at once. To be called once for each read.
    pub fn poll(&mut self, read: impl FnMut() -> io::Result<usize>) -> Option<io::Result<usize>> {
        self.poll_after(|| Ok(()), read)
    }

    /// As [`SharedPolling::poll`]; before it polls, it calls `sleep`, which returns when something is likely to arrive.
    pub fn poll_after(
        &mut self,
        sleep: impl FnOnce() -> io::Result<()>,
        read: impl FnMut() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if !self.polling.is_due() || self.others_active() >= polling_max() {
            return None;
        }
        match sleep() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return None,
            Err(error) => return Some(Err(error)),
            Ok(()) => {}
        }
        let is_allowed = POLLING.fetch_add(1, Ordering::Relaxed) < polling_max();
        let result = if is_allowed { self.polling.poll(read) } else { None };
        POLLING.fetch_sub(1, Ordering::Relaxed);
        if result.is_some() {
            self.note_received();
        }
        result
    }

    /// Notes that something was received without polling.
    pub fn note_received(&self) {
        RECEIVED[self.connection].store(now_ms(), Ordering::Relaxed);
    }

    /// The number of other connections that are active.
    fn others_active(&self) -> usize {
        let now = now_ms();
        let is_active = |received: &AtomicU32| now.wrapping_sub(received.load(Ordering::Relaxed)) <= ACTIVE_MS;
        let others = RECEIVED.iter().enumerate().filter(|(place, _)| *place != self.connection);
        others.filter(|(_, received)| is_active(received)).count()
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

    /// One test, because the state is the process's.
    #[test]
    fn connections_poll_while_few_are_active() {
        let time = Duration::from_secs(10);
        let count = polling_max() + 1;
        let mut connections: Vec<_> = (0..count).map(|_| SharedPolling::new(time)).collect();
        let polls = |connections: &mut [SharedPolling]| {
            let first = &mut connections[0];
            (first.polling.paused_until, first.polling.score) = (None, SCORE_MAX);
            let mut calls = 0;
            first.poll(|| {
                calls += 1;
                if calls < 3 { nothing() } else { Ok(1) }
            })
        };
        // As many as may poll are active, this one included.
        connections[2.min(count)..].iter().for_each(SharedPolling::note_received);
        assert!(polls(&mut connections).is_some());
        // One more is: checked until its time was not over between the two calls.
        let begun = Instant::now();
        loop {
            connections[1..].iter().for_each(SharedPolling::note_received);
            let (noted, polled) = (now_ms(), polls(&mut connections));
            if now_ms() - noted <= 1 {
                break assert!(polled.is_none());
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the machine is too busy");
        }
        // They are quiet again.
        while polls(&mut connections).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn no_time_means_no_polling() {
        assert!(!Polling::new(Duration::ZERO).is_due());
    }
}
