//! The async runtime on which blocking jobs wait for futures.

#[cfg(test)]
use std::sync::Arc;

use tokio::runtime::Handle;
#[cfg(test)]
use tokio::runtime::Runtime;

/// The async runtime on which a job waits for futures.
#[derive(Clone)]
pub(super) enum JobRuntime {
    /// A runtime with threads of its own.
    Threaded(Handle),
    /// A runtime that only runs while a caller waits, on the caller's thread, so that the order of events does not
    /// depend on threads.
    #[cfg(test)]
    CurrentThread(Arc<Runtime>),
}

impl JobRuntime {
    /// Runs a future to its end.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match self {
            JobRuntime::Threaded(handle) => handle.block_on(work),
            #[cfg(test)]
            JobRuntime::CurrentThread(runtime) => runtime.block_on(work),
        }
    }

    /// Returns a handle of the runtime.
    pub(super) fn handle(&self) -> &Handle {
        match self {
            JobRuntime::Threaded(handle) => handle,
            #[cfg(test)]
            JobRuntime::CurrentThread(runtime) => runtime.handle(),
        }
    }
}
