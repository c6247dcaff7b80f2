//! Reading documents by id.

use stemmadb::{Document, Error, Revision, Snapshot};

use super::super::call::{Call, revision};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::{DocumentWriter, RowStream};
use crate::auth::{Restriction, readable};
use crate::documents::{OpenRevs, OpenedRevision, open_revs, visible_branches};

pub(super) fn get(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let (served, restriction) = call.open_restricted(RightsOf::get(id), Some(id))?;
    let document = match call.past(&served)? {
        Some(snapshot) => snapshot.get(id)?,
        None => served.database().get(id)?,
    };
    reply(call, readable(restriction.as_ref(), document)?)
}

/// A revision of a document, if the user may read it.
pub(super) fn readable_revision(
    snapshot: &Snapshot,
    id: &str,
    revision: &Revision,
    restriction: Option<&Restriction>,
) -> Result<Option<Document>> {
    if restriction.is_none() {
        return Ok(snapshot.get_revision(id, revision)?);
    }
    let visible = visible_branches(snapshot, id, restriction)?;
    let opened = open_revs(snapshot, id, &visible, &OpenRevs::These(vec![*revision]), false, restriction)?;
    match opened.into_iter().next() {
        Some(OpenedRevision::Document(document)) => Ok(Some(*document)),
        _ => Ok(None),
    }
}

pub(super) fn get_revision(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let (served, restriction) = call.open_restricted(RightsOf::get(id), Some(id))?;
    let revision = revision(call.text("rev")?)?;
    let document = match restriction {
        None => served.database().get_revision(id, &revision)?,
        Some(_) => readable_revision(&served.database().snapshot()?, id, &revision, restriction.as_ref())?,
    };
    reply(call, document)
}

/// The answer with a document, or null.
pub(super) fn reply(call: &Call<'_>, document: Option<Document>) -> Result<Vec<u8>> {
    let mut written = Ok(());
    let mut writer = DocumentWriter::new(call);
    let bytes = call.reply_with(|out| written = writer.write(document.as_ref(), out));
    written.map(|()| bytes)
}

/// One row for each id, null if there is no such document; all as of one sequence.
pub(super) fn get_many(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::BulkGet, None)?;
    let snapshot = match call.past(&served)? {
        Some(snapshot) => snapshot,
        None => served.database().snapshot()?,
    };
    let (mut rows, mut documents) = (RowStream::new(call), DocumentWriter::new(call));
    for id in call.list("ids")? {
        let id = id.as_str().ok_or_else(|| Error::invalid("`ids` is an array of strings"))?;
        let document = readable(restriction.as_ref(), snapshot.get(id)?)?;
        rows.add(|_, out| documents.write(document.as_ref(), out))?;
    }
    Ok(rows.finish(&[]))
}
