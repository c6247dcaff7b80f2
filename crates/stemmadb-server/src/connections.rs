//! Counts of connections, in all and by client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
