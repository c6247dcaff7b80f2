//! Reading documents by id.

use stemmadb::{Document, Error, Value};
use stemmadb_wire::Encoding;

use super::super::call::{Call, revision};
use super::super::failure::Result;
use super::super::rights::RightsOf;
use super::super::rows::{RowStream, write_document};

pub(super) fn get(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let served = call.open(RightsOf::get(id), Some(id))?;
    match call.past(&served)? {
        Some(snapshot) => reply(call, snapshot.get(id)?),
        None => reply(call, served.database().get(id)?),
    }
}

pub(super) fn get_revision(call: &Call<'_>) -> Result<Vec<u8>> {
    let id = call.text("id")?;
    let served = call.open(RightsOf::get(id), Some(id))?;
    reply(call, served.database().get_revision(id, &revision(call.text("rev")?)?)?)
}

pub(super) fn reply(call: &Call<'_>, document: Option<Document>) -> Result<Vec<u8>> {
    let Some(document) = document else { return Ok(call.reply(&Value::Null)) };
    let mut written = Ok(());
    let bytes = call.reply_with(|out| written = write_document(&document, call.encoding(), out));
    written.map(|()| bytes)
}

/// One row for each id, null if there is no such document; all as of one sequence.
pub(super) fn get_many(call: &Call<'_>) -> Result<Vec<u8>> {
    let served = call.open(RightsOf::BulkGet, None)?;
    let snapshot = match call.past(&served)? {
        Some(snapshot) => snapshot,
        None => served.database().snapshot()?,
    };
    let mut rows = RowStream::new(call);
    for id in call.list("ids")? {
        let id = id.as_str().ok_or_else(|| Error::invalid("`ids` is an array of strings"))?;
        let document = snapshot.get(id)?;
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
