//! Documents that leave those that users may read.
//!
//! If a write changes fields that the access rule reads, users may no longer be able to read the document. A deletion
//! of the revision that they could read is added as a branch beside its successor. It has the fields that the rule
//! read, so the changes feed reports the document as deleted to those users, and to nobody else who could not read it.

use stemmadb::{Attempt, Document, Durability, Edit, Snapshot, Value};

use crate::auth::User;
use crate::design::{WriteValidator, rule_fields};
use crate::directory::ServedDatabase;
use crate::error::{Result, library_error};

/// The most branches of a document to which another one is added.
const BRANCHES_MAX: usize = 100;

/// The deletions for edits that are applied independently. Each is refused if its edit was not applied.
///
/// # Errors
/// 500 if the current documents can't be read.
pub(super) fn departures(served: &ServedDatabase, validator: &WriteValidator, edits: &[Edit]) -> Result<Vec<Edit>> {
    if validator.copies(served) || !served.security().has_rule() {
        return Ok(Vec::new());
    }
    let snapshot = served.database().snapshot()?;
    let departure = |edit: &Edit| departure(served, &snapshot, edit, winner(&snapshot, edit)?);
    edits.iter().filter_map(|edit| departure(edit).transpose()).collect()
}

/// The deletion for an edit of a transaction, to be applied after it.
///
/// # Errors
/// 500 if the current document can't be read.
fn departure_in(served: &ServedDatabase, attempt: &mut Attempt<'_>, edit: &Edit) -> Result<Option<Edit>> {
    if !served.security().has_rule() {
        return Ok(None);
    }
    let snapshot = served.database().snapshot()?;
    let current = match attempt.get(edit.id().as_str())? {
        Some(current) => Some(current),
        None => winner(&snapshot, edit)?,
    };
    departure(served, &snapshot, edit, current)
}

/// The winning revision of the document of an edit, which may be a deletion.
fn winner(snapshot: &Snapshot, edit: &Edit) -> Result<Option<Document>> {
    let id = edit.id().as_str();
    let branches = snapshot.revisions(id)?;
    let winner = branches.first().and_then(|branch| branch.revisions.first());
    Ok(winner.map_or(Ok(None), |winner| snapshot.get_leaf(id, winner))?)
}

/// The deletion of `current`, if the edit replaces it and changes fields that the rule reads.
fn departure(
    served: &ServedDatabase,
    snapshot: &Snapshot,
    edit: &Edit,
    current: Option<Document>,
) -> Result<Option<Edit>> {
    let Some(current) = current else { return Ok(None) };
    let (replaces, body) = match edit {
        Edit::Insert { body, .. } | Edit::Upsert { body, .. } | Edit::Put { parent: None, body, .. } => (true, body),
        Edit::Replace { revision, body, .. } | Edit::Put { parent: Some(revision), body, .. } => {
            (revision == current.revision(), body)
        }
        Edit::Foreign { revisions, body, .. } => {
            (revisions.iter().skip(1).any(|ancestor| ancestor == current.revision()), body)
        }
        _ => return Ok(None),
    };
    let (id, before) = (edit.id(), rule_fields(served, &current)?);
    let security = served.security();
    let is_changed = security.rule_fields().into_iter().any(|field| before.get(field) != body.get(field));
    if !replaces || !is_changed || snapshot.revisions(id.as_str())?.len() >= BRANCHES_MAX {
        return Ok(None);
    }
    Ok(Some(Edit::Depart { id: id.clone(), replaced: *current.revision(), body: Value::Object(before) }))
}

/// Applies an edit of a transaction, and the deletion for those who may not read the document any more.
///
/// # Errors
/// Those of the edit.
pub(super) fn edit_in(
    served: &ServedDatabase,
    attempt: &mut Attempt<'_>,
    edit: Edit,
) -> stemmadb::Result<stemmadb::Revision> {
    let departure = departure_in(served, attempt, &edit).map_err(|failure| library_error(&failure))?;
    let revision = attempt.edit(edit)?;
    if let Some(departure) = departure {
        attempt.edit(departure)?;
    }
    Ok(revision)
}

/// Applies the edits that resolve a document's conflict, in one transaction, in the name of `author`. Validation
/// functions are not called.
///
/// # Errors
/// Those of the write.
pub(crate) fn apply_resolution(
    served: &ServedDatabase,
    edits: Vec<Edit>,
    author: &str,
    durability: Durability,
) -> Result<()> {
    let user = User { name: Some(author.to_owned()), ..User::default() };
    let database = served.database().with_durability(durability);
    let written = user.writing(|| {
        database
            .optimistic(|attempt| edits.iter().try_for_each(|edit| edit_in(served, attempt, edit.clone()).map(|_| ())))
    });
    Ok(written?)
}
