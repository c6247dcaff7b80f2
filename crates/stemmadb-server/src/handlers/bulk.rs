//! Routes about many documents at once, and about which revisions are known.

use hyper::StatusCode;
use serde::Serialize;
use stemmadb::{Missing, Object, Revision, Value};

use super::document::{write_options, written_status};
use crate::app::Call;
use crate::documents::{Bulk, parse_revision};
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking, streamed};
use crate::writes::{WriteOptions, Written, write};

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
    let mut options = write_options(&call)?;
    let text = call.json_text().await?;
    call.reservation.grow(text.len().saturating_mul(COPIES)).await?;
    let status = written_status(&call);
    let patience = call.state.config.limits.stall_timeout;
    // Parts of the answer, one for each group.
    let parts = blocking(move || {
        let bulk = Bulk::parse(text)?;
        if let Some(new_edits) = bulk.members.get("new_edits") {
            options.new_edits = new_edits != &Value::Bool(false);
        }
        if bulk.members.get("all_or_nothing") == Some(&Value::Bool(true)) {
            return Err(Failure::not_implemented("all_or_nothing is not supported"));
        }
        let mut before = b'[';
        // Each document is on its own: where a later one can't be written, for want of a disk, those before it are.
        let rows =
            bulk.into_groups().map(|documents| rows_of(&write(&served, documents?, &options)?, &options, &mut before));
        let mut parts = rows.collect::<Result<Vec<_>>>()?;
        parts.push(if before == b'[' { b"[]\n".to_vec() } else { b"]\n".to_vec() });
        Ok(parts)
    })
    .await?;
    streamed(status, "application/json", patience, move |mut out| async move {
        for part in parts {
            out.buffer.extend_from_slice(&part);
            out.flush_if_full().await;
        }
        Ok(())
    })
    .await
}

/// Tells what became of documents. Of those written elsewhere, only refusals are told.
fn rows_of(written: &[Written], options: &WriteOptions, before: &mut u8) -> Result<Vec<u8>> {
    let mut rows = Vec::new();
    for Written { id, outcome } in written {
        let row = match outcome {
            Ok(_) if !options.new_edits => continue,
            Ok(rev) => Row::Written { ok: true, id, rev },
            Err(failure) => Row::Refused { id, error: failure.error(), reason: failure.reason() },
        };
        rows.push(std::mem::replace(before, b','));
        serde_json::to_writer(&mut rows, &row).map_err(|error| Failure::internal(error.to_string()))?;
    }
    rows.shrink_to_fit();
    Ok(rows)
}

/// What a request `{id: [revisions]}` asks for, all of which is as it must be.
fn asked(body: Value) -> Result<Object> {
    match body {
        Value::Object(asked) => {
            asked.iter().try_for_each(|(_, list)| revisions(list).map(drop))?;
            Ok(asked)
        }
        _ => Err(no_lists()),
    }
}

fn revisions(list: &Value) -> Result<Vec<Revision>> {
    let list = list.as_array().ok_or_else(no_lists)?;
    list.iter().map(|text| parse_revision(text.as_str().ok_or_else(no_lists)?)).collect()
}

fn no_lists() -> Failure {
    Failure::bad_request("Request body must be a JSON object of lists of revisions")
}

/// Answers what is not known here: `before`, then what `told` makes of each document of which anything is not, then `after`.
async fn differences<T: Serialize>(
    mut call: Call,
    before: &'static str,
    told: impl Fn(Missing) -> T + Send + 'static,
    after: &'static str,
) -> Result<Answer> {
    let served = call.database().await?;
    let asked = asked(call.json().await?)?;
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(before.as_bytes());
        let mut comma = "";
        for (id, list) in asked {
            let found = snapshot.missing(&id, &revisions(&list)?)?;
            if found.missing.is_empty() {
                continue;
            }
            out.buffer.extend_from_slice(std::mem::replace(&mut comma, ",").as_bytes());
            out.string(&id);
            out.buffer.push(b':');
            serde_json::to_writer(&mut out.buffer, &told(found))
                .map_err(|error| Failure::internal(error.to_string()))?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(after.as_bytes());
        Ok(())
    })
    .await
}

fn texts(revisions: Vec<Revision>) -> Vec<String> {
    revisions.iter().map(Revision::to_string).collect()
}

/// A row of the answer to `_revs_diff`.
#[derive(Serialize)]
struct Difference {
    missing: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    possible_ancestors: Vec<String>,
}

/// `POST /{db}/_revs_diff`
pub(crate) async fn revs_diff(call: Call) -> Result<Answer> {
    let told = |found: Missing| Difference {
        missing: texts(found.missing),
        possible_ancestors: texts(found.possible_ancestors),
    };
    differences(call, "{", told, "}\n").await
}

/// `POST /{db}/_missing_revs`
pub(crate) async fn missing_revs(call: Call) -> Result<Answer> {
    differences(call, "{\"missing_revs\":{", |found| texts(found.missing), "}}\n").await
}
