//! The stored revisions of one document.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::document::Document;
use crate::engine::Store;
use crate::revision::Sequence;
use crate::{Error, Result};

/// A revision of a document, current or replaced, with its body. Returned by
/// [`History::revisions`](crate::handles::History::revisions).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PastRevision {
    /// The document as it was; a deletion has an empty body, unless one was written.
    pub document: Document,
    /// The sequence of the write: the document was in this state from then on.
    pub sequence: Sequence,
    /// When it was written; `None` if a version of Stemma wrote it that did not record times.
    pub time: Option<SystemTime>,
}

/// The stored revisions of a document, the newest first.
pub(crate) fn past_revisions(store: &Store, id: &str) -> Result<Vec<PastRevision>> {
    let snapshot = store.snapshot()?;
    let Some(state) = snapshot.state_by_id(id)? else {
        return Err(Error::not_found(format!("there is no document `{id}`, and there was none")));
    };
    let mut revisions: Vec<PastRevision> = Vec::new();
    for leaf in state.tree.leaves() {
        for stored in snapshot.stored_revisions(&state, leaf) {
            let stored = stored?;
            // Branches share their beginning.
            if revisions.iter().any(|known| known.document.revision() == stored.document.revision()) {
                break;
            }
            let time = stored.time_us(&snapshot)?.map(|time_us| UNIX_EPOCH + Duration::from_micros(time_us));
            revisions.push(PastRevision { sequence: stored.origin.sequence, time, document: stored.document });
        }
    }
    revisions.sort_by_key(|revision| std::cmp::Reverse(revision.sequence));
    Ok(revisions)
}
