//! Counts of connections, in all and by client address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::http::client_network;

/// Connections by the address they come from.
#[derive(Default)]
pub(crate) struct Connections {
    counts: Mutex<HashMap<IpAddr, usize>>,
    /// How many were closed since their address had so many already.
    refused: AtomicU64,
}

/// One connection, for as long as it lasts.
pub(crate) struct Connected {
    connections: Arc<Connections>,
    network: IpAddr,
}

impl Connections {
    /// Counts a connection; none if its address has so many already.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, count_max: usize) -> Option<Connected> {
        let network = client_network(address);
        let mut counts = self.counts.lock();
        let count = counts.entry(network).or_insert(0);
        if *count >= count_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(Connected { connections: self.clone(), network })
    }

    /// How many were refused.
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().values().sum()
    }
}

/// What a connection occupies until it is over. A WebSocket that the connection becomes keeps it.
pub(crate) struct ConnectionSlot {
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) _counted: Connected,
}

impl Drop for Connected {
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
