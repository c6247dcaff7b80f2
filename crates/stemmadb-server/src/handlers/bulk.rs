//! Routes about many documents at once, and about which revisions are known.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Serialize;
use stemmadb::{Object, Revision, Snapshot, Value};

use super::document::{manner_of, show_of, written_status};
use crate::directory::Served;
use crate::documents::{
    FileView, Incoming, OpenRevs, Opened, Printer, Show, open_revs, parse_revision, revision_list, write,
};
use crate::error::{Failure, Result};
use crate::http::{Answer, Call, Pieces, blocking, streamed};

/// One row of the answer to `_bulk_docs`.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Written { ok: bool, id: &'a str, rev: &'a str },
    Refused { id: &'a str, error: &'a str, reason: &'a str },
}

/// `POST /{db}/_bulk_docs`
pub(crate) async fn bulk_docs(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let mut manner = manner_of(&call)?;
    let Value::Object(mut body) = call.json().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    let documents = match body.remove("docs") {
        Some(Value::Array(documents)) => documents,
        Some(_) => return Err(Failure::bad_request("`docs` parameter must be an array.")),
        None => return Err(Failure::bad_request("POST body must include `docs` parameter.")),
    };
    if let Some(new_edits) = body.get("new_edits") {
        manner.new_edits = new_edits != &Value::Bool(false);
    }
    if body.get("all_or_nothing") == Some(&Value::Bool(true)) {
        return Err(Failure::not_implemented("all_or_nothing is not supported"));
    }
    let status = written_status(&call);
    blocking(move || {
        let documents = documents.into_iter().map(Incoming::parse).collect::<Result<Vec<_>>>()?;
        let written = write(&served, documents, &manner)?;
        let rows: Vec<_> = written
            .iter()
            .filter_map(|written| match &written.outcome {
                // Of what was written elsewhere, only refusals are told.
                Ok(_) if !manner.new_edits => None,
                Ok(rev) => Some(Row::Written { ok: true, id: &written.id, rev }),
                Err(failure) => {
                    Some(Row::Refused { id: &written.id, error: failure.error(), reason: failure.reason() })
                }
            })
            .collect();
        Answer::json(status, &rows)
    })
    .await
}

/// One row of a `_bulk_get` request.
struct Asked {
    id: String,
    /// The revision as it was asked for, which may be none that could be.
    revision: Option<String>,
    since: Vec<Revision>,
}

impl Asked {
    fn parse(value: &Value) -> Result<Self> {
        let id = value.get("id").and_then(Value::as_str);
        let id = id.ok_or_else(|| Failure::bad_request("document id missed"))?;
        let since = value.get("atts_since").map(revision_list).transpose()?.unwrap_or_default();
        let revision = value.get("rev").and_then(Value::as_str).map(str::to_owned);
        Ok(Asked { id: id.to_owned(), revision, since })
    }
}

/// `POST /{db}/_bulk_get`
pub(crate) async fn bulk_get(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let show = show_of(&call.query)?;
    let latest = call.query.flag("latest", false)?;
    let body = call.json().await?;
    let asked = body.get("docs").and_then(Value::as_array);
    let asked = asked.ok_or_else(|| Failure::bad_request("Missing JSON list of 'docs'."))?;
    let asked = asked.iter().map(Asked::parse).collect::<Result<Vec<_>>>()?;
    let patience = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", patience, move |mut out| async move {
        let snapshot = served.database().snapshot()?;
        out.buffer.extend_from_slice(b"{\"results\": [");
        for (at, asked) in asked.into_iter().enumerate() {
            if at > 0 {
                out.buffer.push(b',');
            }
            got(&served, &snapshot, asked, latest, &show, &mut out)?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"]}\n");
        Ok(())
    })
    .await
}

/// Writes one row of the answer to `_bulk_get`: what is there of one row that was asked.
fn got(
    served: &Arc<Served>,
    snapshot: &Snapshot,
    asked: Asked,
    latest: bool,
    show: &Show,
    out: &mut Pieces,
) -> Result<()> {
    let Asked { id, revision, since } = asked;
    out.buffer.extend_from_slice(b"{\"id\":");
    out.string(&id);
    out.buffer.extend_from_slice(b",\"docs\":[");
    let content = show.files.content || !since.is_empty();
    let show = Show { files: FileView { content, since, follows: false }, ..show.clone() };
    let printer = Printer { served, snapshot, show: &show };
    let branches = snapshot.revisions(&id)?;
    let parsed = revision.as_deref().map(parse_revision);
    let opened = match parsed {
        Some(Err(failure)) => {
            refused(&id, revision.as_deref(), &failure, out);
            Vec::new()
        }
        Some(Ok(revision)) => open_revs(snapshot, &id, &branches, &OpenRevs::These(vec![revision]), latest)?,
        None if branches.is_empty() => {
            refused(&id, None, &Failure::missing(), out);
            Vec::new()
        }
        None => open_revs(snapshot, &id, &branches, &OpenRevs::All, latest)?,
    };
    for (at, opened) in opened.into_iter().enumerate() {
        if at > 0 {
            out.buffer.push(b',');
        }
        match opened {
            Opened::Document(document) => {
                out.buffer.extend_from_slice(b"{\"ok\":");
                printer.print_of(&document, &branches, &mut out.buffer)?;
                out.buffer.push(b'}');
            }
            Opened::Missing(revision) => refused(&id, Some(&revision.to_string()), &Failure::missing(), out),
        }
    }
    out.buffer.extend_from_slice(b"]}");
    Ok(())
}

fn refused(id: &str, revision: Option<&str>, failure: &Failure, out: &mut Pieces) {
    out.buffer.extend_from_slice(b"{\"error\":{\"id\":");
    out.string(id);
    out.buffer.extend_from_slice(b",\"rev\":");
    out.string(revision.unwrap_or("undefined"));
    out.buffer.extend_from_slice(b",\"error\":");
    out.string(failure.error());
    out.buffer.extend_from_slice(b",\"reason\":");
    out.string(failure.reason());
    out.buffer.extend_from_slice(b"}}");
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
