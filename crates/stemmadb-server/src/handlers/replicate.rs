//! Routes of the replicator: `_replicate` and `_scheduler`.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value as Json, json};
use stemmadb::{Object, Sequence, Value};
use stemmadb_http::url::encode_segment;

use super::node::node_name;
use crate::app::{Call, PassedOn, answer_of, ask_others, other_members};
use crate::documents::{REPLICATOR_DATABASE, ReplicationState, format_rfc1123, format_rfc3339};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::replicator::{Job, JobEvent, JobOwner, JobStatus, ReplicationRequest};

/// `POST /_replicate`
pub(crate) async fn replicate(mut call: Call) -> Result<HttpResponse> {
    let body = call.json().await?;
    let (state, parts) = (&call.state, &call.parts);
    let jobs = &state.jobs;
    if body.get("cancel") == Some(&Value::Bool(true)) {
        let given_id = ["replication_id", "_local_id", "id"].iter().find_map(|name| body.get(name)?.as_str());
        let id = match given_id {
            Some(id) => id.to_owned(),
            None => ReplicationRequest::parse(&body)?.id(),
        };
        if jobs.cancel(&id) {
            return HttpResponse::ok(&json!({"ok": true, "_local_id": id}));
        }
        for other in other_members(state, parts) {
            let answer = answer_of(state, parts, &other, &body).await?;
            if answer.status() == StatusCode::OK {
                return Ok(answer);
            }
        }
        return Err(Failure::not_found("no such replication"));
    }
    let request = ReplicationRequest::parse(&body)?;
    // Equal requests share a job, whichever server of a cluster they are sent to.
    if parts.extensions.get::<PassedOn>().is_none()
        && let Some(other) = jobs.other_runner(&request).await?
    {
        return answer_of(state, parts, &other, &body).await;
    }
    let continuous = request.continuous;
    let job = jobs.start(request, JobOwner::Request)?;
    if continuous {
        return HttpResponse::json(StatusCode::ACCEPTED, &json!({"ok": true, "_local_id": job.id}));
    }
    let outcome = job.ended().await;
    if outcome.state != "completed" {
        let reason = outcome.error.unwrap_or_else(|| "the replication was cancelled".to_owned());
        return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "replication_failed", reason));
    }
    let mut response = json!({
        "ok": true,
        "session_id": outcome.session.id,
        "replication_id_version": 4,
        "source_last_seq": sequence(&outcome),
        "history": [session(&outcome)],
    });
    if outcome.done.checked_count == 0 {
        response["no_changes"] = Json::Bool(true);
    }
    HttpResponse::ok(&response)
}

fn sequence(outcome: &JobStatus) -> Json {
    outcome.done.source_position.deserialize_into().unwrap_or_default()
}

/// The entry of a replication's history.
fn session(outcome: &JobStatus) -> Json {
    let start_position = outcome.session.start_position.as_ref();
    json!({
        "session_id": outcome.session.id,
        "start_time": format_rfc1123(outcome.session.started),
        "end_time": format_rfc1123(outcome.session.ended),
        "start_last_seq": start_position.map_or(json!(0), |start| start.deserialize_into().unwrap_or_default()),
        "end_last_seq": sequence(outcome),
        "recorded_seq": sequence(outcome),
        "missing_checked": outcome.done.checked_count,
        "missing_found": outcome.done.missing_count,
        "docs_read": outcome.done.read_count,
        "docs_written": outcome.done.written_count,
        "doc_write_failures": outcome.done.failed_count,
    })
}

/// What a replication has done.
pub(super) fn info(outcome: &JobStatus) -> Json {
    let mut info = json!({
        "revisions_checked": outcome.done.checked_count,
        "missing_revisions_found": outcome.done.missing_count,
        "docs_read": outcome.done.read_count,
        "docs_written": outcome.done.written_count,
        "doc_write_failures": outcome.done.failed_count,
        "checkpointed_source_seq": sequence(outcome),
        "changes_pending": outcome.done.pending_count,
    });
    if let Some(error) = &outcome.error {
        info["error"] = Json::String(error.clone());
    }
    info
}

fn job_json(node: &str, job: &Arc<Job>) -> Object {
    let outcome = job.status();
    let document = match &job.owner {
        JobOwner::Document(id) => Json::String(id.clone()),
        JobOwner::Request | JobOwner::Topology(_) => Json::Null,
    };
    let event = |event: &JobEvent| {
        let mut object = json!({"timestamp": format_rfc3339(event.time), "type": event.what});
        if let Some(reason) = &event.reason {
            object["reason"] = reason.as_str().into();
        }
        object
    };
    let history: Vec<Json> = outcome.history.iter().map(event).collect();
    ordered([
        ("database", json!(document.is_string().then_some(REPLICATOR_DATABASE))),
        ("id", json!(job.id)),
        ("source", json!(job.request.source.display_name())),
        ("target", json!(job.request.target.display_name())),
        ("user", Json::Null),
        ("doc_id", document),
        ("info", info(&outcome)),
        ("history", json!(history)),
        ("node", json!(node)),
        ("start_time", json!(format_rfc3339(job.started))),
        ("state", json!(outcome.state)),
        ("error_count", json!(outcome.error_count)),
        ("last_updated", json!(outcome.history.first().map(|event| format_rfc3339(event.time)))),
        ("retry_at", json!(outcome.retry_at.map(format_rfc3339))),
    ])
}

/// The members of a row of `_scheduler/docs`, in their order.
const DOCUMENT_MEMBERS: [&str; 11] = [
    "database",
    "doc_id",
    "id",
    "node",
    "source",
    "target",
    "state",
    "info",
    "error_count",
    "last_updated",
    "start_time",
];

/// A job as a row of `_scheduler/docs`, whose members have another order. As in CouchDB, its `info` is either an error
/// or the counts, which kivik depends on.
fn document_json(node: &str, job: &Arc<Job>) -> Object {
    let mut all = job_json(node, job);
    if let Some(error) = all.get("info").and_then(|info| info.get("error")).cloned() {
        all.insert("info", [("error", error)].into_iter().collect::<Object>());
    }
    let mut row: Object = DOCUMENT_MEMBERS.iter().filter_map(|name| Some((*name, all.remove(name)?))).collect();
    row.extend(all);
    row
}

/// An object with its members in the order of CouchDB, which some clients depend on.
fn ordered<const N: usize>(members: [(&str, Json); N]) -> Object {
    members.into_iter().map(|(name, value)| (name, Value::from_serialize(&value).unwrap_or_default())).collect()
}

fn response(object: Object) -> HttpResponse {
    let mut text = Value::Object(object).to_json().into_bytes();
    text.push(b'\n');
    HttpResponse::text(StatusCode::OK, "application/json", text)
}

/// `GET /_scheduler/jobs`
pub(crate) async fn jobs(call: Call) -> Result<HttpResponse> {
    let all = call.state.jobs.all();
    let all = all.iter().filter(|job| matches!(job.status().state, "running" | "crashing"));
    let mut running: Vec<Object> = all.map(|job| job_json(node_name(&call.state), job)).collect();
    for answer in ask_others(&call.state, &call.parts, "/_scheduler/jobs").await {
        let jobs = answer.get("jobs").and_then(Value::as_array).into_iter().flatten();
        running.extend(jobs.filter_map(Value::as_object).cloned());
    }
    page(&call, "jobs", running)
}

/// `GET /_scheduler/jobs/{job}`
pub(crate) async fn job(call: Call) -> Result<HttpResponse> {
    let id = call.parameter("job")?;
    if let Some(job) = call.state.jobs.all().into_iter().find(|job| job.id == id) {
        return Ok(response(job_json(node_name(&call.state), &job)));
    }
    let path = format!("/_scheduler/jobs/{}", encode_segment(id));
    let found = ask_others(&call.state, &call.parts, &path).await.into_iter().find_map(|answer| match answer {
        Value::Object(job) => Some(job),
        _ => None,
    });
    Ok(response(found.ok_or_else(Failure::missing)?))
}

/// `GET /_scheduler/docs`, `GET /_scheduler/docs/{replicator}`
pub(crate) async fn documents(call: Call) -> Result<HttpResponse> {
    let all = document_states(&call).await?;
    page(&call, "docs", all)
}

/// `GET /_scheduler/docs/{replicator}/{id}`
pub(crate) async fn document(call: Call) -> Result<HttpResponse> {
    let id = call.parameter("id")?.to_owned();
    let all = document_states(&call).await?;
    let is_of_document = |state: &Object| state.get("doc_id").and_then(Value::as_str) == Some(&id);
    Ok(response(all.into_iter().find(is_of_document).ok_or_else(Failure::missing)?))
}

/// The replication state of each document of `_replicator`: of its running job, or the stored final state.
async fn document_states(call: &Call) -> Result<Vec<Object>> {
    if call.parameters.get("replicator").is_some_and(|name| name != REPLICATOR_DATABASE) {
        return Err(Failure::no_database());
    }
    if !call.state.directory.contains(REPLICATOR_DATABASE) {
        return Ok(Vec::new());
    }
    let served = call.state.directory.open_database(REPLICATOR_DATABASE).await?;
    let (jobs, node) = (call.state.jobs.all(), node_name(&call.state).to_owned());
    blocking(move || {
        let mut states = Vec::new();
        for change in served.database().changes(Sequence::ZERO)?.run() {
            let change = change?;
            if change.deleted || change.id.is_design() {
                continue;
            }
            let id = change.id.as_str();
            let owner = JobOwner::Document(id.to_owned());
            if let Some(job) = jobs.iter().find(|job| job.owner == owner) {
                states.push(document_json(&node, job));
                continue;
            }
            let stored = ReplicationState::load(&served, id)?;
            let info = stored.as_ref().map(|stored| match &stored.error {
                Some(error) => json!({"error": error}),
                None => json!(stored.counts),
            });
            states.push(ordered([
                ("database", json!(REPLICATOR_DATABASE)),
                ("doc_id", json!(id)),
                ("id", json!(stored.as_ref().and_then(|stored| stored.id.as_deref()))),
                ("node", json!(node)),
                ("state", json!(stored.as_ref().map_or("initializing", |stored| &stored.state))),
                ("info", json!(info)),
                ("last_updated", json!(stored.as_ref().map(|stored| format_rfc3339(stored.time)))),
            ]));
        }
        Ok(states)
    })
    .await
}

fn page(call: &Call, name: &str, all: Vec<Object>) -> Result<HttpResponse> {
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    let total = all.len();
    let rows: Vec<Value> = all.into_iter().skip(skip).take(limit).map(Value::Object).collect();
    let mut page = ordered([("total_rows", json!(total)), ("offset", json!(skip))]);
    page.insert(name, Value::Array(rows));
    Ok(response(page))
}
