//! The routes `_roles`: roles with statements.

use hyper::StatusCode;
use serde_json::json;

use crate::accounts::Role;
use crate::app::Call;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};

/// `GET /_roles`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&json!({"roles": call.state.authenticator.roles().list()}))
}

/// `PUT /_roles/{role}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let role = Role::parse(call.json().await?)?;
    let (state, name) = (call.state.clone(), call.parameter("role")?.to_owned());
    blocking(move || state.authenticator.roles().put(&state.directory, &name, role)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /_roles/{role}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (state, name) = (call.state.clone(), call.parameter("role")?.to_owned());
    blocking(move || state.authenticator.roles().remove(&state.directory, &name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
