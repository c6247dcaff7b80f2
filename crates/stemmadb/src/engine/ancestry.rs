//! Adds a revision to a document's revision tree. Writes and replay share this code: if they differed, a rebuild would
//! produce other ancestors than the original writes did.

use crate::Result;
use crate::layout::record::PrunedAncestors;
use crate::memtable::StoredRevision;
use crate::revision::{MergeOutcome, Revision, RevisionTree};

/// The result of adding a revision.
pub(super) struct AddedRevision {
    pub(super) outcome: MergeOutcome,
    pub(super) pruned: PrunedAncestors,
    /// Whether the record's path names more ancestors than the revision tree now holds: some were pruned or rejected,
    /// or ancestors that other records name were pruned.
    pub(super) has_extra_ancestors: bool,
}

/// Adds the revision `path[0]` with its ancestors, then prunes ancestors beyond `revs_limit` if one is given.
pub(super) fn add(
    tree: &mut RevisionTree<StoredRevision>,
    path: &[Revision],
    deleted: bool,
    stored: StoredRevision,
    revs_limit: Option<usize>,
) -> Result<AddedRevision> {
    let outcome = tree.merge(path, deleted, stored)?.outcome;
    let pruned = match revs_limit {
        Some(revs_limit) if tree.prune(revs_limit) => PrunedAncestors::Beyond(revs_limit),
        _ => PrunedAncestors::Nothing,
    };
    // An edit made in this database is complete: its parent was a leaf.
    let is_believed = || path.len() <= 2 || tree.has_path(path);
    let has_extra_ancestors = pruned != PrunedAncestors::Nothing || !is_believed();
    Ok(AddedRevision { outcome, pruned, has_extra_ancestors })
}
