//! The `_replicator` database: each of its documents wants a replication, as long as it is there.
//!
//! What became of one that ends is kept in a `_local` document with the revision that asked, so that it is not done again at the next start.

use std::sync::Arc;

use stemmadb::{Change, Object, Sequence, Value};

use super::jobs::{Owner, now};
use super::request::Request;
use crate::directory::Served;
use crate::error::Result;
use crate::http::{State, blocking};

/// The database of replications.
pub(crate) const REPLICATOR: &str = "_replicator";

/// Does what the documents of `_replicator` want, until the server stops.
pub(crate) async fn follow(state: Arc<State>) {
    let mut databases = state.directory.changed();
    let mut stopping = state.stopping.clone();
    loop {
        if state.directory.contains(REPLICATOR)
            && let Err(failure) = follow_documents(&state).await
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
async fn follow_documents(state: &Arc<State>) -> Result<()> {
    let served = state.directory.open_served(REPLICATOR).await?;
    let mut published = served.published();
    let mut databases = state.directory.changed();
    let mut stopping = state.stopping.clone();
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
            want(state, &served, change).await?;
        }
        tokio::select! {
            changed = published.changed() => if changed.is_err() { return Ok(()) },
            changed = databases.changed() => {
                if changed.is_err() || !state.directory.contains(REPLICATOR) {
                    let jobs = state.jobs.all();
                    jobs.iter().filter(|job| job.owner != Owner::Request).for_each(|job| {
                        state.jobs.cancel(&job.id);
                    });
                    return Ok(());
                }
            }
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        }
    }
}

/// Does what one document wants now.
async fn want(state: &Arc<State>, served: &Arc<Served>, change: Change) -> Result<()> {
    let id = change.id.as_str().to_owned();
    state.jobs.cancel_of(&id);
    let Some(document) = change.document.filter(|_| !change.deleted) else { return Ok(()) };
    let revision = change.revision.to_string();
    let record = format!("_local/replication/{id}");
    let kept = served.database().get_local(&record)?.map(|(_, body)| body);
    let is_done = kept.is_some_and(|kept| kept.get("revision").and_then(Value::as_str) == Some(&revision));
    if is_done {
        return Ok(());
    }
    let request = match Request::parse(&document.value()?) {
        Ok(request) => request,
        Err(failure) => {
            return keep(served, record, &revision, "failed", Some(failure.reason().to_owned())).await;
        }
    };
    let job = state.jobs.start(state, request, Owner::Document(id))?;
    let (served, state) = (served.clone(), state.clone());
    tokio::spawn(async move {
        let mut stopping = state.stopping.clone();
        let outcome = tokio::select! {
            outcome = job.ended() => outcome,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        let was_cancelled = outcome.history.first().is_some_and(|(_, what)| *what == "cancelled");
        if !was_cancelled && let Err(failure) = keep(&served, record, &revision, outcome.state, outcome.error).await {
            tracing::warn!("the replicator: {failure}");
        }
    });
    Ok(())
}

/// Notes what became of a replication.
async fn keep(served: &Arc<Served>, record: String, revision: &str, state: &str, error: Option<String>) -> Result<()> {
    let mut body = Object::new();
    body.insert("revision", revision);
    body.insert("state", state);
    body.insert("time", now());
    if let Some(error) = error {
        body.insert("error", error);
    }
    let served = served.clone();
    blocking(move || {
        served.database().put_local(&record, None, &Value::Object(body))?;
        Ok(())
    })
    .await
}
