//! What runs in the background: `_active_tasks`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};
use stemmadb::handles::{ActiveTask, ActiveTaskKind};

use super::node::node_name;
use super::replicate::info;
use crate::app::{Call, ask_others};
use crate::design::{self, PROGRAM_PREFIX, declared_views};
use crate::directory::ServedDatabase;
use crate::documents::REPLICATOR_DATABASE;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};
use crate::mango::{LIBRARY_PREFIX, indexes};
use crate::replicator::{Job, JobOwner};

/// `GET /_active_tasks`
pub(crate) async fn active_tasks(call: Call) -> Result<HttpResponse> {
    let (directory, jobs) = (call.state.directory.clone(), call.state.jobs.clone());
    let others = ask_others(&call.state, &call.parts, "/_active_tasks").await;
    let node = node_name(&call.state).to_owned();
    blocking(move || {
        let mut rows: Vec<Json> = jobs.all().iter().filter_map(replication_row).collect();
        // A database that is not open has no tasks.
        for served in directory.opened() {
            for task in served.database().maintenance().active_tasks() {
                rows.push(task_row(&served, &task)?);
            }
        }
        rows.iter_mut().for_each(|row| row["node"] = node.as_str().into());
        for answer in others {
            rows.extend(answer.deserialize_into::<Vec<Json>>()?);
        }
        rows.sort_by_key(|row| row["started_on"].as_u64());
        HttpResponse::ok(&rows)
    })
    .await
}

/// The row of a replication, if it is running.
fn replication_row(job: &Arc<Job>) -> Option<Json> {
    let status = job.status();
    if status.state != "running" {
        return None;
    }
    let document = match &job.owner {
        JobOwner::Document(id) => Some(id),
        JobOwner::Request | JobOwner::Topology(_) => None,
    };
    let mut row = info(&status);
    let members = json!({
        "pid": job.id,
        "type": "replication",
        "replication_id": job.id,
        "database": document.map(|_| REPLICATOR_DATABASE),
        "doc_id": document,
        "user": null,
        "source": job.request.source.display_name(),
        "target": job.request.target.display_name(),
        "continuous": job.request.continuous,
        "started_on": job.started,
        "updated_on": status.updated(),
    });
    if let (Some(row), Json::Object(members)) = (row.as_object_mut(), members) {
        row.extend(members);
    }
    Some(row)
}

/// The row of a task of a database.
fn task_row(served: &Arc<ServedDatabase>, task: &ActiveTask) -> Result<Json> {
    let (done, total) = (task.progress.done, task.progress.total);
    let mut row = json!({
        "pid": format!("{}-{}", served.instance_id(), task.number),
        "database": served.name(),
        "progress": (done * 100).checked_div(total).unwrap_or(0),
        "started_on": seconds(task.started),
        "updated_on": seconds(task.updated),
    });
    row["type"] = match task.kind {
        ActiveTaskKind::Compaction => "database_compaction",
        ActiveTaskKind::Index | ActiveTaskKind::View => "indexer",
        ActiveTaskKind::Backup => "backup",
        ActiveTaskKind::Check => "check",
        ActiveTaskKind::Reencryption => "reencryption",
        _ => "other",
    }
    .into();
    match task.kind {
        ActiveTaskKind::Index => {
            row["index"] = task.name.strip_prefix(LIBRARY_PREFIX).unwrap_or(&task.name).into();
            row["design_document"] = design_document_of_index(served, &task.name)?.into();
        }
        ActiveTaskKind::View => {
            let (design, view) = design_document_of_view(served, &task.name)?.unzip();
            row["view"] = view.unwrap_or_else(|| task.name.clone()).into();
            row["design_document"] = design.into();
        }
        ActiveTaskKind::Backup => row["target"] = task.name.as_str().into(),
        _ => {}
    }
    let [done_name, total_name] = match task.kind {
        ActiveTaskKind::Index | ActiveTaskKind::View => ["changes_done", "total_changes"],
        _ => ["bytes_done", "total_bytes"],
    };
    (row[done_name], row[total_name]) = (done.into(), total.into());
    Ok(row)
}

/// The design document of the Mango index for which the library has an index.
fn design_document_of_index(served: &ServedDatabase, name: &str) -> Result<Option<String>> {
    let mut known = indexes(served, &served.database().snapshot()?)?.into_iter();
    let found = known.find(|index| index.library_index().is_some_and(|index| index.name() == name));
    Ok(found.map(|index| index.ddoc))
}

/// The design document and the name of a view.
fn design_document_of_view(served: &Arc<ServedDatabase>, name: &str) -> Result<Option<(String, String)>> {
    let Some(signature) = name.strip_prefix(PROGRAM_PREFIX) else { return Ok(None) };
    let designs = design::all(&served.database().snapshot()?)?;
    let mut views = declared_views(served, &designs)?.into_iter();
    Ok(views.find(|view| view.signature == signature).map(|view| (view.design, view.name)))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
