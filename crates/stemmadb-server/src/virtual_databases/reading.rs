//! What the library reads of all shards of a virtual database: queries, aggregations and changes.

use std::sync::Arc;

use stemmadb::{Query, Value};
use stemmadb_federation::{FederatedAggregation, FederatedFind, VirtualPast};
use tokio::sync::OwnedRwLockReadGuard;

use super::{EnteredVirtual, OpenVirtual};

/// An open virtual database as the library reads it.
pub(crate) struct FencedVirtual {
    pub(crate) open: Arc<OpenVirtual>,
    /// The state to read, if it is not the newest.
    past: Option<VirtualPast>,
    /// What keeps documents in their shards if some are on other servers: there, nothing else keeps a read from meeting
    /// a document twice or not at all. A read of the past needs all shards of then.
    fence: Option<OwnedRwLockReadGuard<()>>,
}

impl EnteredVirtual {
    /// The virtual database as the library reads it.
    pub(crate) fn into_reading(self) -> FencedVirtual {
        let past = self.past().cloned();
        let needs_fence = self.is_spread() || past.is_some();
        let open = self.open.clone();
        FencedVirtual { open, past, fence: needs_fence.then(|| self.into_guard()) }
    }
}

impl FencedVirtual {
    /// A query as of the state to read.
    pub(crate) fn find(&self, query: Query) -> FederatedFind {
        self.past.iter().fold(self.open.database.find(query), |find, past| find.as_of(past))
    }

    /// An aggregation as of the state to read.
    pub(crate) fn aggregation(&self, aggregation: &Value) -> FederatedAggregation {
        self.past.iter().fold(self.open.database.aggregation(aggregation), |one, past| one.as_of(past))
    }

    /// Takes what to hold until everything is read.
    pub(crate) fn take_fence(&mut self) -> Option<OwnedRwLockReadGuard<()>> {
        self.fence.take()
    }
}
