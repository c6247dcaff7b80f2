//! The routes `/_console`: the files of the web console.

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, ETAG, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};

use super::dashboard::content_type;
use super::document::has_etag;
use crate::app::{Call, INDEX};
use crate::console::{self, POLICY};
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// `GET /_console`, `GET /_console/{file*}`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    // The page's relative URLs need the trailing slash.
    if call.parts.uri.path() == "/_console" {
        return Ok(HttpResponse::empty(StatusCode::MOVED_PERMANENTLY).with(LOCATION, "/_console/"));
    }
    let file = console::file(call.parameters.get("file").unwrap_or(INDEX)).ok_or_else(Failure::missing)?;
    let is_known = call.header("if-none-match").is_some_and(|tags| has_etag(tags, file.etag.trim_start_matches("W/")));
    let answer = match is_known {
        true => HttpResponse::empty(StatusCode::NOT_MODIFIED),
        false => HttpResponse::text(StatusCode::OK, content_type(file.name), file.content),
    };
    Ok(answer
        .with(ETAG, &file.etag)
        .with(CONTENT_SECURITY_POLICY, POLICY)
        .with(REFERRER_POLICY, "no-referrer")
        .with(X_CONTENT_TYPE_OPTIONS, "nosniff"))
}
