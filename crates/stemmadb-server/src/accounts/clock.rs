//! A monotonic wall clock for sessions: it never goes back, even if the system's clock does, so an expired session
//! stays expired.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::Clock;

/// A wall clock that never goes back while the process runs.
pub(super) struct MonotonicClock {
    clock: Clock,
    /// The latest returned time, since 1970, and when it was returned.
    latest: Mutex<(Duration, Instant)>,
}

impl MonotonicClock {
    pub(super) fn new(clock: Clock) -> Self {
        let latest = Mutex::new((system_time(&clock), Instant::now()));
        MonotonicClock { clock, latest }
    }

    /// Seconds since 1970: the system's time, or, if that went back, the latest returned time plus the time elapsed
    /// since.
    pub(super) fn now(&self) -> u64 {
        let (system, now) = (system_time(&self.clock), Instant::now());
        let mut latest = self.latest.lock();
        let advanced = latest.0 + now.saturating_duration_since(latest.1);
        *latest = (system.max(advanced), now);
        latest.0.as_secs()
    }
}

fn system_time(clock: &Clock) -> Duration {
    Duration::from_millis(u64::try_from(clock.now_ms()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_back() {
        let clock = Clock::fixed_at(1_000_000);
        let forward = MonotonicClock::new(clock.clone());
        assert!(forward.now() >= 1_000);
        clock.set(5_000_000);
        assert!(forward.now() >= 5_000);
        for earlier in [4_999_000, 1_000_000, 0, -1] {
            clock.set(earlier);
            assert!(forward.now() >= 5_000, "set back to {earlier}");
        }
        clock.set(6_000_000_000_000);
        assert!(forward.now() >= 6_000_000_000);
    }
}
