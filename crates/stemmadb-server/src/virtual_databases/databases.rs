//! The databases that have the documents of a request: one, or the shards of a virtual database.

use std::collections::HashMap;
use std::sync::Arc;

use stemmadb::{Sequence, Snapshot};
use stemmadb_federation::ShardMap;
use tokio::sync::{OwnedRwLockReadGuard, watch};

use super::remote::Shard;

use crate::directory::ServedDatabase;
use crate::error::Result;

/// The shards in the order of the map's names, and which of them has which documents.
pub(crate) struct Layout {
    /// None for a database that is not virtual.
    map: Option<ShardMap>,
    own: Arc<ServedDatabase>,
    /// All shards if none is on another server; else only those that are here.
    shards: Vec<Arc<ServedDatabase>>,
    /// All shards, wherever they are; none for a database that is not virtual.
    all: Vec<Shard>,
}

impl Layout {
    pub(super) fn of_shards(map: ShardMap, own: Arc<ServedDatabase>, by_name: &HashMap<String, Shard>) -> Self {
        let all: Vec<Shard> = map.names().iter().filter_map(|name| by_name.get(name).cloned()).collect();
        let shards: Vec<_> = all.iter().filter_map(|shard| shard.here().cloned()).collect();
        Layout { map: Some(map), own, shards, all }
    }

    /// Whether shards are on other servers: requests are then divided by `handlers::spread`.
    pub(crate) fn is_spread(&self) -> bool {
        self.shards.len() < self.all.len()
    }

    /// All shards, wherever they are.
    pub(crate) fn all(&self) -> &[Shard] {
        &self.all
    }

    /// Which shard has which documents; `None` for a database that is not virtual.
    pub(crate) fn map(&self) -> Option<&ShardMap> {
        self.map.as_ref()
    }

    /// The names of the shards, in their order.
    pub(crate) fn names(&self) -> &[String] {
        self.map.as_ref().map_or(&[], ShardMap::names)
    }

    /// Receivers that are notified when the shards change.
    pub(crate) fn published(&self) -> Vec<watch::Receiver<Sequence>> {
        match self.is_spread() {
            true => self.all.iter().map(Shard::published).collect(),
            false => self.shards.iter().map(|served| served.published()).collect(),
        }
    }

    /// The version of the placement; `None` for a database that is not virtual.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.map.as_ref().map(ShardMap::epoch)
    }

    /// Whether a move is in progress: a shard may have copies of documents that another one owns.
    pub(crate) fn is_moving(&self) -> bool {
        self.map.as_ref().is_some_and(|map| map.planned_move().is_some())
    }

    /// Whether documents have ever changed their shard.
    pub(crate) fn has_moved(&self) -> bool {
        self.map.as_ref().is_some_and(ShardMap::has_moved)
    }

    /// The shards; if some are on other servers, only those that are here.
    pub(crate) fn shards(&self) -> &[Arc<ServedDatabase>] {
        &self.shards
    }

    /// The index of the shard that has a document.
    pub(crate) fn index_of(&self, id: &str) -> usize {
        self.map.as_ref().map_or(0, |map| map.shard_of(id))
    }

    /// The database that has a document. Only for shards that are all here.
    pub(crate) fn of(&self, id: &str) -> &Arc<ServedDatabase> {
        match id.starts_with("_local/") {
            true => &self.own,
            false => &self.shards[self.index_of(id)],
        }
    }

    /// The shard that has a document.
    pub(crate) fn shard_of(&self, id: &str) -> Shard {
        match self.map.is_some() && !id.starts_with("_local/") {
            true => self.all[self.index_of(id)].clone(),
            false => Shard::Here(self.of(id).clone()),
        }
    }
}

/// The databases that have the documents of a request. As long as it exists, no document changes its shard.
pub(crate) struct Databases {
    layout: Arc<Layout>,
    _guard: Option<OwnedRwLockReadGuard<()>>,
}

/// The items of a request that belong to one database, with their positions in the request.
type Part<T> = (Arc<ServedDatabase>, Vec<(usize, T)>);

impl Databases {
    /// A database with documents of its own.
    pub(crate) fn one(served: Arc<ServedDatabase>) -> Self {
        let layout = Layout { map: None, own: served.clone(), shards: vec![served], all: Vec::new() };
        Databases { layout: Arc::new(layout), _guard: None }
    }

    pub(super) fn entered(layout: Arc<Layout>, guard: OwnedRwLockReadGuard<()>) -> Self {
        Databases { layout, _guard: Some(guard) }
    }

    /// The database that has a document.
    pub(crate) fn of(&self, id: &str) -> &Arc<ServedDatabase> {
        self.layout.of(id)
    }

    /// The databases that have documents: the shards, or the only database.
    pub(crate) fn shards(&self) -> &[Arc<ServedDatabase>] {
        self.layout.shards()
    }

    /// The only database, if it is not virtual.
    pub(crate) fn only(&self) -> Option<&Arc<ServedDatabase>> {
        self.layout.map.is_none().then_some(&self.layout.own)
    }

    /// All of them, also the one with the `_local` documents of a virtual database.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ServedDatabase>> {
        let own = self.layout.map.is_some().then_some(&self.layout.own);
        self.layout.shards.iter().chain(own)
    }

    /// Divides items by the databases that have their documents.
    pub(crate) fn divide<T>(&self, items: Vec<T>, id: impl Fn(&T) -> &str) -> Vec<Part<T>> {
        let mut parts: Vec<Part<T>> = Vec::new();
        for (position, item) in items.into_iter().enumerate() {
            let served = self.of(id(&item));
            match parts.iter_mut().find(|(of, _)| Arc::ptr_eq(of, served)) {
                Some((_, part)) => part.push((position, item)),
                None => parts.push((served.clone(), vec![(position, item)])),
            }
        }
        parts
    }

    /// What is read of them: documents may change their shards afterwards.
    ///
    /// # Errors
    /// Those of the library.
    pub(crate) fn snapshots(self) -> Result<Snapshots> {
        let snapshots = self.layout.shards.iter().map(|served| Ok(served.database().snapshot()?));
        Ok(Snapshots { snapshots: snapshots.collect::<Result<_>>()?, layout: self.layout })
    }
}

/// A snapshot of each of a request's databases.
pub(crate) struct Snapshots {
    layout: Arc<Layout>,
    snapshots: Vec<Snapshot>,
}

impl Snapshots {
    /// The database that has a document, and its snapshot.
    pub(crate) fn of(&self, id: &str) -> (&Arc<ServedDatabase>, &Snapshot) {
        let index = self.layout.index_of(id);
        (&self.layout.shards[index], &self.snapshots[index])
    }

    /// The number of databases.
    pub(crate) fn len(&self) -> usize {
        self.snapshots.len()
    }

    /// One of the databases and its snapshot.
    pub(crate) fn at(&self, index: usize) -> (&Arc<ServedDatabase>, &Snapshot) {
        (&self.layout.shards[index], &self.snapshots[index])
    }

    /// Whether the document counts in this database: it may be a copy that is being moved.
    pub(crate) fn is_owner(&self, index: usize, id: &str) -> bool {
        self.layout.index_of(id) == index
    }
}
