//! Counts operations in progress, so that a short operation can tell whether it is the only one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts operations in progress.
#[derive(Default)]
pub(crate) struct ConcurrencyTracker(Arc<AtomicUsize>);

/// One operation in progress, counted until it is dropped.
pub(crate) struct ActiveOperation {
    count: Arc<AtomicUsize>,
    /// Whether no other operation was in progress when this one started.
    pub(crate) is_alone: bool,
}

impl ConcurrencyTracker {
    pub(crate) fn enter(&self) -> ActiveOperation {
        let is_alone = self.0.fetch_add(1, Ordering::AcqRel) == 0;
        ActiveOperation { count: self.0.clone(), is_alone }
    }
}

impl Drop for ActiveOperation {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
