//! Where a placement is kept besides the shards.

use std::sync::Arc;

use stemmadb::{Database, Result, Value};

use super::placement::Placement;
use super::{KEY, NAMESPACE};

/// Keeps the placement of a virtual database: [`VirtualDatabase::open_in`](super::VirtualDatabase::open_in). A
/// [`Database`] that is used for nothing else is one.
///
/// ```
/// use std::sync::Arc;
/// use stemmadb::Database;
/// use stemmadb_federation::{Grouping, VirtualDatabase};
///
/// # fn main() -> stemmadb::Result<()> {
/// let (store, shard) = (Arc::new(Database::in_memory()), Database::in_memory());
/// VirtualDatabase::create_in(store.clone(), [("one", shard.clone())], Grouping::ById)?;
/// assert_eq!(VirtualDatabase::open_in(store, [("one", shard)])?.shards().len(), 1);
/// # Ok(())
/// # }
/// ```
pub trait PlacementStore: Send + Sync {
    /// Returns what was stored last; `None` at first.
    ///
    /// # Errors
    /// Any error that prevents reading.
    fn load(&self) -> Result<Option<Value>>;

    /// Stores a placement, and returns once it survives a crash: documents are deleted because of it.
    ///
    /// # Errors
    /// Any error that prevents that.
    fn store(&self, placement: &Value) -> Result<()>;
}

impl PlacementStore for Database {
    fn load(&self) -> Result<Option<Value>> {
        self.keys(NAMESPACE)?.get(KEY)
    }

    fn store(&self, placement: &Value) -> Result<()> {
        self.keys(NAMESPACE)?.set(KEY, placement)?;
        self.flush()
    }
}

/// A store of a placement.
#[derive(Clone)]
pub(crate) struct Holder(pub(super) Arc<dyn PlacementStore>);

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Holder")
    }
}

impl Holder {
    pub(super) fn load(&self) -> Result<Option<Placement>> {
        self.0.load()?.as_ref().map(Placement::parse).transpose()
    }

    pub(super) fn store(&self, placement: &Placement) -> Result<()> {
        self.0.store(&placement.to_value())
    }
}
