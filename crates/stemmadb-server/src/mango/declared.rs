//! The library indexes of a database for its Mango indexes.

use std::collections::BTreeMap;
use std::sync::Arc;

use stemmadb::{ErrorKind, Index, Snapshot};

use super::index::{LIBRARY_PREFIX, ListedIndex, indexes_in, indexes_of};
use crate::design;
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::spawn_blocking;

/// All Mango indexes of the database, ordered by design document; for a shard, those of its virtual database.
///
/// # Errors
/// 500 if a design document can't be read.
pub(crate) fn indexes(served: &ServedDatabase, snapshot: &Snapshot) -> Result<Vec<ListedIndex>> {
    if let Some(whole) = served.whole() {
        return Ok(whole.designs.iter().flat_map(|design| indexes_in(design, false)).collect());
    }
    let mut found = Vec::new();
    for document in design::all(snapshot)? {
        found.extend(indexes_of(&document, served.is_partitioned())?);
    }
    Ok(found)
}

/// Creates the library indexes for all Mango indexes, and drops those that no Mango index needs any more. An index that
/// arrives by replication is created at the next call; until then, queries run without it.
///
/// # Errors
/// Those of the library.
pub(crate) fn sync_indexes(served: &ServedDatabase) -> Result<()> {
    let database = served.database();
    let mut missing: BTreeMap<String, Index> = BTreeMap::new();
    for index in indexes(served, &database.snapshot()?)?.iter().filter_map(ListedIndex::library_index) {
        missing.insert(index.name(), index);
    }
    for existing in database.indexes().list().into_iter().filter(|index| index.name.starts_with(LIBRARY_PREFIX)) {
        if missing.remove(&existing.name).is_none() {
            database.indexes().remove(&existing.name)?;
        }
    }
    for (name, index) in missing {
        match database.indexes().create(index) {
            Ok(()) => {}
            // The library has no indexes on paths such as `_id`, or on very many paths.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                tracing::debug!("index `{name}` was not created: {error}")
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// As [`sync_indexes`], in the background.
pub(crate) fn sync_indexes_later(served: Arc<ServedDatabase>) {
    spawn_blocking(move || {
        if let Err(failure) = sync_indexes(&served) {
            tracing::warn!(target: "stemma::database", "building the indexes of {}: {failure}", served.name());
        }
    });
}
