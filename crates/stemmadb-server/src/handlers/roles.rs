//! The routes `_roles`: roles with statements.

use hyper::StatusCode;
use serde_json::json;

use crate::accounts::Role;
use crate::app::Call;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};

/// `GET /_roles`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let state = call.state.clone();
    let listed = blocking(move || Ok(state.authenticator.newest(&state.directory)?.roles().list())).await?;
    HttpResponse::ok(&json!({"roles": listed}))
}

/// `PUT /_roles/{role}`
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let role = Role::parse(call.json().await?)?;
    let (state, name) = (call.state.clone(), call.parameter("role")?.to_owned());
    blocking(move || state.authenticator.newest(&state.directory)?.roles().put(&state.directory, &name, role)).await?;
    Ok(HttpResponse::done(StatusCode::CREATED))
}

/// `DELETE /_roles/{role}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let (state, name) = (call.state.clone(), call.parameter("role")?.to_owned());
    blocking(move || state.authenticator.newest(&state.directory)?.roles().remove(&state.directory, &name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
