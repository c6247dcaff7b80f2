//! The route `/_utils`: serves a web dashboard, usually Fauxton, from a configured directory.

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, LOCATION, X_CONTENT_TYPE_OPTIONS};

use crate::app::{Call, Dashboard, INDEX};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};

/// The page that is served if no directory is configured.
const ABSENT: &str = include_str!("dashboard.html");

/// The content security policy: nothing from other origins. Fauxton needs `unsafe-eval`.
const POLICY: &str = "default-src 'self'; child-src 'self' blob:; img-src 'self' data:; font-src 'self' data:; \
    script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'";

/// `GET /_utils`, `GET /_utils/{file*}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    // The dashboard's relative URLs need the trailing slash.
    if call.parts.uri.path() == "/_utils" {
        return Ok(HttpResponse::empty(StatusCode::MOVED_PERMANENTLY).with(LOCATION, "/_utils/"));
    }
    let Dashboard(files) = &call.state.dashboard;
    let name = call.parameters.get("file").unwrap_or(INDEX);
    let answer = match files.get(name) {
        _ if files.is_empty() && name == INDEX => HttpResponse::text(StatusCode::OK, content_type(INDEX), ABSENT),
        None => return Err(Failure::missing()),
        Some(path) => {
            let path = path.clone();
            let read_failure = |error| Failure::internal(format!("a file of the dashboard can't be read: {error}"));
            let content = blocking(move || std::fs::read(path).map_err(read_failure)).await?;
            HttpResponse::text(StatusCode::OK, content_type(name), content)
        }
    };
    Ok(answer.with(CONTENT_SECURITY_POLICY, POLICY).with(X_CONTENT_TYPE_OPTIONS, "nosniff"))
}

/// The content type for the name of a dashboard's or the console's file.
pub(super) fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
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
