//! Follows the `_replicator` database: each of its documents requests a replication, which runs for as long as the
//! document exists.
//!
//! A replication that ended is not repeated, not even after a restart, until its document is written again.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use stemmadb::{Change, Sequence};

use tokio::time::sleep;

use super::jobs::{JobOwner, Jobs, now};
use super::request::ReplicationRequest;
use crate::directory::ServedDatabase;
use crate::documents::{REPLICATOR_DATABASE, ReplicationCounts, ReplicationState};
use crate::error::{Failure, Result};
use crate::http::blocking;

/// Runs the replications that documents of `_replicator` request, until the server stops.
pub(crate) async fn follow(jobs: Arc<Jobs>) {
    let mut databases = jobs.context.directory.changed();
    let mut stopping = jobs.context.stopping.clone();
    loop {
        if jobs.context.directory.contains(REPLICATOR_DATABASE)
            && let Err(failure) = follow_documents(&jobs).await
            && failure.status() != StatusCode::MISDIRECTED_REQUEST
        {
            tracing::warn!("the replicator: {failure}");
        }
        tokio::select! {
            changed = databases.changed() => if changed.is_err() { return },
            // Another server of the cluster may have it, and may leave.
            () = sleep(MOVE_POLL), if jobs.context.directory.is_in_cluster() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// How often a server of a cluster looks whether it has the database.
const MOVE_POLL: Duration = Duration::from_secs(2);

/// Runs the requested replications until the database is deleted or the server stops.
async fn follow_documents(jobs: &Arc<Jobs>) -> Result<()> {
    let served = jobs.context.directory.open_database(REPLICATOR_DATABASE).await?;
    let mut published = served.published();
    let mut databases = jobs.context.directory.changed();
    let mut stopping = jobs.context.stopping.clone();
    let mut position = Sequence::ZERO;
    loop {
        published.borrow_and_update();
        let (read, since) = (served.clone(), position);
        let (changes, reached) = blocking(move || {
            let changes = read.database().changes(since)?.documents(true);
            let reached = changes.last_sequence();
            Ok((changes.run().collect::<Result<Vec<_>, _>>()?, reached))
        })
        .await?;
        position = reached;
        for change in changes.into_iter().filter(|change| !change.id.is_design()) {
            apply_change(jobs, &served, change).await?;
        }
        tokio::select! {
            changed = published.changed() => if changed.is_err() {
                if !*jobs.context.stopping.borrow() {
                    // It was closed here: another server of the cluster has it.
                    jobs.cancel_document_jobs(None);
                }
                return Ok(());
            },
            changed = databases.changed() => {
                if changed.is_err() || !jobs.context.directory.contains(REPLICATOR_DATABASE) {
                    jobs.cancel_document_jobs(None);
                    return Ok(());
                }
            }
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        }
    }
}

/// Applies one change of `_replicator`: cancels the document's job, and starts the replication that its new revision
/// requests.
async fn apply_change(jobs: &Arc<Jobs>, served: &Arc<ServedDatabase>, change: Change) -> Result<()> {
    let id = change.id.as_str().to_owned();
    jobs.cancel_document_jobs(Some(&id));
    let Some(document) = change.document.filter(|_| !change.deleted) else { return Ok(()) };
    let revision = change.revision.to_string();
    if ReplicationState::load_for_revision(served, &id, &revision)?.is_some() {
        return Ok(());
    }
    let refused = |failure: &Failure| ReplicationState {
        revision: revision.clone(),
        state: "failed".to_owned(),
        time: now(),
        error: Some(failure.reason().to_owned()),
        id: None,
        counts: None,
    };
    let started = ReplicationRequest::parse(&document.value()?)
        .and_then(|request| jobs.start(request, JobOwner::Document(id.clone())));
    let job = match started {
        Ok(job) => job,
        // A temporary failure, such as too many jobs: the document is tried again later.
        Err(failure) if failure.status().is_server_error() => return Err(failure),
        Err(failure) => return store_state(served, id, refused(&failure)).await,
    };
    let (served, mut stopping) = (served.clone(), jobs.context.stopping.clone());
    tokio::spawn(async move {
        let status = tokio::select! {
            status = job.ended() => status,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if status.history.first().is_some_and(|event| event.what == "cancelled") {
            return;
        }
        let record = ReplicationState {
            revision,
            state: status.state.to_owned(),
            time: now(),
            error: status.error,
            id: Some(job.id.clone()),
            counts: Some(ReplicationCounts::from(&status.done)),
        };
        if let Err(failure) = store_state(&served, id, record).await {
            tracing::warn!("the replicator: {failure}");
        }
    });
    Ok(())
}

/// Stores the final state of a replication.
async fn store_state(served: &Arc<ServedDatabase>, id: String, record: ReplicationState) -> Result<()> {
    let served = served.clone();
    blocking(move || record.save(&served, &id)).await
}
