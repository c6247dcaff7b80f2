//! What does a revision change in what is known of a document's descent? The same when it is written and when its record is replayed: else
//! a rebuild would know other ancestors than there were.

use crate::Result;
use crate::layout::record::Forgotten;
use crate::memtable::StoredRevision;
use crate::revision::{MergeOutcome, Revision, RevisionTree};

/// What became of a revision that was added.
pub(super) struct Added {
    pub(super) outcome: MergeOutcome,
    pub(super) forgotten: Forgotten,
    /// Whether its path tells more than is known now: some of it was forgotten, or not believed; or what other records tell was forgotten.
    pub(super) is_too_much: bool,
}

/// Adds the revision `path[0]` with its ancestors; where there is a `revs_limit`, what is too old by it is forgotten then.
pub(super) fn add(
    tree: &mut RevisionTree<StoredRevision>,
    path: &[Revision],
    deleted: bool,
    stored: StoredRevision,
    revs_limit: Option<usize>,
) -> Result<Added> {
    let outcome = tree.merge(path, deleted, stored)?.outcome;
    let forgotten = match revs_limit {
        Some(revs_limit) if tree.prune(revs_limit) => Forgotten::Beyond(revs_limit),
        _ => Forgotten::Nothing,
    };
    // What an edit made here says is believed: its parent was a leaf.
    let is_believed = || path.len() <= 2 || tree.has_path(path);
    let is_too_much = forgotten != Forgotten::Nothing || !is_believed();
    Ok(Added { outcome, forgotten, is_too_much })
}
