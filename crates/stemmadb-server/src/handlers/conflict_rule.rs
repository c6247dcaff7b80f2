//! The conflict rule of a database: `_conflict_rule`.

use hyper::StatusCode;

use crate::app::Call;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};
use crate::replicator::ConflictDefinition;

/// `GET /{db}/_conflict_rule`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (served, rules) = (call.open_database().await?, call.state.jobs.conflict_rules().clone());
    let shown = blocking(move || rules.get(&served)).await?;
    HttpResponse::json(StatusCode::OK, &shown)
}

/// `PUT /{db}/_conflict_rule`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let definition = ConflictDefinition::parse(call.json().await?)?;
    let (served, rules) = (call.open_database().await?, call.state.jobs.conflict_rules().clone());
    blocking(move || rules.define(&served, definition)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /{db}/_conflict_rule`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (served, rules) = (call.open_database().await?, call.state.jobs.conflict_rules().clone());
    blocking(move || rules.remove(&served)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
