//! Updates by patches. Validation functions see the documents that result, as if the client had written them.

use stemmadb::{Document, Patch, Query, Revision, Value};

use super::transact::{RefusalCause, TransactOutcome, transact};
use super::write::{WriteOptions, write_one};
use crate::directory::ServedDatabase;
use crate::documents::{COUNT_MAX, IncomingContent, IncomingDocument, IncomingFile};
use crate::error::{Failure, Result};

/// How often an update is repeated if other writers change the same documents.
const ATTEMPTS_MAX: usize = 100;

/// What happens to each document that matches.
pub(crate) enum Change {
    Update(Patch),
    Delete,
}

/// Updates one document, at `revision` or at its current one; returns its new revision, or the current one if nothing
/// changes. Blocks.
///
/// # Errors
/// 404 if there is no such document; 409 if `revision` is not current; 400 if the patch doesn't fit the document.
pub(crate) fn patch(
    served: &ServedDatabase,
    id: &str,
    revision: Option<Revision>,
    patch: &Patch,
    options: &WriteOptions,
) -> Result<String> {
    for _ in 0..ATTEMPTS_MAX {
        let Some(current) = served.database().get(id)? else { return Err(Failure::missing()) };
        let document = match revision {
            Some(revision) if revision != *current.revision() => {
                served.database().snapshot()?.get_leaf(id, &revision)?.ok_or_else(Failure::conflict)?
            }
            _ => current,
        };
        // Errors of the patch would tell what is in the document.
        if !options.validator.may_read(&document)? {
            return Err(Failure::missing());
        }
        let Some(changed) = patched(&document, patch)? else { return Ok(document.revision().to_string()) };
        match write_one(served, changed, options) {
            Err(failure) if revision.is_none() && failure.is_conflict() => {}
            outcome => return outcome.map(|(_, revision)| revision),
        }
    }
    Err(Failure::conflict())
}

/// Changes all documents that match the query, or none; returns how many changed. Blocks.
///
/// # Errors
/// 413 if too many documents match; the error of the first document that can't be changed, with its id.
pub(crate) fn change_where(
    served: &ServedDatabase,
    query: &Query,
    change: &Change,
    options: &WriteOptions,
) -> Result<usize> {
    for _ in 0..ATTEMPTS_MAX {
        let documents = changed_documents(served, query, change)?;
        if documents.is_empty() {
            return Ok(0);
        }
        let refused = match transact(served, documents, &[], options)? {
            TransactOutcome::Written(written) => return Ok(written.len()),
            TransactOutcome::Refused(refused) => refused,
        };
        let lasting = refused.into_iter().find(|refusal| !refusal.failure.is_conflict());
        if let Some(refusal) = lasting {
            let RefusalCause::Document(id) = refusal.cause else { return Err(refusal.failure) };
            return Err(refusal.failure.within(&id));
        }
    }
    Err(Failure::conflict())
}

/// The documents that match the query and change, in their new form.
fn changed_documents(served: &ServedDatabase, query: &Query, change: &Change) -> Result<Vec<IncomingDocument>> {
    let mut documents = Vec::new();
    for document in served.database().find(query.clone()).run()? {
        let document = document?;
        let changed = match change {
            Change::Update(patch) => {
                patched(&document, patch).map_err(|failure| failure.within(document.id().as_str()))?
            }
            Change::Delete => Some(IncomingDocument {
                id: Some(document.id().to_string()),
                revision: Some(*document.revision()),
                deleted: true,
                body: Value::Object(Default::default()),
                ..IncomingDocument::default()
            }),
        };
        documents.extend(changed);
        if documents.len() > COUNT_MAX {
            let reason = format!("More than {COUNT_MAX} documents would change: set `limit`, and repeat the request");
            return Err(Failure::too_large(reason));
        }
    }
    Ok(documents)
}

/// The document after the patch, with its attachments; `None` if the patch changes nothing.
fn patched(document: &Document, patch: &Patch) -> Result<Option<IncomingDocument>> {
    let before = document.value()?;
    let body = patch.apply(&before)?;
    if body == before {
        return Ok(None);
    }
    let stub = |attachment: stemmadb::Attachment| IncomingFile {
        name: attachment.name,
        content_type: attachment.content_type,
        revpos: None,
        content: IncomingContent::Stub,
    };
    Ok(Some(IncomingDocument {
        id: Some(document.id().to_string()),
        revision: Some(*document.revision()),
        body,
        files: document.attachments()?.into_iter().map(stub).collect(),
        ..IncomingDocument::default()
    }))
}
