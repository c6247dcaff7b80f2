//! Taking changes back: by new revisions, so that replicas receive them like any other change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::revisions::past_revisions;
use crate::document::{Attachment, Document, File, FileContent};
use crate::engine::{Edit, Store};
use crate::log::Blob;
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
    let edit = put_again(&last.document, None, &|file| pinned(&snapshot, file))?;
    store.edit(durability, edit)
}

/// Sets every document that matches the query, now or as of `to`, to its state as of `to`, in one transaction. Returns
/// how many documents changed.
pub(crate) fn revert(store: &Store, durability: Durability, query: &Query, to: Sequence) -> Result<u64> {
    query.check()?;
    let past = store.as_of(to)?;
    store.write(durability, |transaction| {
        let edits = edits(&past, &transaction.snapshot()?, query)?;
        let count = edits.len() as u64;
        edits.into_iter().try_for_each(|edit| transaction.edit(edit).map(|_| ()))?;
        Ok(count)
    })
}

/// How many documents [`revert`] would change.
pub(crate) fn count_reverts(store: &Store, query: &Query, to: Sequence) -> Result<u64> {
    query.check()?;
    Ok(edits(&store.as_of(to)?, &store.snapshot()?, query)?.len() as u64)
}

/// Sets every document that matches the query, here or in `copy`, to its state in `copy`, another database. Returns how
/// many documents changed.
pub(crate) fn revert_to_copy(store: &Store, durability: Durability, query: &Query, copy: &Store) -> Result<u64> {
    query.check()?;
    let (past, now) = (copy.snapshot()?, store.snapshot()?);
    let ids: Vec<DocumentId> = ids(&past, &now, query)?.into_iter().collect();
    drop(now);
    let mut count = 0;
    for batch in ids.chunks(COPIED_COUNT) {
        // Contents are copied before the transaction begins, and kept until it ends.
        let mut contents = Vec::new();
        for id in batch {
            if let Some(old) = past.get(id.as_str())? {
                contents.extend(copied_contents(store, &past, &old)?);
            }
        }
        count += store.write(durability, |transaction| {
            let now = transaction.snapshot()?;
            let mut count = 0;
            for id in batch {
                if let Some(edit) = edit(&past, &now, id.clone(), &|file| content_in(&contents, file))? {
                    transaction.edit(edit)?;
                    count += 1;
                }
            }
            Ok(count)
        })?;
    }
    Ok(count)
}

/// How many documents one transaction takes from another database.
const COPIED_COUNT: usize = 200;

/// Stores the contents of a document's attachments here.
fn copied_contents(store: &Store, past: &Snapshot, old: &Document) -> Result<Vec<Arc<Blob>>> {
    let mut contents = Vec::new();
    for file in old.attachments()? {
        let content = past.open_attachment(old, &file.name)?;
        let mut content = content.ok_or_else(|| content_missing(&file.name, old.id()))?;
        contents.push(store.store_content(&mut content)?);
    }
    Ok(contents)
}

fn content_in(contents: &[Arc<Blob>], file: &Attachment) -> Result<Option<Arc<Blob>>> {
    Ok(contents.iter().find(|blob| blob.digest() == file.digest).cloned())
}

fn pinned(snapshot: &Snapshot, file: &Attachment) -> Result<Option<Arc<Blob>>> {
    Ok(snapshot.pin_content(file)?.map(Arc::new))
}

fn content_missing(name: &str, id: &DocumentId) -> Error {
    Error::not_found(format!("the content of `{name}` of `{id}` is not kept any more"))
}

/// The ids of the documents that match the query in one of two states.
fn ids(past: &Snapshot, now: &Snapshot, query: &Query) -> Result<BTreeSet<DocumentId>> {
    let mut ids = BTreeSet::new();
    for snapshot in [past, now] {
        for id in snapshot.find(query.clone()).ids()? {
            ids.insert(id?);
        }
    }
    Ok(ids)
}

/// The edits that set every document that matches the query in one of two states, `now`, to that of `past`.
fn edits(past: &Snapshot, now: &Snapshot, query: &Query) -> Result<Vec<Edit>> {
    let ids = ids(past, now, query)?.into_iter();
    ids.filter_map(|id| edit(past, now, id, &|file| pinned(past, file)).transpose()).collect()
}

/// Finds the content of an attachment in the database that is written to.
type FindContent<'a> = dyn Fn(&Attachment) -> Result<Option<Arc<Blob>>> + 'a;

/// The edit that sets one document to its state of `past`; none if it is in that state.
fn edit(past: &Snapshot, now: &Snapshot, id: DocumentId, content: &FindContent<'_>) -> Result<Option<Edit>> {
    Ok(match (past.get(id.as_str())?, now.get(id.as_str())?) {
        (None, None) => None,
        (Some(old), Some(new)) if is_equal(&old, &new)? => None,
        (Some(old), new) => Some(put_again(&old, new.map(|new| *new.revision()), content)?),
        (None, Some(new)) => Some(Edit::Delete { id, revision: *new.revision() }),
    })
}

fn is_equal(old: &Document, new: &Document) -> Result<bool> {
    Ok(old.revision() == new.revision() || old.value()? == new.value()? && old.attachments()? == new.attachments()?)
}

/// The edit that writes a document of the past again, after the leaf `parent`.
fn put_again(old: &Document, parent: Option<Revision>, content: &FindContent<'_>) -> Result<Edit> {
    let mut files = Vec::new();
    for file in old.attachments()? {
        let blob = content(&file)?.ok_or_else(|| content_missing(&file.name, old.id()))?;
        let content = FileContent::Stored {
            content_type: file.content_type,
            blob,
            md5: file.md5,
            generation: Some(file.generation),
        };
        files.push(File { name: file.name, content });
    }
    Ok(Edit::Put { id: old.id().clone(), parent, deleted: false, body: old.value()?, files })
}
