//! Routes of the replicator.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value as Json, json};
use stemmadb::{Sequence, Value};

use crate::app::Call;
use crate::documents::{REPLICATOR_DATABASE, ReplicationState, format_rfc3339};
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};
use crate::replicator::{Event, Job, Outcome, Owner, Request};

/// `POST /_replicate`
pub(crate) async fn replicate(mut call: Call) -> Result<Answer> {
    let body = call.json().await?;
    let jobs = &call.state.jobs;
    if body.get("cancel") == Some(&Value::Bool(true)) {
        let named = ["replication_id", "_local_id", "id"].iter().find_map(|name| body.get(name)?.as_str());
        let id = match named {
            Some(id) => id.to_owned(),
            None => Request::parse(&body)?.id(),
        };
        return match jobs.cancel(&id) {
            true => Answer::ok(&json!({"ok": true, "_local_id": id})),
            false => Err(Failure::not_found("no such replication")),
        };
    }
    let request = Request::parse(&body)?;
    let continuous = request.continuous;
    let job = jobs.start(request, Owner::Request)?;
    if continuous {
        return Answer::json(StatusCode::ACCEPTED, &json!({"ok": true, "_local_id": job.id}));
    }
    let outcome = job.ended().await;
    if outcome.state != "completed" {
        let reason = outcome.error.unwrap_or_else(|| "the replication was cancelled".to_owned());
        return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "replication_failed", reason));
    }
    let mut told = json!({
        "ok": true,
        "replication_id_version": 4,
        "source_last_seq": sequence(&outcome),
        "history": [counts(&outcome)],
    });
    if outcome.done.checked_count == 0 {
        told["no_changes"] = Json::Bool(true);
    }
    Answer::ok(&told)
}

fn sequence(outcome: &Outcome) -> Json {
    outcome.done.source_position.deserialize_into().unwrap_or_default()
}

fn counts(outcome: &Outcome) -> Json {
    json!({
        "recorded_seq": sequence(outcome),
        "missing_checked": outcome.done.checked_count,
        "missing_found": outcome.done.missing_count,
        "docs_read": outcome.done.read_count,
        "docs_written": outcome.done.written_count,
        "doc_write_failures": outcome.done.failed_count,
    })
}

fn info(outcome: &Outcome) -> Json {
    let mut info = json!({
        "revisions_checked": outcome.done.checked_count,
        "missing_revisions_found": outcome.done.missing_count,
        "docs_read": outcome.done.read_count,
        "docs_written": outcome.done.written_count,
        "doc_write_failures": outcome.done.failed_count,
        "checkpointed_source_seq": sequence(outcome),
    });
    if let Some(error) = &outcome.error {
        info["error"] = Json::String(error.clone());
    }
    info
}

fn told_of(job: &Arc<Job>) -> Json {
    let outcome = job.outcome();
    let document = match &job.owner {
        Owner::Document(id) => Json::String(id.clone()),
        Owner::Request => Json::Null,
    };
    let event = |event: &Event| {
        let mut told = json!({"timestamp": format_rfc3339(event.time), "type": event.what});
        if let Some(reason) = &event.reason {
            told["reason"] = reason.as_str().into();
        }
        told
    };
    let history: Vec<Json> = outcome.history.iter().map(event).collect();
    json!({
        "id": job.id,
        "database": document.is_string().then_some(REPLICATOR_DATABASE),
        "doc_id": document,
        "source": job.request.source.shown(),
        "target": job.request.target.shown(),
        "state": outcome.state,
        "node": "nonode@nohost",
        "user": null,
        "history": history,
        "info": info(&outcome),
        "error_count": outcome.error_count,
        "start_time": format_rfc3339(job.started),
        "last_updated": outcome.history.first().map(|event| format_rfc3339(event.time)),
        "retry_at": outcome.retry_at.map(format_rfc3339),
    })
}

/// `GET /_scheduler/jobs`
pub(crate) async fn jobs(call: Call) -> Result<Answer> {
    let all = call.state.jobs.all();
    let running: Vec<Json> =
        all.iter().filter(|job| matches!(job.outcome().state, "running" | "crashing")).map(told_of).collect();
    page(&call, "jobs", running)
}

/// `GET /_scheduler/jobs/{job}`
pub(crate) async fn job(call: Call) -> Result<Answer> {
    let id = call.parameter("job")?;
    let found = call.state.jobs.all().into_iter().find(|job| job.id == id);
    Answer::ok(&told_of(&found.ok_or_else(Failure::missing)?))
}

/// `GET /_scheduler/docs`, `GET /_scheduler/docs/{replicator}`
pub(crate) async fn documents(call: Call) -> Result<Answer> {
    let all = documents_of(&call).await?;
    page(&call, "docs", all)
}

/// `GET /_scheduler/docs/{replicator}/{id}`
pub(crate) async fn document(call: Call) -> Result<Answer> {
    let id = call.parameter("id")?.to_owned();
    let all = documents_of(&call).await?;
    Answer::ok(all.iter().find(|told| told["doc_id"] == id.as_str()).ok_or_else(Failure::missing)?)
}

/// What there is to tell of each document of `_replicator`: of its job, or what became of it.
async fn documents_of(call: &Call) -> Result<Vec<Json>> {
    if call.parameters.get("replicator").is_some_and(|name| name != REPLICATOR_DATABASE) {
        return Err(Failure::no_database());
    }
    if !call.state.directory.contains(REPLICATOR_DATABASE) {
        return Ok(Vec::new());
    }
    let served = call.state.directory.open_served(REPLICATOR_DATABASE).await?;
    let jobs = call.state.jobs.all();
    blocking(move || {
        let mut told = Vec::new();
        for change in served.database().changes(Sequence::ZERO)?.run() {
            let change = change?;
            if change.deleted || change.id.is_design() {
                continue;
            }
            let id = change.id.as_str();
            let owner = Owner::Document(id.to_owned());
            if let Some(job) = jobs.iter().find(|job| job.owner == owner) {
                told.push(told_of(job));
                continue;
            }
            let kept = ReplicationState::of(&served, id)?;
            let info = kept.as_ref().map(|kept| match &kept.error {
                Some(error) => json!({"error": error}),
                None => json!(kept.counts),
            });
            told.push(json!({
                "database": REPLICATOR_DATABASE,
                "doc_id": id,
                "id": kept.as_ref().and_then(|kept| kept.id.as_deref()),
                "state": kept.as_ref().map_or("initializing", |kept| &kept.state),
                "info": info,
                "node": "nonode@nohost",
                "last_updated": kept.as_ref().map(|kept| format_rfc3339(kept.time)),
            }));
        }
        Ok(told)
    })
    .await
}

fn page(call: &Call, name: &str, all: Vec<Json>) -> Result<Answer> {
    let skip = call.query.number::<usize>("skip")?.unwrap_or(0);
    let limit = call.query.number::<usize>("limit")?.unwrap_or(usize::MAX);
    let total = all.len();
    let rows: Vec<Json> = all.into_iter().skip(skip).take(limit).collect();
    Answer::ok(&json!({"total_rows": total, "offset": skip, name: rows}))
}
