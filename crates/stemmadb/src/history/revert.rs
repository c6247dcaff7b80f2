//! Taking changes back: by new revisions, so that replicas receive them like any other change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::revisions::past_revisions;
use crate::document::{Document, File, FileContent};
use crate::engine::{Edit, Store, Transaction};
use crate::options::Durability;
use crate::query::Query;
use crate::read::Snapshot;
use crate::revision::{DocumentId, Revision, Sequence};
use crate::{Error, Result};

/// Writes the last revision of a deleted document again.
pub(crate) fn undelete(store: &Store, durability: Durability, id: &str) -> Result<Revision> {
    let revisions = past_revisions(store, id)?;
    if revisions.first().is_some_and(|newest| !newest.document.is_deleted()) {
        return Err(Error::conflict(format!("`{id}` is not deleted")));
    }
    let last = revisions.iter().find(|revision| !revision.document.is_deleted());
    let last = last.ok_or_else(|| {
        Error::not_found(format!("no revision of `{id}` before its deletion is kept"))
            .with_hint("compaction removed it; `History::keep` sets how much of the past is kept")
    })?;
    // Keeps the contents of its attachments until they are referenced again.
    let snapshot = store.snapshot()?;
    let edit = put_again(&snapshot, &last.document, None)?;
    store.edit(durability, edit)
}

/// Sets every document that matches the query, now or as of `to`, to its state as of `to`, in one transaction. Returns
/// how many documents changed.
pub(crate) fn revert(store: &Store, durability: Durability, query: &Query, to: Sequence) -> Result<u64> {
    query.check()?;
    let past = store.as_of(to)?;
    store.write(durability, |transaction| {
        let now = transaction.snapshot()?;
        let mut ids = BTreeSet::new();
        for snapshot in [&past, &now] {
            for id in snapshot.find(query.clone()).ids()? {
                ids.insert(id?);
            }
        }
        let mut count = 0;
        for id in ids {
            count += u64::from(revert_document(transaction, &past, &now, id)?);
        }
        Ok(count)
    })
}

/// Returns whether the document changed.
fn revert_document(transaction: &mut Transaction<'_>, past: &Snapshot, now: &Snapshot, id: DocumentId) -> Result<bool> {
    let edit = match (past.get(id.as_str())?, now.get(id.as_str())?) {
        (None, None) => return Ok(false),
        (Some(old), Some(new)) if is_equal(&old, &new)? => return Ok(false),
        (Some(old), new) => put_again(past, &old, new.map(|new| *new.revision()))?,
        (None, Some(new)) => Edit::Delete { id, revision: *new.revision() },
    };
    transaction.edit(edit).map(|_| true)
}

fn is_equal(old: &Document, new: &Document) -> Result<bool> {
    Ok(old.revision() == new.revision() || old.value()? == new.value()? && old.attachments()? == new.attachments()?)
}

/// The edit that writes a document of the past again, after the leaf `parent`.
fn put_again(snapshot: &Snapshot, old: &Document, parent: Option<Revision>) -> Result<Edit> {
    let mut files = Vec::new();
    for file in old.attachments()? {
        let blob = snapshot.pin_content(&file)?.ok_or_else(|| {
            Error::not_found(format!("the content of `{}` of `{}` is not kept any more", file.name, old.id()))
        })?;
        let content = FileContent::Stored {
            content_type: file.content_type,
            blob: Arc::new(blob),
            md5: file.md5,
            generation: Some(file.generation),
        };
        files.push(File { name: file.name, content });
    }
    Ok(Edit::Put { id: old.id().clone(), parent, deleted: false, body: old.value()?, files })
}
