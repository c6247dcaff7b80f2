//! Replication topologies: `_topology`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Value as Json, json};

use crate::app::{Call, ask_others};
use crate::error::Result;
use crate::http::{HttpResponse, blocking};
use crate::replicator::TopologyDefinition;

/// `GET /_topology`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let topologies = call.state.topologies.clone();
    let mut listed = blocking(move || Ok(topologies.list())).await?;
    for answer in ask_others(&call.state, &call.parts, "/_topology").await {
        let of_other = answer.get("topologies").cloned().unwrap_or_default();
        listed.extend(of_other.deserialize_into::<BTreeMap<String, Json>>()?);
    }
    HttpResponse::json(StatusCode::OK, &json!({ "topologies": listed }))
}

/// `GET /_topology/{name}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (topologies, name) = (call.state.topologies.clone(), call.parameter("name")?.to_owned());
    let state = blocking(move || topologies.get(&name)).await?;
    HttpResponse::json(StatusCode::OK, &state)
}

/// `PUT /_topology/{name}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let definition = TopologyDefinition::parse(call.json().await?)?;
    let (topologies, name) = (call.state.topologies.clone(), call.parameter("name")?.to_owned());
    blocking(move || topologies.define(&name, definition)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /_topology/{name}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (topologies, name) = (call.state.topologies.clone(), call.parameter("name")?.to_owned());
    blocking(move || topologies.remove(&name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `POST /_topology/{name}/_pause`
pub(crate) async fn pause(call: Call) -> Result<HttpResponse> {
    set_paused(call, true).await
}

/// `POST /_topology/{name}/_resume`
pub(crate) async fn resume(call: Call) -> Result<HttpResponse> {
    set_paused(call, false).await
}

async fn set_paused(call: Call, paused: bool) -> Result<HttpResponse> {
    let (topologies, name) = (call.state.topologies.clone(), call.parameter("name")?.to_owned());
    blocking(move || topologies.set_paused(&name, paused)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
