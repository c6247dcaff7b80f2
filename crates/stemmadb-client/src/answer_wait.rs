//! How a connection waits for an answer.

use std::io;
use std::time::{Duration, Instant};

use stemmadb_wire::SharedPolling;

/// An answer expected later than this is first waited for asleep.
const SLEEP_MIN: Duration = Duration::from_micros(120);
/// A sleep ends so long before the answer is expected: timers of the system are late by 50 microseconds, and waking
/// takes some tens.
const SLEEP_MARGIN: Duration = Duration::from_micros(90);
/// A new answer's share in the usual time: one of so many.
const USUAL_SHARE: u32 = 8;

/// The kind of request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A read, which is answered as soon as it is executed.
    Read,
    /// A write, which the disk delays.
    Write,
}

/// Waits for answers: polls where that is usually successful, because waking a sleeping thread takes longer than
/// executing a request. Answers to writes come later than those to reads, after a time that hardly changes: of it the
/// thread sleeps the most, and polls at its end.
pub(crate) struct AnswerWait {
    reads: SharedPolling,
    writes: SharedPolling,
    expected: Expected,
    /// When the request was sent whose answer is the next to arrive.
    sent: Option<Instant>,
    /// How long a write usually takes.
    usual_write: Duration,
}

impl AnswerWait {
    /// Polls for at most `time`; zero: never.
    pub(crate) fn new(time: Duration) -> Self {
        let reads = SharedPolling::new(time);
        let writes = reads.beside();
        AnswerWait { reads, writes, expected: Expected::Read, sent: None, usual_write: Duration::ZERO }
    }

    /// Notes that a request of this kind was sent, whose answer comes next.
    pub(crate) fn expect(&mut self, expected: Expected) {
        (self.expected, self.sent) = (expected, Some(Instant::now()));
    }

    /// Polls with `read`, which returns `WouldBlock` while there is nothing, perhaps after `sleep`, which returns as
    /// soon as there is something. `None`: nothing arrived in time.
    pub(crate) fn poll(
        &mut self,
        sleep: impl FnOnce(Duration) -> io::Result<()>,
        read: impl FnMut() -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let result = match self.expected {
            Expected::Read => self.reads.poll(read),
            Expected::Write => {
                let time = self.sleep_time();
                self.writes.poll_after(|| if time.is_zero() { Ok(()) } else { sleep(time) }, read)
            }
        };
        if result.is_some() {
            self.note_answer();
        }
        result
    }

    /// How long the thread can sleep before the answer to a write is near.
    fn sleep_time(&self) -> Duration {
        let passed = self.sent.map_or(Duration::ZERO, |sent| sent.elapsed());
        let left = self.usual_write.saturating_sub(passed);
        if left < SLEEP_MIN { Duration::ZERO } else { left - SLEEP_MARGIN }
    }

    /// Notes that something was received without polling.
    pub(crate) fn note_received(&mut self) {
        self.reads.note_received();
        self.note_answer();
    }

    fn note_answer(&mut self) {
        if let (Expected::Write, Some(sent)) = (self.expected, self.sent.take()) {
            let time = sent.elapsed();
            self.usual_write = match self.usual_write.is_zero() {
                true => time,
                false => self.usual_write - self.usual_write / USUAL_SHARE + time / USUAL_SHARE,
            };
        }
        self.expected = Expected::Read;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_writes_is_slept_but_for_its_end() {
        let mut wait = AnswerWait::new(Duration::from_secs(10));
        let mut slept = None;
        for _ in 0..20 {
            wait.expect(Expected::Write);
            slept = None;
            let read = || Ok(1);
            let sleep = |time| {
                slept = Some(time);
                std::thread::sleep(Duration::from_millis(20));
                Ok(())
            };
            // The first write of a connection, and one after a pause of the machine, is not slept for.
            if wait.usual_write.is_zero() {
                std::thread::sleep(Duration::from_millis(20));
            }
            wait.poll(sleep, read);
        }
        assert!(slept.unwrap() >= Duration::from_millis(10), "{slept:?}");
        // A read is not slept for.
        wait.expect(Expected::Read);
        wait.poll(|_| panic!("it sleeps before a read"), || Ok(1));
    }

    #[test]
    fn polls_for_writes_that_fail_do_not_end_those_for_reads() {
        let mut wait = AnswerWait::new(Duration::from_micros(1));
        for _ in 0..100 {
            wait.expect(Expected::Write);
            wait.poll(|_| Ok(()), || Err(io::ErrorKind::WouldBlock.into()));
            wait.note_received();
        }
        // Connections of other tests may be active, and a machine may be busy: then it does not poll.
        let begun = Instant::now();
        let mut polls = 0;
        while polls == 0 && begun.elapsed() < Duration::from_secs(60) {
            wait.expect(Expected::Read);
            wait.poll(
                |_| Ok(()),
                || {
                    polls += 1;
                    Ok(1)
                },
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(polls > 0, "reads are not polled for");
    }

    #[test]
    fn an_answer_that_was_slept_for_counts() {
        let mut wait = AnswerWait::new(Duration::ZERO);
        wait.expect(Expected::Write);
        std::thread::sleep(Duration::from_millis(5));
        assert!(wait.poll(|_| Ok(()), || panic!("it polls")).is_none());
        wait.note_received();
        assert!(wait.usual_write >= Duration::from_millis(5));
        assert_eq!(wait.expected, Expected::Read);
    }
}
