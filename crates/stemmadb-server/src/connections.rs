//! Counts of connections, in all and by client address, and of the requests of one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::http::client_network;

/// Counts of connections by client network.
#[derive(Default)]
pub(crate) struct Connections {
    counts: Mutex<HashMap<IpAddr, usize>>,
    /// The number of connections that were refused because their network had too many.
    refused: AtomicU64,
}

/// A counted connection; uncounted when dropped.
pub(crate) struct CountedConnection {
    connections: Arc<Connections>,
    network: IpAddr,
}

impl Connections {
    /// Counts a connection. Returns `None` if its network already has `count_max`.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, count_max: usize) -> Option<CountedConnection> {
        let network = client_network(address);
        let mut counts = self.counts.lock();
        let count = counts.entry(network).or_insert(0);
        if *count >= count_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(CountedConnection { connections: self.clone(), network })
    }

    /// The number of refused connections.
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().values().sum()
    }
}

/// The slot that a connection occupies until it is closed, also after an upgrade to a WebSocket.
pub(crate) struct ConnectionSlot {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) _counted: CountedConnection,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut counts = self.connections.counts.lock();
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
    }
}

/// Waits for bytes of a local socket, and returns up to `bytes_max` of them; `None` at the end. Waits without a buffer:
/// most connections are idle.
#[cfg(unix)]
pub(crate) async fn next_chunk(stream: &tokio::net::unix::OwnedReadHalf, bytes_max: usize) -> Option<Vec<u8>> {
    loop {
        stream.readable().await.ok()?;
        let mut chunk = vec![0; bytes_max];
        match stream.try_read(&mut chunk) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return None,
            Ok(count) => {
                chunk.truncate(count);
                return Some(chunk);
            }
        }
    }
}

/// The requests of a connection that are under way, and since when there are none.
#[derive(Default)]
pub(crate) struct Activity(Mutex<(usize, Option<Instant>)>);

/// A request that is under way, until the last byte of its response is sent.
pub(crate) struct RunningRequest(Arc<Activity>);

impl Activity {
    pub(crate) fn begin(self: &Arc<Self>) -> RunningRequest {
        self.0.lock().0 += 1;
        RunningRequest(self.clone())
    }

    /// Whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().0 == 0
    }

    /// Returns once there was no request for `time`.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let begun = Instant::now();
        loop {
            let (running, since) = *self.0.lock();
            let end = since.unwrap_or(begun) + time;
            match (running, end.checked_duration_since(Instant::now())) {
                (0, None) => return,
                (0, Some(rest)) => tokio::time::sleep(rest).await,
                _ => tokio::time::sleep(time).await,
            }
        }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut activity = self.0.0.lock();
        *activity = (activity.0 - 1, Some(Instant::now()));
    }
}
