//! Idle connections: one that was silent for a while has no thread. The runtime waits for all of them with one system
//! call, and gives a connection that becomes readable to a thread of the pool.
//!
//! A busy connection never comes here: the thread that reads a request executes it and answers.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;

/// How long a thread waits for the next request before it leaves the connection.
const PATIENT_TIME: Duration = Duration::from_secs(1);
/// The same while more than half of the threads are in use.
const IMPATIENT_TIME: Duration = Duration::from_millis(10);
/// The interval between attempts to get a thread while all are in use.
const THREAD_WAIT: Duration = Duration::from_millis(20);

/// How long a thread waits for the next request; `None` if connections can't be parked here.
pub(super) fn waiting_time(thread_count: usize, thread_count_max: usize) -> Option<Duration> {
    match (cfg!(unix), thread_count > thread_count_max / 2) {
        (false, _) => None,
        (true, true) => Some(IMPATIENT_TIME),
        (true, false) => Some(PATIENT_TIME),
    }
}

/// Gives a connection to a thread of the pool as soon as there is one.
pub(super) async fn serve_soon(
    connection: &Arc<Connection>,
    work: impl FnOnce(&Arc<Connection>) + Send + Copy + 'static,
) {
    let mut waited = Duration::ZERO;
    loop {
        let Some(server) = connection.server.upgrade() else { break };
        let serving = connection.clone();
        if server.pool.run(move || work(&serving)) {
            return;
        }
        if waited >= server.state.config.limits.stall_timeout {
            break;
        }
        drop(server);
        tokio::time::sleep(THREAD_WAIT).await;
        waited += THREAD_WAIT;
    }
    connection.refuse();
    connection.end();
}

/// Waits, without a thread, until the connection is readable or its time is over; then the reading role `number` goes
/// on. Returns false if that is impossible.
#[cfg(unix)]
pub(super) fn park(connection: &Arc<Connection>, number: u64) -> bool {
    use std::os::fd::{AsFd, AsRawFd, RawFd};

    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    struct Parked(Arc<Connection>);

    impl AsRawFd for Parked {
        fn as_raw_fd(&self) -> RawFd {
            self.0.transport.as_fd().as_raw_fd()
        }
    }

    let Some(server) = connection.server.upgrade() else { return false };
    let idle_timeout = server.state.config.wire.idle_timeout;
    let _context = server.runtime.enter();
    // The descriptor stays open and the same as long as the connection lives, which the registration keeps alive.
    #[allow(deprecated, reason = "the function that replaces it is unsafe")]
    let registered = AsyncFd::with_interest(Parked(connection.clone()), Interest::READABLE);
    let Ok(parked) = registered else { return false };
    let connection = connection.clone();
    server.runtime.spawn(async move {
        // A connection with a running stream is not idle.
        let is_over = loop {
            match tokio::time::timeout(idle_timeout, parked.readable()).await {
                Ok(_) => break false,
                Err(_) if connection.has_running() => {}
                Err(_) => break true,
            }
        };
        // Ends the registration before another thread reads.
        drop(parked);
        if is_over {
            connection.end();
            return;
        }
        serve_soon(&connection, move |connection| connection.serve(number)).await;
    });
    true
}

#[cfg(not(unix))]
pub(super) fn park(_: &Arc<Connection>, _: u64) -> bool {
    false
}
