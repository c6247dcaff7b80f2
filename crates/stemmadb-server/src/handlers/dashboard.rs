//! `/_utils`: a page to look into databases with, Fauxton as a rule. Its files come from a directory that the configuration names.

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, LOCATION, X_CONTENT_TYPE_OPTIONS};

use crate::app::{Call, Dashboard, INDEX};
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};

/// What is shown where no directory is named.
const ABSENT: &str = include_str!("dashboard.html");

/// What the page may load and do: nothing from elsewhere. Fauxton makes code of text.
const POLICY: &str = "default-src 'self'; child-src 'self' blob:; img-src 'self' data:; font-src 'self' data:; \
    script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'";

/// `GET /_utils`, `GET /_utils/{file*}`
pub(crate) async fn get(call: Call) -> Result<Answer> {
    // Its addresses are relative to a directory.
    if call.parts.uri.path() == "/_utils" {
        return Ok(Answer::empty(StatusCode::MOVED_PERMANENTLY).with(LOCATION, "/_utils/"));
    }
    let Dashboard(files) = &call.state.dashboard;
    let name = call.parameters.get("file").unwrap_or(INDEX);
    let answer = match files.get(name) {
        _ if files.is_empty() && name == INDEX => Answer::text(StatusCode::OK, content_type(INDEX), ABSENT),
        None => return Err(Failure::missing()),
        Some(path) => {
            let path = path.clone();
            let lost = |error| Failure::internal(format!("a file of the dashboard can't be read: {error}"));
            let content = blocking(move || std::fs::read(path).map_err(lost)).await?;
            Answer::text(StatusCode::OK, content_type(name), content)
        }
    };
    Ok(answer.with(CONTENT_SECURITY_POLICY, POLICY).with(X_CONTENT_TYPE_OPTIONS, "nosniff"))
}

/// What a file of this name is.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "gif" => "image/gif",
        "jpg" | "jpeg" => "image/jpeg",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
