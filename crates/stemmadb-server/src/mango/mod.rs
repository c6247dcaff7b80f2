//! Mango as clients speak it: queries, and indexes, which are accepted and listed though every field is indexed already.

mod index;
mod request;

pub(crate) use index::{Definition, Listed, design_document, listed};
pub(crate) use request::Request;
