//! Other servers, on which shards of virtual databases lie: `_servers`.

use hyper::StatusCode;
use serde_json::json;

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::servers::ServerDefinition;

/// `GET /_servers`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&json!({ "servers": call.state.servers.list() }))
}

/// `GET /_servers/{name}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&call.state.servers.shown(call.parameter("name")?)?)
}

/// `PUT /_servers/{name}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let definition = ServerDefinition::parse(call.json().await?)?;
    let (servers, name) = (call.state.servers.clone(), call.parameter("name")?.to_owned());
    blocking(move || servers.define(&name, definition)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /_servers/{name}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (servers, name) = (call.state.servers.clone(), call.parameter("name")?.to_owned());
    if let Some(database) = call.state.virtual_databases.database_on(&name).await? {
        return Err(Failure::new(
            StatusCode::CONFLICT,
            "conflict",
            format!("The server has shards of the virtual database `{database}`: move them first."),
        ));
    }
    blocking(move || servers.remove(&name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
