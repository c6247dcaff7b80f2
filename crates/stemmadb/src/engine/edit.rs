//! Edits: one change of one document, and the revision that it creates.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::document::attachment::File;
use crate::log::Blob;
use crate::memtable::DocumentState;
use crate::revision::{DocumentId, Revision, RevisionContent, RevisionContentWriter};
use crate::schema::CollectionSchemas;
use crate::value::{CanonicalSink, Patch, Value};
use crate::{Error, Result};

/// One change of one document.
///
/// [`Database::bulk`](crate::Database::bulk) and [`Transaction::edit`](crate::Transaction::edit) apply edits.
///
/// ```
/// # fn main() -> stemmadb::Result<()> {
/// # use stemmadb::{DocumentId, Edit, Value};
/// # let db = stemmadb::Database::in_memory();
/// let body = Value::from_serialize(&serde_json::json!({"year": 1961}))?;
/// let results = db.bulk(vec![Edit::Insert { id: DocumentId::new("solaris")?, body }])?;
/// assert!(results[0].is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub enum Edit {
    /// Creates a document. `Conflict` if it exists.
    Insert {
        /// The new document's id.
        id: DocumentId,
        /// The body, an object.
        body: Value,
    },
    /// Replaces the body of a document and keeps its attachments. `Conflict` if `revision` is not current.
    Replace {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The new body, an object.
        body: Value,
    },
    /// Creates a document, or replaces the body of its current revision and keeps its attachments.
    Upsert {
        /// The document's id.
        id: DocumentId,
        /// The new body, an object.
        body: Value,
    },
    /// Changes parts of a document's body and keeps the rest and its attachments. `Conflict` if a revision is given
    /// and is not current; `NotFound` if the document does not exist; `Invalid` if the patch doesn't fit the body. A
    /// patch that changes nothing creates no revision.
    Update {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read; `None` for the current one.
        revision: Option<Revision>,
        /// The changes.
        patch: Patch,
    },
    /// Deletes a document. `Conflict` if `revision` is not current.
    Delete {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
    },
    /// Adds an attachment to a document or replaces its content. `Conflict` if `revision` is not current.
    Attach {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The attachment's name.
        name: String,
        /// The content's media type, such as `image/png`.
        content_type: String,
        /// The content, which is already stored.
        content: Arc<Blob>,
    },
    /// Removes an attachment from a document. `Conflict` if `revision` is not current.
    Detach {
        /// The document's id.
        id: DocumentId,
        /// The revision that was read.
        revision: Revision,
        /// The attachment's name.
        name: String,
    },
    /// Writes a revision with exactly this body and these attachments, as a client of the CouchDB protocol does.
    /// `Conflict` if `parent` is not a leaf; without a parent, if the document exists.
    Put {
        /// The document's id.
        id: DocumentId,
        /// The leaf that the revision succeeds; none for a document that is new or deleted.
        parent: Option<Revision>,
        /// Whether the revision is a deletion, which has no attachments.
        deleted: bool,
        /// The body, an object.
        body: Value,
        /// All attachments of the revision.
        files: Vec<File>,
    },
    /// Applies a revision that was written in another database, with its ancestry, as replication does. Never a
    /// conflict: the revision becomes a branch of the document's revision tree, and every database that has the same
    /// branches picks the same winner.
    Foreign {
        /// The document's id.
        id: DocumentId,
        /// The revision, then its ancestors, newest first, without gaps.
        revisions: Vec<Revision>,
        /// Whether the revision is a deletion.
        deleted: bool,
        /// The body, an object.
        body: Value,
        /// All attachments of the revision; a deletion has none.
        files: Vec<File>,
    },
    /// Adds a deletion of a revision that was replaced, as a branch beside the revision that replaced it: for replicas
    /// that had the replaced revision and may not have its successor. The document itself does not change. `Conflict`
    /// if `replaced` is still a leaf, or unknown.
    Depart {
        /// The document's id.
        id: DocumentId,
        /// The revision that was replaced.
        replaced: Revision,
        /// The body of the deletion, an object.
        body: Value,
    },
}

impl Edit {
    /// Whether the revision is added to the revision tree regardless of the document's current state.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self, Edit::Foreign { .. } | Edit::Depart { .. })
    }

    /// The id of the document that the edit changes.
    pub fn id(&self) -> &DocumentId {
        match self {
            Edit::Insert { id, .. }
            | Edit::Replace { id, .. }
            | Edit::Upsert { id, .. }
            | Edit::Update { id, .. }
            | Edit::Delete { id, .. }
            | Edit::Attach { id, .. }
            | Edit::Detach { id, .. }
            | Edit::Put { id, .. }
            | Edit::Foreign { id, .. }
            | Edit::Depart { id, .. } => id,
        }
    }

    /// Validates the new body against the schema of its collection. Deletions and attachment changes are not validated.
    pub(super) fn check(&self, schemas: &CollectionSchemas) -> Result<()> {
        match self {
            Edit::Foreign { deleted: true, .. } | Edit::Put { deleted: true, .. } | Edit::Depart { .. } => Ok(()),
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
            | Edit::Foreign { body, .. }
            | Edit::Depart { body, .. } => Some(body),
            // The body of an update depends on the current one: `Transaction::stage` computes it.
            Edit::Update { .. } | Edit::Delete { .. } | Edit::Attach { .. } | Edit::Detach { .. } => None,
        }
    }
}

/// A revision is the hash of the canonical bytes of the body.
impl CanonicalSink for RevisionContentWriter {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer()
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }
}

/// The revision that an edit creates, with its ancestors.
pub(super) struct PlannedRevision {
    pub(super) path: SmallVec<[Revision; 2]>,
    pub(super) deleted: bool,
}

impl PlannedRevision {
    /// The revision of the edit on top of its parent, as returned by [`parent_of`].
    pub(super) fn of(edit: &Edit, parent: Option<Revision>, content: &RevisionContent) -> Self {
        if let Edit::Foreign { revisions, deleted, .. } = edit {
            return PlannedRevision { path: revisions.as_slice().into(), deleted: *deleted };
        }
        let deleted = matches!(edit, Edit::Delete { .. } | Edit::Put { deleted: true, .. } | Edit::Depart { .. });
        let revision = Revision::of_content(parent.as_ref(), deleted, content);
        PlannedRevision { path: std::iter::once(revision).chain(parent).collect(), deleted }
    }
}

/// Checks the edit against the document's current state. Returns the leaf that it succeeds, if there is one.
pub(super) fn parent_of(edit: &Edit, current: Option<&DocumentState>) -> Result<Option<Revision>> {
    let live = current.filter(|state| state.is_live());
    let winner = || current.and_then(|state| state.tree.winner()).map(|winner| winner.revision);
    match edit {
        Edit::Foreign { .. } => Ok(None),
        Edit::Depart { id, replaced, .. } => {
            let was_replaced =
                |state: &&DocumentState| state.tree.contains(replaced) && state.tree.leaf(replaced).is_none();
            match current.filter(was_replaced) {
                Some(_) => Ok(Some(*replaced)),
                None => Err(Error::conflict(format!("revision {replaced} of document `{id}` was not replaced"))),
            }
        }
        Edit::Upsert { .. } => Ok(winner()),
        Edit::Insert { id, .. } | Edit::Put { id, parent: None, deleted: false, .. } => match live {
            Some(_) => Err(exists_conflict(id, winner())),
            None => Ok(winner()),
        },
        // Deleting an unknown document records a deletion, once: another database may have the document.
        Edit::Put { id, parent: None, .. } => match current {
            Some(_) => Err(exists_conflict(id, winner())),
            None => Ok(None),
        },
        Edit::Put { id, parent: Some(parent), .. } => {
            match current.is_some_and(|state| state.tree.leaf(parent).is_some()) {
                true => Ok(Some(*parent)),
                false => Err(revision_conflict(id, winner(), parent)),
            }
        }
        Edit::Update { id, revision: None, .. } => match live {
            Some(_) => Ok(winner()),
            None => Err(Error::not_found(format!("there is no document `{id}`"))),
        },
        Edit::Update { id, revision: Some(revision), .. }
        | Edit::Replace { id, revision, .. }
        | Edit::Delete { id, revision }
        | Edit::Attach { id, revision, .. }
        | Edit::Detach { id, revision, .. } => {
            let Some(state) = live else {
                return Err(Error::not_found(format!("there is no document `{id}`")));
            };
            match state.tree.leaf(revision).is_none_or(|leaf| leaf.deleted) {
                true => Err(revision_conflict(id, winner(), revision)),
                false => Ok(Some(*revision)),
            }
        }
    }
}

fn exists_conflict(id: &DocumentId, winner: Option<Revision>) -> Error {
    let revision = winner.map_or_else(String::new, |revision| revision.to_string());
    Error::conflict(format!("document `{id}` exists already, at revision {revision}"))
        .with_hint("read it and replace that revision, or upsert")
}

fn revision_conflict(id: &DocumentId, winner: Option<Revision>, named: &Revision) -> Error {
    let message = match winner {
        Some(winner) => format!("document `{id}` is at revision {winner}, not at {named}"),
        None => format!("there is no document `{id}` at revision {named}"),
    };
    Error::conflict(message).with_hint("read it again and decide with what you find")
}
