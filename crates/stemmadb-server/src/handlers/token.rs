//! The routes `_tokens`: create, list and revoke API tokens.

use hyper::StatusCode;
use serde_json::json;

use crate::accounts::TokenRequest;
use crate::app::Call;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};

/// `GET /_tokens`
pub(crate) async fn list(call: Call) -> Result<HttpResponse> {
    let state = call.state.clone();
    let listed = blocking(move || Ok(state.authenticator.newest(&state.directory)?.tokens().list())).await?;
    HttpResponse::ok(&json!({"tokens": listed}))
}

/// `POST /_tokens`
pub(crate) async fn create(mut call: Call) -> Result<HttpResponse> {
    let request = TokenRequest::parse(call.json().await?)?;
    let state = call.state.clone();
    let (listed, text) =
        blocking(move || state.authenticator.newest(&state.directory)?.tokens().create(&state.directory, request))
            .await?;
    let created = match text {
        Some(text) => json!({"ok": true, "token": text, "info": listed}),
        None => json!({"ok": true, "info": listed}),
    };
    HttpResponse::json(StatusCode::CREATED, &created)
}

/// `GET /_signing_key`
pub(crate) async fn signing_key(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&json!({"algorithm": "ed25519", "public_key": call.state.jobs.signing_key().public_key()}))
}

/// `DELETE /_tokens/{token}`
pub(crate) async fn revoke(call: Call) -> Result<HttpResponse> {
    let name = call.parameter("token")?.to_owned();
    let state = call.state.clone();
    blocking(move || state.authenticator.newest(&state.directory)?.tokens().revoke(&state.directory, &name)).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}
