//! Routes that write many documents or compare their revisions: `_bulk_docs`, `_revs_diff`, `_missing_revs`.

use hyper::StatusCode;
use hyper::header::HeaderName;
use serde::Serialize;
use stemmadb::{Missing, Object, Revision, Value};

use super::document::{target_wait, wait_for_targets, write_options, written_status};
use super::tiers::bring_all_back;
use crate::app::Call;
use crate::documents::{BulkRequest, VisibleBranches, parse_revision, visible_branches};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json, streamed};
use crate::virtual_databases::Databases;
use crate::writes::{WriteOptions, WriteResult, write_divided};

/// A row of the response to `_bulk_docs`.
#[derive(Serialize)]
#[serde(untagged)]
enum BulkRow<'a> {
    Success { ok: bool, id: &'a str, rev: &'a str },
    Error { id: &'a str, error: &'a str, reason: &'a str },
}

/// The memory of a group of documents and of all response rows, as a multiple of the request's length.
const MEMORY_FACTOR: usize = 3;

/// The header with the targets that a write of several documents waited for.
const WAITED: HeaderName = HeaderName::from_static("x-stemma-waited");

/// `POST /{db}/_bulk_docs`
pub(crate) async fn bulk_docs(mut call: Call) -> Result<HttpResponse> {
    let tiers = call.state.tiers.get(call.parameter("db")?).await?;
    let mut databases = call.open_databases().await?;
    let mut options = write_options(&call)?;
    let waiting = databases.only().cloned();
    let wait = match &waiting {
        Some(served) => target_wait(&call, served.name()).await?,
        None if call.query.text("wait_for").is_some() => {
            return Err(Failure::bad_request("a virtual database has no targets to `wait_for`"));
        }
        None => None,
    };
    let text = call.json_text().await?;
    if databases.only().is_some_and(|served| !served.takes_writes()) && has_only_deletions(&text) {
        databases = Databases::one(call.open_to_free_space().await?);
    }
    call.reservation.grow(text.len().saturating_mul(MEMORY_FACTOR)).await?;
    let mut status = written_status(&call);
    let stall_timeout = call.state.config.limits.stall_timeout;
    // The response rows, one part per group.
    let parts = blocking(move || {
        let bulk = BulkRequest::parse(text)?;
        if let Some(new_edits) = bulk.members.get("new_edits") {
            options.new_edits = new_edits != &Value::Bool(false);
        }
        if bulk.members.get("all_or_nothing") == Some(&Value::Bool(true)) {
            return Err(Failure::not_implemented("all_or_nothing is not supported"));
        }
        let mut separator = b'[';
        // Groups are written independently: if writing one fails, for example on a full disk, earlier groups stay
        // written.
        let rows = bulk.into_groups().map(|documents| {
            let mut documents = documents?;
            if let Some(tiers) = tiers.as_ref().filter(|_| options.new_edits) {
                bring_all_back(tiers, &mut documents)?;
            }
            print_rows(&write_divided(&databases, documents, &options)?, &options, &mut separator)
        });
        let mut parts = rows.collect::<Result<Vec<_>>>()?;
        parts.push(if separator == b'[' { b"[]\n".to_vec() } else { b"]\n".to_vec() });
        Ok(parts)
    })
    .await?;
    let waited = match &waiting {
        Some(served) => wait_for_targets(wait, served).await?,
        None => None,
    };
    if waited.as_ref().is_some_and(|waited| !waited.is_complete) {
        status = StatusCode::ACCEPTED;
    }
    let response = streamed(status, "application/json", stall_timeout, move |mut out| async move {
        for part in parts {
            out.buffer.extend_from_slice(&part);
            out.flush_if_full().await;
        }
        Ok(())
    });
    let response = response.await?;
    // The response is an array of rows.
    Ok(match waited {
        Some(waited) => {
            let waited = serde_json::to_string(&waited).map_err(|error| Failure::internal(error.to_string()))?;
            response.with(WAITED, &waited)
        }
        None => response,
    })
}

/// Whether a request deletes documents and does nothing else.
fn has_only_deletions(text: &[u8]) -> bool {
    let Ok(body) = read_json(text, JsonPurpose::Documents) else { return false };
    let is_deletion = |document: &Value| document.get("_deleted") == Some(&Value::Bool(true));
    body.get("docs").and_then(Value::as_array).is_some_and(|documents| documents.iter().all(is_deletion))
}

/// Prints the rows of a group. For replicated revisions, CouchDB returns only errors.
fn print_rows(written: &[WriteResult], options: &WriteOptions, separator: &mut u8) -> Result<Vec<u8>> {
    let mut rows = Vec::new();
    for WriteResult { id, outcome } in written {
        let row = match outcome {
            Ok(_) if !options.new_edits => continue,
            Ok(rev) => BulkRow::Success { ok: true, id, rev },
            Err(failure) => BulkRow::Error { id, error: failure.error(), reason: failure.reason() },
        };
        rows.push(std::mem::replace(separator, b','));
        serde_json::to_writer(&mut rows, &row).map_err(|error| Failure::internal(error.to_string()))?;
    }
    rows.shrink_to_fit();
    Ok(rows)
}

/// Validates a request `{id: [revisions]}`.
fn validated_request(body: Value) -> Result<Object> {
    match body {
        Value::Object(revisions) => {
            revisions.iter().try_for_each(|(_, list)| parse_list(list).map(drop))?;
            Ok(revisions)
        }
        _ => Err(invalid_lists()),
    }
}

fn parse_list(list: &Value) -> Result<Vec<Revision>> {
    let list = list.as_array().ok_or_else(invalid_lists)?;
    list.iter().map(|text| parse_revision(text.as_str().ok_or_else(invalid_lists)?)).collect()
}

fn invalid_lists() -> Failure {
    Failure::bad_request("Request body must be a JSON object of arrays of revisions")
}

/// Responds with the revisions that the database lacks: `head`, an entry made by `entry` for each document with missing
/// revisions, and `tail`.
async fn missing_response<T: Serialize>(
    mut call: Call,
    head: &'static str,
    entry: impl Fn(Missing) -> T + Send + 'static,
    tail: &'static str,
) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    let request = validated_request(call.json().await?)?;
    let (stall_timeout, restriction) = (call.state.config.limits.stall_timeout, call.restriction.clone());
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        let snapshots = databases.snapshots()?;
        out.buffer.extend_from_slice(head.as_bytes());
        let mut comma = "";
        for (id, list) in request {
            let (_, snapshot) = snapshots.of(&id);
            let list = parse_list(&list)?;
            let visible = restriction.as_ref().map(|restriction| visible_branches(snapshot, &id, Some(restriction)));
            let found = match visible.transpose()? {
                // A document that the user may not read looks like one that does not exist, apart from the deletions
                // that were made when the user could no longer read it.
                Some(VisibleBranches { branches, is_readable: false }) => {
                    let is_known =
                        |revision: &Revision| branches.iter().any(|branch| branch.revisions.contains(revision));
                    let missing = list.into_iter().filter(|revision| !is_known(revision)).collect();
                    Missing { missing, possible_ancestors: Vec::new() }
                }
                _ => snapshot.missing(&id, &list)?,
            };
            if found.missing.is_empty() {
                continue;
            }
            out.buffer.extend_from_slice(std::mem::replace(&mut comma, ",").as_bytes());
            out.string(&id);
            out.buffer.push(b':');
            serde_json::to_writer(&mut out.buffer, &entry(found))
                .map_err(|error| Failure::internal(error.to_string()))?;
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(tail.as_bytes());
        Ok(())
    })
    .await
}

fn to_strings(revisions: Vec<Revision>) -> Vec<String> {
    revisions.iter().map(Revision::to_string).collect()
}

/// An entry of the response to `_revs_diff`.
#[derive(Serialize)]
struct RevsDiffEntry {
    missing: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    possible_ancestors: Vec<String>,
}

/// `POST /{db}/_revs_diff`
pub(crate) async fn revs_diff(call: Call) -> Result<HttpResponse> {
    let entry = |found: Missing| RevsDiffEntry {
        missing: to_strings(found.missing),
        possible_ancestors: to_strings(found.possible_ancestors),
    };
    missing_response(call, "{", entry, "}\n").await
}

/// `POST /{db}/_missing_revs`
pub(crate) async fn missing_revs(call: Call) -> Result<HttpResponse> {
    missing_response(call, "{\"missing_revs\":{", |found| to_strings(found.missing), "}}\n").await
}
