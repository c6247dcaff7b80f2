//! Threads that serve the connections of a busy server, each with an event loop of its own: a request is answered by
//! the thread that reads it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::http::set_server_runtime;

/// One thread for each processor. They start with the first connection, and end when this is dropped.
#[derive(Default)]
pub(super) struct EventLoops {
    loops: OnceLock<Vec<EventLoop>>,
    /// Counts the connections that were placed.
    placed: AtomicUsize,
}

struct EventLoop {
    handle: Handle,
    _running: oneshot::Sender<()>,
}

impl EventLoops {
    /// The event loop for the next connection; none if no thread can be started. Must be called within the server's
    /// runtime.
    pub(super) fn next(&self) -> Option<Handle> {
        let loops = self.loops.get_or_init(|| {
            let count = available_parallelism().map_or(1, usize::from);
            (0..count).map_while(|_| EventLoop::start(Handle::current()).ok()).collect()
        });
        let number = self.placed.fetch_add(1, Ordering::Relaxed).checked_rem(loops.len())?;
        Some(loops[number].handle.clone())
    }
}

impl EventLoop {
    fn start(server: Handle) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (running, ended) = oneshot::channel();
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name("stemma-loop".to_owned()).spawn(move || {
            set_server_runtime(server);
            runtime.block_on(ended).ok();
            runtime.shutdown_background();
        })?;
        Ok(EventLoop { handle, _running: running })
    }
}

/// Registers a stream with the current event loop instead of the one that accepted it.
pub(super) fn adopt(stream: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.into_std()?)
}
