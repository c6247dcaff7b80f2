//! Document ids, revisions, sequences and revision trees.
//!
//! Replicas edit documents independently and exchange the edits by replication. Every edit is a [`Revision`] that names
//! its parent, so the edits of a document form a tree. Replicas that have the same edits have the same tree and choose
//! the same winner. This module does not depend on the contents of documents or on where they are stored.

mod document_id;
mod revision_id;
mod sequence;
mod tree;

pub use document_id::DocumentId;
pub use revision_id::Revision;
pub(crate) use revision_id::{RevisionContent, RevisionContentWriter};
pub use sequence::Sequence;
pub use tree::Missing;
pub(crate) use tree::{Leaf, MergeOutcome, RevisionTree};
