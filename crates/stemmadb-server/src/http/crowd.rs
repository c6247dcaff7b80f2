//! Is somebody at it alone? Short work is done where it is asked for by who is, and elsewhere by who is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those who are at something.
#[derive(Default)]
pub(crate) struct Crowd(Arc<AtomicUsize>);

/// One of them, as long as it lives.
pub(crate) struct Member {
    count: Arc<AtomicUsize>,
    /// Whether nobody else was at it before.
    pub(crate) is_alone: bool,
}

impl Crowd {
    pub(crate) fn join(&self) -> Member {
        let is_alone = self.0.fetch_add(1, Ordering::AcqRel) == 0;
        Member { count: self.0.clone(), is_alone }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
