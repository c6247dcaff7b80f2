//! The runtime that a blocking job waits for.

#[cfg(test)]
use std::sync::Arc;

use tokio::runtime::Handle;
#[cfg(test)]
use tokio::runtime::Runtime;

/// The runtime that a job waits for.
#[derive(Clone)]
pub(super) enum JobRuntime {
    /// One that goes on by itself.
    For(Handle),
    /// One that goes on only while somebody waits, on the thread of whoever does: what happens in it does not depend on threads.
    #[cfg(test)]
    Within(Arc<Runtime>),
}

impl JobRuntime {
    /// Runs a future to its end.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match self {
            JobRuntime::For(handle) => handle.block_on(work),
            #[cfg(test)]
            JobRuntime::Within(runtime) => runtime.block_on(work),
        }
    }

    /// The runtime.
    pub(super) fn handle(&self) -> &Handle {
        match self {
            JobRuntime::For(handle) => handle,
            #[cfg(test)]
            JobRuntime::Within(runtime) => runtime.handle(),
        }
    }
}
