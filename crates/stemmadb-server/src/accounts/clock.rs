//! What time is it, for sessions? It only goes forward, however the system's clock is set: what was over stays over.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::Clock;

/// A clock that goes forward only, as long as the process runs.
pub(super) struct ForwardClock {
    clock: Clock,
    /// The latest time that was told, since 1970, and when that was.
    latest: Mutex<(Duration, Instant)>,
}

impl ForwardClock {
    pub(super) fn new(clock: Clock) -> Self {
        let latest = Mutex::new((told_by(&clock), Instant::now()));
        ForwardClock { clock, latest }
    }

    /// Seconds since 1970: by the clock, or by what has gone by since it told something later.
    pub(super) fn now(&self) -> u64 {
        let (told, now) = (told_by(&self.clock), Instant::now());
        let mut latest = self.latest.lock();
        let gone_on = latest.0 + now.saturating_duration_since(latest.1);
        *latest = (told.max(gone_on), now);
        latest.0.as_secs()
    }
}

fn told_by(clock: &Clock) -> Duration {
    Duration::from_millis(u64::try_from(clock.now_ms()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_forward_only() {
        let clock = Clock::fixed_at(1_000_000);
        let forward = ForwardClock::new(clock.clone());
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
