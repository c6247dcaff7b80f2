//! Webhooks and trigger functions of a database: `_triggers`.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking, server_runtime};
use crate::triggers::TriggerDefinition;

/// `GET /{db}/_triggers`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let (served, triggers) = (call.open_database().await?, call.state.triggers.clone());
    let listed = blocking(move || Ok(triggers.list(&served))).await?;
    HttpResponse::json(StatusCode::OK, &json!({ "triggers": listed }))
}

/// `GET /{db}/_triggers/{name}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let (served, triggers) = (call.open_database().await?, call.state.triggers.clone());
    let name = call.parameter("name")?.to_owned();
    let state = blocking(move || triggers.get(&served, &name)).await?;
    HttpResponse::json(StatusCode::OK, &state)
}

/// `PUT /{db}/_triggers/{name}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let definition = TriggerDefinition::parse(call.json().await?)?;
    let (served, triggers) = (call.open_database().await?, call.state.triggers.clone());
    let (name, runtime) = (call.parameter("name")?.to_owned(), server_runtime());
    blocking(move || triggers.define(served, &name, definition, &runtime)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /{db}/_triggers/{name}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (served, triggers) = (call.open_database().await?, call.state.triggers.clone());
    let name = call.parameter("name")?.to_owned();
    blocking(move || triggers.remove(&served, &name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `POST /{db}/_triggers/{name}/_redeliver`
pub(crate) async fn redeliver(mut call: Call) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    let id = match body.get("id") {
        None => None,
        Some(Value::String(id)) => Some(id.clone()),
        Some(_) => return Err(Failure::bad_request("`id` must be the id of a document, as a string")),
    };
    let (served, triggers) = (call.open_database().await?, call.state.triggers.clone());
    let name = call.parameter("name")?.to_owned();
    let answer = blocking(move || triggers.redeliver(&served, &name, id.as_deref())).await?;
    HttpResponse::json(StatusCode::OK, &answer)
}
