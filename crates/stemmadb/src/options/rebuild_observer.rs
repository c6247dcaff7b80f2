//! The function that observes the rebuild of a tree while a database is opened.

use std::sync::Arc;

use super::Progress;

/// Receives the progress of a rebuild.
#[derive(Clone, Default)]
pub(crate) struct RebuildObserver(Option<Arc<dyn Fn(Progress) + Send + Sync>>);

impl RebuildObserver {
    pub(super) fn new(observe: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        RebuildObserver(Some(Arc::new(observe)))
    }

    pub(crate) fn report(&self, progress: Progress) {
        if let Some(observe) = &self.0 {
            observe(progress);
        }
    }
}

impl std::fmt::Debug for RebuildObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "observed" } else { "not observed" })
    }
}
