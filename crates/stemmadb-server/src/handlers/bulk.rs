//! Routes about many documents at once, and about which revisions are known.

use serde::Serialize;
use stemmadb::{Object, Revision, Value};

use super::document::{manner_of, written_status};
use crate::documents::{Bulk, Written, parse_revision, write};
use crate::error::{Failure, Result};
use crate::http::{Answer, Call, blocking};

/// One row of the answer to `_bulk_docs`.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Written { ok: bool, id: &'a str, rev: &'a str },
    Refused { id: &'a str, error: &'a str, reason: &'a str },
}

/// What a group of documents and the rows of the answer take together, as a multiple of the request's length.
const COPIES: usize = 3;

/// `POST /{db}/_bulk_docs`
pub(crate) async fn bulk_docs(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let mut manner = manner_of(&call)?;
    let text = call.json_text().await?;
    call.share.grow(text.len().saturating_mul(COPIES)).await?;
    let status = written_status(&call);
    blocking(move || {
        let bulk = Bulk::parse(text)?;
        if let Some(new_edits) = bulk.members.get("new_edits") {
            manner.new_edits = new_edits != &Value::Bool(false);
        }
        if bulk.members.get("all_or_nothing") == Some(&Value::Bool(true)) {
            return Err(Failure::not_implemented("all_or_nothing is not supported"));
        }
        let mut rows = b"[".to_vec();
        for documents in bulk.into_groups() {
            // Each document is on its own: where a later one can't be written, for want of a disk, those before it are.
            write(&served, documents?, &manner)?
                .iter()
                .try_for_each(|row| push_row(row, manner.new_edits, &mut rows))?;
        }
        rows.extend_from_slice(b"]\n");
        Ok(Answer::text(status, "application/json", rows))
    })
    .await
}

/// Tells what became of a document. Of what was written elsewhere, only refusals are told.
fn push_row(written: &Written, new_edits: bool, rows: &mut Vec<u8>) -> Result<()> {
    let id = &written.id;
    let row = match &written.outcome {
        Ok(_) if !new_edits => return Ok(()),
        Ok(rev) => Row::Written { ok: true, id, rev },
        Err(failure) => Row::Refused { id, error: failure.error(), reason: failure.reason() },
    };
    if rows.len() > 1 {
        rows.push(b',');
    }
    serde_json::to_writer(rows, &row).map_err(|error| Failure::internal(error.to_string()))
}

/// The revisions of a request `{id: [revisions]}`, as they were written.
fn revisions_by_id(body: &Value) -> Result<Vec<(String, Vec<String>)>> {
    let wrong = || Failure::bad_request("Request body must be a JSON object of lists of revisions");
    let object: &Object = body.as_object().ok_or_else(wrong)?;
    let texts = |list: &Value| {
        let list = list.as_array().ok_or_else(wrong)?;
        list.iter().map(|text| text.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<Vec<_>>>()
    };
    object.iter().map(|(id, list)| Ok((id.to_owned(), texts(list)?))).collect()
}

/// What is not known here of one document.
#[derive(Serialize)]
struct Difference {
    missing: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    possible_ancestors: Vec<String>,
}

/// What is not known here of each document, where anything is not.
async fn differences(call: &mut Call) -> Result<Vec<(String, Difference)>> {
    let served = call.database().await?;
    let wanted = revisions_by_id(&call.json().await?)?;
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let mut differences = Vec::new();
        for (id, texts) in wanted {
            let revisions = texts.iter().map(|text| parse_revision(text)).collect::<Result<Vec<_>>>()?;
            let found = snapshot.missing(&id, &revisions)?;
            if found.missing.is_empty() {
                continue;
            }
            let texts = |revisions: Vec<Revision>| revisions.iter().map(Revision::to_string).collect();
            let possible_ancestors = texts(found.possible_ancestors);
            differences.push((id, Difference { missing: texts(found.missing), possible_ancestors }));
        }
        Ok(differences)
    })
    .await
}

/// `POST /{db}/_revs_diff`
pub(crate) async fn revs_diff(mut call: Call) -> Result<Answer> {
    let differences: std::collections::BTreeMap<_, _> = differences(&mut call).await?.into_iter().collect();
    Answer::ok(&differences)
}

/// `POST /{db}/_missing_revs`
pub(crate) async fn missing_revs(mut call: Call) -> Result<Answer> {
    let differences = differences(&mut call).await?;
    let missing: std::collections::BTreeMap<_, _> =
        differences.into_iter().map(|(id, difference)| (id, difference.missing)).collect();
    Answer::ok(&serde_json::json!({ "missing_revs": missing }))
}
