//! Updates and deletions of all documents that match a query, each in one transaction.

use crate::Result;
use crate::engine::{Edit, Store, Transaction};
use crate::options::Durability;
use crate::query::Query;
use crate::revision::DocumentId;
use crate::value::Patch;

/// Applies `patch` to every row of `query`; returns how many documents changed.
pub(crate) fn update_where(store: &Store, durability: Durability, query: Query, patch: &Patch) -> Result<u64> {
    patch.check()?;
    write_each(store, durability, query, |transaction, id| {
        transaction.edit(Edit::Update { id, revision: None, patch: patch.clone() }).map(|_| ())
    })
}

/// Deletes every row of `query`; returns how many documents were deleted.
pub(crate) fn delete_where(store: &Store, durability: Durability, query: Query) -> Result<u64> {
    write_each(store, durability, query, |transaction, id| match transaction.get(id.as_str())? {
        Some(document) => transaction.edit(Edit::Delete { id, revision: *document.revision() }).map(|_| ()),
        None => Ok(()),
    })
}

/// Runs `edit` for every row of `query`, in one transaction; returns the number of revisions written.
fn write_each(
    store: &Store,
    durability: Durability,
    query: Query,
    mut edit: impl FnMut(&mut Transaction<'_>, DocumentId) -> Result<()>,
) -> Result<u64> {
    query.check()?;
    store.write(durability, |transaction| {
        let ids = transaction.snapshot()?.find(query).ids()?.collect::<Result<Vec<_>>>()?;
        let count_before = transaction.edit_count();
        ids.into_iter().try_for_each(|id| edit(transaction, id))?;
        Ok((transaction.edit_count() - count_before) as u64)
    })
}
