//! Which version wins?
//!
//! Documents are edited in many places and meet again by replication. Every edit is a [`Revision`] that names its
//! parent, so the edits of a document are a tree; whoever holds the same edits sees the same tree and the same winner.
//! This room knows ids, edits and their descent. It does **not** know what a document contains or where it is kept.

mod document_id;
mod edit;
mod sequence;
mod tree;
mod varint;

pub use document_id::DocumentId;
pub use edit::Revision;
pub(crate) use edit::{Content, ContentWriter};
pub use sequence::Sequence;
pub use tree::Missing;
pub(crate) use tree::{Leaf, Outcome, RevisionTree};
