//! How a thread that blocks waits for what goes on in a runtime.

#[cfg(test)]
use std::sync::Arc;

use tokio::runtime::Handle;
#[cfg(test)]
use tokio::runtime::Runtime;

/// The runtime that a job waits for.
#[derive(Clone)]
pub(super) enum Waits {
    /// One that goes on by itself.
    For(Handle),
    /// One that goes on only while somebody waits, on the thread of whoever does: what happens in it does not depend on threads.
    #[cfg(test)]
    Within(Arc<Runtime>),
}

impl Waits {
    /// Runs a future to its end.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match self {
            Waits::For(handle) => handle.block_on(work),
            #[cfg(test)]
            Waits::Within(runtime) => runtime.block_on(work),
        }
    }

    /// The runtime.
    pub(super) fn handle(&self) -> &Handle {
        match self {
            Waits::For(handle) => handle,
            #[cfg(test)]
            Waits::Within(runtime) => runtime.handle(),
        }
    }
}
