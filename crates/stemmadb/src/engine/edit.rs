//! One edit of one document, and what it amounts to: which revision, with which ancestors.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::document::attachment::File;
use crate::log::Blob;
use crate::memtable::DocumentState;
use crate::revision::{DocumentId, Revision, RevisionContent, RevisionContentWriter};
use crate::schema::CollectionSchemas;
use crate::value::{CanonicalSink, Value};
use crate::{Error, Result};

/// One edit of one document.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Create the document; a conflict if it exists.
    Insert {
        /// Its id.
        id: DocumentId,
        /// Its body, an object.
        body: Value,
    },
    /// Replace the body of the revision that was read; a conflict if it is not current. Its files stay.
    Replace {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The new body, an object.
        body: Value,
    },
    /// Create the document or replace the body of whatever is current. Its files stay.
    Upsert {
        /// The document's id.
        id: DocumentId,
        /// The new body, an object.
        body: Value,
    },
    /// Delete the revision that was read; a conflict if it is not current.
    Delete {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
    },
    /// Give a document a file, or other content to the one it has; a conflict if the revision that was read is not current.
    Attach {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The file's name.
        name: String,
        /// What it is, such as `image/png`.
        content_type: String,
        /// Its content, stored already.
        content: Arc<Blob>,
    },
    /// Take a file away from a document; a conflict if the revision that was read is not current.
    Detach {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The file's name.
        name: String,
    },
    /// Give a document a revision with exactly this body and these files, living or deleted: what a client of CouchDB's protocol writes.
    /// A conflict if `parent` is no leaf; or, without one, if the document exists.
    Put {
        /// The document's id.
        id: DocumentId,
        /// The leaf it succeeds; none for a document that is new, or was deleted.
        parent: Option<Revision>,
        /// Whether the revision is a deletion, which has no files.
        deleted: bool,
        /// Its body, an object.
        body: Value,
        /// All its files.
        files: Vec<File>,
    },
    /// Apply a revision that was written elsewhere, with its ancestry: what replication does. Never a conflict: it
    /// becomes a branch of the document's revision tree, and the winner is the same wherever both are known.
    Foreign {
        /// The document's id.
        id: DocumentId,
        /// The revision, then its ancestors, newest first, without gaps.
        revisions: Vec<Revision>,
        /// Whether the revision is a deletion.
        deleted: bool,
        /// Its body, an object.
        body: Value,
        /// All its files; a deletion has none.
        files: Vec<File>,
    },
}

impl Edit {
    /// The document it edits.
    pub fn id(&self) -> &DocumentId {
        match self {
            Edit::Insert { id, .. }
            | Edit::Replace { id, .. }
            | Edit::Upsert { id, .. }
            | Edit::Delete { id, .. }
            | Edit::Attach { id, .. }
            | Edit::Detach { id, .. }
            | Edit::Put { id, .. }
            | Edit::Foreign { id, .. } => id,
        }
    }

    /// Whether what it brings meets the schema of its collection. What it only takes away, and files, need not.
    pub(super) fn check(&self, schemas: &CollectionSchemas) -> Result<()> {
        match self {
            Edit::Foreign { deleted: true, .. } | Edit::Put { deleted: true, .. } => Ok(()),
            Edit::Foreign { id, body, .. } => schemas.check(id.as_str(), body, true),
            _ => self.body().map_or(Ok(()), |body| schemas.check(self.id().as_str(), body, false)),
        }
    }

    pub(super) fn body(&self) -> Option<&Value> {
        match self {
            Edit::Insert { body, .. }
            | Edit::Replace { body, .. }
            | Edit::Upsert { body, .. }
            | Edit::Put { body, .. }
            | Edit::Foreign { body, .. } => Some(body),
            Edit::Delete { .. } | Edit::Attach { .. } | Edit::Detach { .. } => None,
        }
    }
}

/// A revision is the hash of a body's canonical bytes.
impl CanonicalSink for RevisionContentWriter {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer()
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }
}

/// What an edit amounts to: which revision, with which ancestors.
pub(super) struct Planned {
    pub(super) path: SmallVec<[Revision; 2]>,
    pub(super) deleted: bool,
}

impl Planned {
    /// The revision of the edit, upon its parent as [`parent_of`] has it.
    pub(super) fn of(edit: &Edit, parent: Option<Revision>, content: &RevisionContent) -> Self {
        if let Edit::Foreign { revisions, deleted, .. } = edit {
            return Planned { path: revisions.as_slice().into(), deleted: *deleted };
        }
        let deleted = matches!(edit, Edit::Delete { .. } | Edit::Put { deleted: true, .. });
        let revision = Revision::of_content(parent.as_ref(), deleted, content);
        Planned { path: std::iter::once(revision).chain(parent).collect(), deleted }
    }
}

/// Checks the edit against the document's current state; returns the leaf it succeeds, if there is one.
pub(super) fn parent_of(edit: &Edit, current: Option<&DocumentState>) -> Result<Option<Revision>> {
    let live = current.filter(|state| state.is_live());
    let winner = || current.and_then(|state| state.tree.winner()).map(|winner| winner.revision);
    match edit {
        Edit::Foreign { .. } => Ok(None),
        Edit::Upsert { .. } => Ok(winner()),
        Edit::Insert { id, .. } | Edit::Put { id, parent: None, deleted: false, .. } => match live {
            Some(_) => Err(exists(id, winner())),
            None => Ok(winner()),
        },
        // A deletion of nothing is a deletion, once: somebody may have known the document.
        Edit::Put { id, parent: None, .. } => match current {
            Some(_) => Err(exists(id, winner())),
            None => Ok(None),
        },
        Edit::Put { id, parent: Some(parent), .. } => {
            match current.is_some_and(|state| state.tree.leaf(parent).is_some()) {
                true => Ok(Some(*parent)),
                false => Err(moved_on(id, winner(), parent)),
            }
        }
        Edit::Replace { id, revision, .. }
        | Edit::Delete { id, revision }
        | Edit::Attach { id, revision, .. }
        | Edit::Detach { id, revision, .. } => {
            let Some(state) = live else {
                return Err(Error::not_found(format!("there is no document `{id}`")));
            };
            match state.tree.leaf(revision).is_none_or(|leaf| leaf.deleted) {
                true => Err(moved_on(id, winner(), revision)),
                false => Ok(Some(*revision)),
            }
        }
    }
}

fn exists(id: &DocumentId, winner: Option<Revision>) -> Error {
    let revision = winner.map_or_else(String::new, |revision| revision.to_string());
    Error::conflict(format!("document `{id}` exists already, at revision {revision}"))
        .with_hint("read it and replace that revision, or upsert")
}

fn moved_on(id: &DocumentId, winner: Option<Revision>, named: &Revision) -> Error {
    let message = match winner {
        Some(winner) => format!("document `{id}` is at revision {winner}, not at {named}"),
        None => format!("there is no document `{id}` at revision {named}"),
    };
    Error::conflict(message).with_hint("read it again and decide with what you find")
}
