//! The route `_session`: cookie authentication.

use hyper::StatusCode;
use hyper::header::{LOCATION, SET_COOKIE};
use serde_json::json;
use stemmadb::Value;

use super::document::absolute_url;
use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::PeerAddress;
use crate::http::{HttpResponse, JsonPurpose, Query, read_json};

/// `GET /_session`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let user = &call.user;
    let mut info = json!({
        "authentication_db": crate::auth::USERS_DATABASE,
        "authentication_handlers": ["token", "jwt", "cookie", "default"],
    });
    if call.state.config.proxy_secret.is_some() {
        info["authentication_handlers"] = json!(["proxy", "token", "jwt", "cookie", "default"]);
    }
    if let Some(how) = user.how {
        info["authenticated"] = how.into();
    }
    HttpResponse::ok(&json!({"ok": true, "userCtx": user, "info": info}))
}

/// The longest login body. It is small because the client is not authenticated yet.
const LOGIN_BYTES_MAX: usize = 16 << 10;

/// Reads the name and the password from a form or from JSON.
async fn credentials(call: &mut Call) -> Result<(String, String)> {
    let content_type = call.header("content-type").unwrap_or_default().to_ascii_lowercase();
    let bytes = call.bytes_up_to(LOGIN_BYTES_MAX).await?;
    let (name, password) = if content_type.starts_with("application/json") {
        let sent = read_json(&bytes, JsonPurpose::Parameters)?;
        let text = |name: &str| sent.get(name).and_then(Value::as_str).map(str::to_owned);
        (text("name").or_else(|| text("username")), text("password"))
    } else if !content_type.starts_with("application/x-www-form-urlencoded") {
        (None, None)
    } else {
        let text = String::from_utf8(bytes.to_vec()).map_err(|_| Failure::bad_request("the form is not UTF-8"))?;
        let form = Query::parse(&text)?;
        let text = |name: &str| form.text(name).map(str::to_owned);
        (text("name").or_else(|| text("username")), text("password"))
    };
    match (name, password) {
        (Some(name), Some(password)) => Ok((name, password)),
        _ => Err(Failure::bad_request("request body must contain a username and a password")),
    }
}

/// `POST /_session`
pub(crate) async fn post(mut call: Call) -> Result<HttpResponse> {
    let next = next(&call)?;
    let (name, password) = credentials(&mut call).await?;
    let (auth, directory) = (&call.state.authenticator, &call.state.directory);
    let user = auth.log_in(directory, PeerAddress::of(&call.parts), &name, &password).await?;
    let cookie = auth.session(directory, &name).await?;
    let body = json!({"ok": true, "name": user.name, "roles": user.roles});
    let answer = match next {
        Some(next) => HttpResponse::json(StatusCode::FOUND, &body)?.with(LOCATION, &next),
        None => HttpResponse::ok(&body)?,
    };
    Ok(answer.with(SET_COOKIE, &cookie))
}

/// The URL of the redirect target `?next=`, a path of this server.
///
/// # Errors
/// 400 for anything else, to prevent redirects to other servers.
fn next(call: &Call) -> Result<Option<String>> {
    let Some(next) = call.query.text("next") else { return Ok(None) };
    match next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n', '\t']) {
        true => Ok(Some(absolute_url(call, next))),
        false => Err(Failure::bad_request("path must begin with a /.")),
    }
}

/// `DELETE /_session`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    let cookie = call.state.authenticator.no_session();
    let answer = match next(&call)? {
        Some(next) => HttpResponse::json(StatusCode::FOUND, &json!({"ok": true}))?.with(LOCATION, &next),
        None => HttpResponse::done(StatusCode::OK),
    };
    Ok(answer.with(SET_COOKIE, &cookie))
}
