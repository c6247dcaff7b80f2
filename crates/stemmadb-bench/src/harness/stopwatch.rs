//! A stopwatch for short operations, which subtracts the cost of reading the clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// The clock that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Wall-clock time: what a caller waits for.
    Wall,
    /// Processor time of the current thread. It excludes time taken by other processes, but also waiting for a disk, so
    /// it suits only reads from memory.
    Thread,
}

/// A clock with its own measured overhead.
pub(crate) struct Stopwatch {
    clock: Clock,
    overhead: Duration,
}

impl Stopwatch {
    /// Measures the clock's overhead.
    pub(crate) fn new(clock: Clock) -> Self {
        let mut looks: Vec<Duration> = (0..10_001).map(|_| clock.since(clock.now())).collect();
        looks.sort();
        Stopwatch { clock, overhead: looks[looks.len() / 2] }
    }

    /// Returns the nanoseconds per operation of `work`, which performs `count` operations.
    pub(crate) fn nanoseconds(&self, count: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let start = self.clock.now();
        work()?;
        let elapsed = self.clock.since(start);
        Ok(elapsed.saturating_sub(self.overhead).as_nanos().max(1) as f64 / count as f64)
    }
}

impl Clock {
    fn now(self) -> Duration {
        let time = clock_gettime(match self {
            Clock::Wall => ClockId::Monotonic,
            Clock::Thread => ClockId::ThreadCPUTime,
        });
        // Both clocks start in the past, so their values are not negative.
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }

    fn since(self, start: Duration) -> Duration {
        self.now().saturating_sub(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_counts_waiting() {
        let wait = || {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        assert!(Stopwatch::new(Clock::Wall).nanoseconds(1, wait).unwrap() > 19e6);
        assert!(Stopwatch::new(Clock::Thread).nanoseconds(1, wait).unwrap() < 10e6);
    }

    #[test]
    fn clock_overhead_is_subtracted() {
        for clock in [Clock::Wall, Clock::Thread] {
            let stopwatch = Stopwatch::new(clock);
            let mut nothing: Vec<f64> = (0..101).map(|_| stopwatch.nanoseconds(1, || Ok(())).unwrap()).collect();
            nothing.sort_by(f64::total_cmp);
            assert!(nothing[50] < 1_000.0, "{clock:?}: {}", nothing[50]);
        }
    }
}
