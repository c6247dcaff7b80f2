//! The `_replicator` database: each of its documents wants a replication, as long as it is there.
//!
//! One that ended is not done again, at the next start either, until its document is written anew.

use std::sync::Arc;

use stemmadb::{Change, Sequence};

use super::jobs::{Jobs, Owner, now};
use super::request::Request;
use crate::directory::Served;
use crate::documents::{Counts, REPLICATOR_DATABASE, ReplicationState};
use crate::error::{Failure, Result};
use crate::http::blocking;

/// Does what the documents of `_replicator` want, until the server stops.
pub(crate) async fn follow(jobs: Arc<Jobs>) {
    let mut databases = jobs.context.directory.changed();
    let mut stopping = jobs.context.stopping.clone();
    loop {
        if jobs.context.directory.contains(REPLICATOR_DATABASE)
            && let Err(failure) = follow_documents(&jobs).await
        {
            tracing::warn!("the replicator: {failure}");
        }
        tokio::select! {
            changed = databases.changed() => if changed.is_err() { return },
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
    }
}

/// Does what the documents want, until the database is gone or the server stops.
async fn follow_documents(jobs: &Arc<Jobs>) -> Result<()> {
    let served = jobs.context.directory.open_served(REPLICATOR_DATABASE).await?;
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
            want(jobs, &served, change).await?;
        }
        tokio::select! {
            changed = published.changed() => if changed.is_err() { return Ok(()) },
            changed = databases.changed() => {
                if changed.is_err() || !jobs.context.directory.contains(REPLICATOR_DATABASE) {
                    let all = jobs.all();
                    all.iter().filter(|job| job.owner != Owner::Request).for_each(|job| {
                        jobs.cancel(&job.id);
                    });
                    return Ok(());
                }
            }
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        }
    }
}

/// Does what one document wants now.
async fn want(jobs: &Arc<Jobs>, served: &Arc<Served>, change: Change) -> Result<()> {
    let id = change.id.as_str().to_owned();
    jobs.cancel_of(&id);
    let Some(document) = change.document.filter(|_| !change.deleted) else { return Ok(()) };
    let revision = change.revision.to_string();
    if ReplicationState::of_revision(served, &id, &revision)?.is_some() {
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
    let begun = Request::parse(&document.value()?).and_then(|request| jobs.start(request, Owner::Document(id.clone())));
    let job = match begun {
        Ok(job) => job,
        // There may be room after the next start.
        Err(failure) if failure.status().is_server_error() => return Err(failure),
        Err(failure) => return keep(served, id, refused(&failure)).await,
    };
    let (served, mut stopping) = (served.clone(), jobs.context.stopping.clone());
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = job.ended() => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if outcome.history.first().is_some_and(|event| event.what == "cancelled") {
            return;
        }
        let record = ReplicationState {
            revision,
            state: outcome.state.to_owned(),
            time: now(),
            error: outcome.error,
            id: Some(job.id.clone()),
            counts: Some(Counts::from(&outcome.done)),
        };
        if let Err(failure) = keep(&served, id, record).await {
            tracing::warn!("the replicator: {failure}");
        }
    });
    Ok(())
}

/// Notes what became of a replication.
async fn keep(served: &Arc<Served>, id: String, record: ReplicationState) -> Result<()> {
    let served = served.clone();
    blocking(move || record.keep(&served, &id)).await
}
