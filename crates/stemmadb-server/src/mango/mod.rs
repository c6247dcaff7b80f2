//! Mango as clients speak it: queries, and indexes, which are accepted and listed though every field is indexed already.

mod aggregate;
mod index;
mod prepared;
mod request;

use stemmadb::{Selector, all_of, field, not};

pub(crate) use aggregate::Aggregate;
pub(crate) use index::{Definition, LIBRARY_PREFIX, Listed, design_document, listed};
pub(crate) use prepared::PreparedQueries;
pub(crate) use request::Request;

/// The same without design documents, which no query finds.
pub(crate) fn plain(selector: Selector) -> Selector {
    all_of([selector, not(field("_id").begins_with("_design/"))])
}
