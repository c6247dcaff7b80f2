//! CouchDB's Mango API: queries and indexes. Index definitions are stored and listed although every field is indexed
//! automatically.

mod choice;
mod declared;
mod index;
mod prepared;
mod request;

use stemmadb::{Selector, all_of, field, not};

pub(crate) use choice::{chosen_index, index_candidates, unused_index_warning};
pub(crate) use declared::{indexes, sync_indexes, sync_indexes_later};
pub(crate) use index::{
    IndexDefinition, LIBRARY_PREFIX, ListedIndex, add_to_design_document, indexes_in, without_index,
};
pub(crate) use prepared::PreparedQueries;
pub(crate) use request::FindRequest;

/// Restricts a selector to documents that are not design documents; queries never return those.
pub(crate) fn exclude_design_documents(selector: Selector) -> Selector {
    all_of([selector, not(field("_id").begins_with("_design/"))])
}
