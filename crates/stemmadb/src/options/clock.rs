//! The clock: system time, or a time set by a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The source of the current time. Clones share one clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicI64>>);

impl Clock {
    /// Creates a clock that stands still at `now_ms`, in milliseconds since 1970, until it is set.
    #[must_use]
    pub fn fixed_at(now_ms: i64) -> Self {
        Clock(Some(Arc::new(AtomicI64::new(now_ms))))
    }

    /// Sets the time of a standing clock; has no effect on the system clock.
    pub fn set(&self, now_ms: i64) {
        if let Some(standing) = &self.0 {
            standing.store(now_ms, Ordering::SeqCst);
        }
    }

    /// The current time, in milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Some(standing) => standing.load(Ordering::SeqCst),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64),
        }
    }

    /// The current time, in microseconds since 1970; 0 before that.
    pub(crate) fn now_us(&self) -> u64 {
        match &self.0 {
            Some(standing) => u64::try_from(standing.load(Ordering::SeqCst)).unwrap_or(0).saturating_mul(1000),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64),
        }
    }

    /// The first millisecond at least `time` from now, and at least 1 ms from now.
    pub(crate) fn after(&self, time: Duration) -> i64 {
        let ms = i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        self.now_ms().saturating_add(ms.max(1))
    }

    /// The time until `end_ms`. A standing clock may be set at any time, so it is polled every few milliseconds.
    pub(crate) fn until(&self, end_ms: i64) -> Duration {
        match self.0 {
            Some(_) => Duration::from_millis(5),
            None => Duration::from_millis(u64::try_from(end_ms.saturating_sub(self.now_ms())).unwrap_or(0)),
        }
    }
}
