//! Operations about all documents of a virtual database: divided by its shards, or answered by the library from all of
//! them. Queries are in `operations::queries`, where both kinds of databases differ little.
//!
//! Shards on other servers are read by the library, and operations about one document are passed on to its shard's
//! server, in the name of the user. Others that need such a shard are refused: they are sent over HTTP.

mod declarations;
mod documents;
mod elsewhere;
mod feeds;
mod transactions;
mod views;
mod whole;

use std::collections::BTreeMap;

use stemmadb_wire::Operation;

use super::super::call::Call;
use super::super::failure::Result;
use crate::virtual_databases::Layout;
pub(super) use elsewhere::pass_on_if_elsewhere;

/// An operation on a virtual database.
type ShardsOperation = fn(&Call<'_>) -> Result<Vec<u8>>;

/// What executes an operation on a virtual database; none if that is what executes it on others: it is about a part of
/// the database, or finds the shards itself.
pub(super) fn operation(operation: Operation) -> Option<ShardsOperation> {
    Some(match operation {
        Operation::DeleteDatabase => whole::delete,
        Operation::Info => whole::info,
        Operation::Flush => whole::flush,
        Operation::Keep => whole::keep,
        Operation::Retention => whole::retention,
        Operation::GetMany => documents::get_many,
        Operation::Bulk => documents::bulk,
        Operation::DocumentAt => documents::document_at,
        Operation::Undelete => documents::undelete,
        Operation::Transact => transactions::transact,
        Operation::UpdateWhere => transactions::update_where,
        Operation::Batch => transactions::batch,
        Operation::Changes => feeds::changes,
        Operation::Subscribe => feeds::subscribe,
        Operation::Watch => feeds::watch,
        Operation::ViewList => views::list,
        Operation::ViewInfo => views::info,
        Operation::ViewQuery => views::query,
        Operation::IndexCreate => declarations::create_index,
        Operation::IndexRemove => declarations::remove_index,
        Operation::IndexList => declarations::list_indexes,
        _ => return None,
    })
}

/// Divides items by the shards that have their documents.
fn divide<T>(layout: &Layout, items: impl IntoIterator<Item = T>, id: impl Fn(&T) -> &str) -> BTreeMap<usize, Vec<T>> {
    let mut parts: BTreeMap<usize, Vec<T>> = BTreeMap::new();
    for item in items {
        parts.entry(layout.index_of(id(&item))).or_default().push(item);
    }
    parts
}
