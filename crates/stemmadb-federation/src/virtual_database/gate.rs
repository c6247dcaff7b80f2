//! The shards of a virtual database as a read or a write sees them.
//!
//! Writes, and reads until they have their snapshots, hold the gate for reading; a move holds it for writing while it
//! gives its buckets to another shard. So no write goes to a shard that has lost the document's bucket, and no read
//! sees a document in two shards or in none.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use stemmadb::{DocumentId, Result};

use super::holder::Holder;
use super::placement::Placement;
use crate::member::OpenMember;
use crate::view::Losers;

/// The placement of a gate, which is held by nobody for long.
#[derive(Clone, Debug)]
pub(crate) struct ShownPlacement(Arc<Mutex<Arc<Placement>>>);

impl ShownPlacement {
    pub(crate) fn get(&self) -> Arc<Placement> {
        self.0.lock().clone()
    }
}

#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) placement: Arc<Placement>,
    /// The placement for those who only want to know it: a move holds the gate while it waits for servers.
    shown: ShownPlacement,
    /// The shards, in the order of the placement.
    pub(crate) members: Arc<[OpenMember]>,
    /// Keeps the placement besides the shards, and decides if it is given.
    pub(crate) holder: Option<Holder>,
    /// For each shard, the documents that it has although it does not own their buckets.
    pub(crate) losers: Losers,
}

impl Gate {
    pub(crate) fn new(placement: Placement, members: Vec<OpenMember>, holder: Option<Holder>) -> Self {
        let losers = Arc::new(vec![HashSet::new(); members.len()]);
        let placement = Arc::new(placement);
        let shown = ShownPlacement(Arc::new(Mutex::new(placement.clone())));
        Gate { placement, shown, members: members.into(), holder, losers }
    }

    /// The placement, without the gate.
    pub(crate) fn shown(&self) -> ShownPlacement {
        self.shown.clone()
    }

    /// Replaces the placement.
    pub(crate) fn place(&mut self, placement: Placement) {
        self.placement = Arc::new(placement);
        *self.shown.0.lock() = self.placement.clone();
    }

    /// The shard that has a document.
    pub(crate) fn owner(&self, id: &str) -> &OpenMember {
        &self.members[self.placement.shard_of(id)]
    }

    /// The shard of a name.
    pub(crate) fn member(&self, shard: &str) -> Result<&OpenMember> {
        Ok(&self.members[self.placement.index(shard)?])
    }

    /// Adds documents that a shard has without owning them.
    pub(crate) fn hide(&mut self, shard: usize, ids: impl IntoIterator<Item = DocumentId>) {
        Arc::make_mut(&mut self.losers)[shard].extend(ids);
    }

    /// Replaces the shards. None has documents that it does not own.
    pub(crate) fn replace(&mut self, placement: Placement, members: Vec<OpenMember>) {
        self.losers = Arc::new(vec![HashSet::new(); members.len()]);
        self.members = members.into();
        self.place(placement);
    }
}
