//! Replication topologies: `_topology`.

use hyper::StatusCode;
use serde_json::{Value as Json, json};
use stemmadb_http::url::encode_segment;

use crate::app::{Call, ask_others};
use crate::error::Result;
use crate::http::{HttpResponse, blocking};
use crate::replicator::TopologyDefinition;

/// `GET /_topology`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let topologies = call.state.topologies.clone();
    let mut listed = blocking(move || Ok(topologies.list())).await?;
    for answer in ask_others(&call.state, &call.parts, "/_topology").await {
        let of_other: Json = answer.deserialize_into()?;
        for (name, topology) in &mut listed {
            add_states(topology, &of_other["topologies"][name]);
        }
    }
    HttpResponse::json(StatusCode::OK, &json!({ "topologies": listed }))
}

/// Adds the states of those replications of a topology that another server of the cluster runs.
fn add_states(topology: &mut Json, of_other: &Json) {
    let runs = |replication: &&Json| replication["state"] != "stopped";
    let others: Vec<&Json> = of_other["replications"].as_array().into_iter().flatten().filter(runs).collect();
    for own in topology["replications"].as_array_mut().into_iter().flatten() {
        let is_same = |other: &&&Json| ["source", "target"].iter().all(|side| own[side] == other[side]);
        if own["state"] == "stopped"
            && let Some(other) = others.iter().find(is_same)
        {
            *own = (*other).clone();
        }
    }
}

/// `GET /_topology/{name}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (topologies, name) = (call.state.topologies.clone(), call.parameter("name")?.to_owned());
    let path = format!("/_topology/{}", encode_segment(&name));
    let mut state = blocking(move || topologies.get(&name)).await?;
    for answer in ask_others(&call.state, &call.parts, &path).await {
        add_states(&mut state, &answer.deserialize_into()?);
    }
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
