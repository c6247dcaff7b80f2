//! The stored revisions of one document.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::document::Document;
use crate::engine::Store;
use crate::read::StoredPast;
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
    /// Who wrote it, if the database kept history and the writer said so with
    /// [`writing_as`](crate::past::writing_as); over HTTP, the user.
    pub author: Option<String>,
}

impl PastRevision {
    /// A revision that was read elsewhere, such as by a server.
    pub fn new(document: Document, sequence: Sequence, time: Option<SystemTime>, author: Option<String>) -> Self {
        PastRevision { document, sequence, time, author }
    }
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
            let StoredPast { document, origin, author, .. } = stored;
            revisions.push(PastRevision { document, sequence: origin.sequence, time, author });
        }
    }
    revisions.sort_by_key(|revision| std::cmp::Reverse(revision.sequence));
    Ok(revisions)
}

/// A document as of a sequence, found by its own stored revisions; `None` if it did not exist or was deleted then.
pub(crate) fn document_at(store: &Store, id: &str, at: Sequence) -> Result<Option<Document>> {
    let snapshot = store.snapshot()?;
    if at > snapshot.sequence() {
        return Err(Error::invalid(format!("sequence {at} is in the future: the newest is {}", snapshot.sequence())));
    }
    let Some(state) = snapshot.state_by_id(id)? else { return Ok(None) };
    let mut leaves = Vec::new();
    for leaf in state.tree.leaves() {
        leaves.extend(branch_at(snapshot.stored_revisions(&state, leaf), id, at)?);
    }
    let winner = leaves.into_iter().max_by_key(|document| (!document.is_deleted(), *document.revision()));
    Ok(winner.filter(|document| !document.is_deleted()))
}

/// The revision of a branch that was its leaf as of a sequence; `None` if it begins later.
fn branch_at(revisions: impl Iterator<Item = Result<StoredPast>>, id: &str, at: Sequence) -> Result<Option<Document>> {
    for stored in revisions {
        let StoredPast { document, origin, lacks_predecessor, .. } = stored?;
        if origin.sequence <= at {
            return Ok(Some(document));
        }
        if lacks_predecessor {
            let what = format!("what document `{id}` was at sequence {at} is not kept");
            let oldest = format!("its oldest revision is that of sequence {}", origin.sequence);
            return Err(Error::not_found(what).with_hint(oldest));
        }
    }
    Ok(None)
}
