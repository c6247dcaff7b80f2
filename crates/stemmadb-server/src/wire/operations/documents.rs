//! Reading documents by id.

use stemmadb::{Document, Error, Revision, Snapshot, Value};
use stemmadb_wire::Encoding;

use super::super::call::{Call, revision};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::{RowStream, write_document};
use crate::auth::Restriction;
use crate::documents::{OpenRevs, OpenedRevision, open_revs, visible_branches};

pub(super) fn get(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let (served, restriction) = call.open_restricted(RightsOf::get(id), Some(id))?;
    let document = match call.past(&served)? {
        Some(snapshot) => snapshot.get(id)?,
        None => served.database().get(id)?,
    };
    reply(call, readable(document, restriction.as_ref())?)
}

/// The document, if the user may read it.
pub(super) fn readable(document: Option<Document>, restriction: Option<&Restriction>) -> Result<Option<Document>> {
    match (&document, restriction) {
        (Some(found), Some(restriction)) if !restriction.allows(found)? => Ok(None),
        _ => Ok(document),
    }
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
    let branches = visible_branches(snapshot, id, restriction)?;
    let opened = open_revs(snapshot, id, &branches, &OpenRevs::These(vec![*revision]), false, restriction)?;
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

pub(super) fn reply(call: &Call<'_>, document: Option<Document>) -> Result<Vec<u8>> {
    let Some(document) = document else { return Ok(call.reply(&Value::Null)) };
    let mut written = Ok(());
    let bytes = call.reply_with(|out| written = write_document(&document, call.encoding(), out));
    written.map(|()| bytes)
}

/// One row for each id, null if there is no such document; all as of one sequence.
pub(super) fn get_many(call: &Call<'_>) -> Result<Vec<u8>> {
    let (served, restriction) = call.open_restricted(RightsOf::BulkGet, None)?;
    let snapshot = match call.past(&served)? {
        Some(snapshot) => snapshot,
        None => served.database().snapshot()?,
    };
    let mut rows = RowStream::new(call);
    for id in call.list("ids")? {
        let id = id.as_str().ok_or_else(|| Error::invalid("`ids` is an array of strings"))?;
        let document = readable(snapshot.get(id)?, restriction.as_ref())?;
        rows.add(|encoding, out| write_optional(document.as_ref(), encoding, out))?;
    }
    Ok(rows.finish(&[]))
}

fn write_optional(document: Option<&Document>, encoding: Encoding, out: &mut Vec<u8>) -> Result<()> {
    match document {
        Some(document) => write_document(document, encoding, out),
        None => {
            encoding.write(&Value::Null, out);
            Ok(())
        }
    }
}
