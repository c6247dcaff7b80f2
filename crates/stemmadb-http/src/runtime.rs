//! The async runtime on which blocking calls wait for futures.

use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};

/// The async runtime on which a blocking call waits for futures.
#[derive(Clone)]
pub enum BlockingRuntime {
    /// A runtime with threads of its own.
    Threaded(Handle),
    /// A runtime that only runs while a caller waits, on the caller's thread, so that the order of events does not
    /// depend on threads.
    CurrentThread(Arc<Runtime>),
}

impl BlockingRuntime {
    /// Runs a future to its end.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match self {
            BlockingRuntime::Threaded(handle) => handle.block_on(work),
            BlockingRuntime::CurrentThread(runtime) => runtime.block_on(work),
        }
    }

    /// Returns a handle of the runtime.
    pub fn handle(&self) -> &Handle {
        match self {
            BlockingRuntime::Threaded(handle) => handle,
            BlockingRuntime::CurrentThread(runtime) => runtime.handle(),
        }
    }
}
