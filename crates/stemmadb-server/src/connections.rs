//! How many connections are there, of all and of one address?

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::auth::site;

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
    site: IpAddr,
}

impl Connections {
    /// Counts a connection; none if its address has so many already.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr, count_max: usize) -> Option<Connected> {
        let site = site(address);
        let mut counts = self.counts.lock();
        let count = counts.entry(site).or_insert(0);
        if *count >= count_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *count += 1;
        Some(Connected { connections: self.clone(), site })
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

impl Drop for Connected {
    fn drop(&mut self) {
        let mut counts = self.connections.counts.lock();
        if let Some(count) = counts.get_mut(&self.site) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.site);
            }
        }
    }
}
