//! What time is it? The system's clock, or one that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicI64>>);

impl Clock {
    /// One that stands still until it is set, at a millisecond since 1970.
    #[must_use]
    pub fn standing_at(now_ms: i64) -> Self {
        Clock(Some(Arc::new(AtomicI64::new(now_ms))))
    }

    /// Sets it, if it is one that stands.
    pub fn set(&self, now_ms: i64) {
        if let Some(standing) = &self.0 {
            standing.store(now_ms, Ordering::SeqCst);
        }
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        match &self.0 {
            Some(standing) => standing.load(Ordering::SeqCst),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64),
        }
    }

    /// The first millisecond that lies `time`, or the millisecond that is the least, after now.
    pub(crate) fn after(&self, time: Duration) -> i64 {
        let ms = i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
        self.now_ms().saturating_add(ms.max(1))
    }

    /// How long it is until a millisecond. Of a clock that stands nobody knows: it is looked at often.
    pub(crate) fn until(&self, end_ms: i64) -> Duration {
        match self.0 {
            Some(_) => Duration::from_millis(5),
            None => Duration::from_millis(u64::try_from(end_ms.saturating_sub(self.now_ms())).unwrap_or(0)),
        }
    }
}
