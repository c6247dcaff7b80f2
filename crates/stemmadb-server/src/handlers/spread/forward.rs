//! Requests about one document whose shard is on another server: passed on, and the answer passed back, in bounded
//! memory.

use std::sync::Arc;

use hyper::body::{Body as HttpBody, Incoming};
use hyper::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH, LOCATION,
    RANGE,
};
use hyper::{Method, Response};
use stemmadb::Value;
use stemmadb_http::url::encode_segment;
use tokio::sync::OwnedRwLockReadGuard;

use super::shard_call::{on_behalf, query_text};
use crate::app::Call;
use crate::error::{Failure, Result};
use crate::handlers::document::absolute_url;
use crate::http::{Body, BodyTimeout, HttpResponse, relayed_answer, relayed_body};
use crate::virtual_databases::{DesignWrite, EnteredVirtual, OUTDATED, OpenVirtual, RemoteShard};

/// The headers of a request that are passed on.
const PASSED_ON: [HeaderName; 7] =
    [ACCEPT, CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH, IF_MATCH, IF_NONE_MATCH, RANGE];
const FULL_COMMIT: HeaderName = HeaderName::from_static("x-couch-full-commit");
/// Passes a request on to the server of its document's shard, where the document stays until the answer ends.
pub(super) async fn forward(mut call: Call, remote: &RemoteShard, id: &str) -> Result<HttpResponse> {
    let stall_timeout = call.state.config.limits.stall_timeout;
    let open = call.entered()?.open.clone();
    let _write = begin_design_write(&call.parts.method, &open, [id]).await?;
    let headers = passed_on(&call, &open, remote).await?;
    let guard = call.virtual_database.take().map(EnteredVirtual::into_guard);
    let body = match call.body.take() {
        None => Body::Full(None),
        Some(body) if body.is_end_stream() => Body::Full(None),
        Some(body) => {
            let length = call.header("content-length").and_then(|length| length.parse().ok());
            relayed_body(body, length, BodyTimeout::for_client(stall_timeout), ())
        }
    };
    let (rest, method) = (rest_of_path(&call)?, call.parts.method.clone());
    let path = remote.path(&format!("{rest}{}", query_text(&call.query)));
    let answer = remote.server.send(method, &path, headers, body, stall_timeout).await?;
    if answer.status() == OUTDATED {
        return Err(remote.outdated().await);
    }
    match passed_back(&call, answer, guard) {
        (response, true) => {
            let path = format!("/{}{rest}", encode_segment(call.parameter("db")?));
            Ok(response.with(LOCATION, &absolute_url(&call, &path)))
        }
        (response, false) => Ok(response),
    }
}

/// Sends the request's route, with this body, to the server of a shard. `ids` are those of the documents.
pub(in crate::handlers) async fn forward_body<'a>(
    mut call: Call,
    remote: &RemoteShard,
    body: &Value,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<HttpResponse> {
    let open = call.entered()?.open.clone();
    let _write = begin_design_write(&call.parts.method, &open, ids).await?;
    let mut headers = passed_on(&call, &open, remote).await?;
    let guard = call.virtual_database.take().map(EnteredVirtual::into_guard);
    [CONTENT_ENCODING, CONTENT_LENGTH].iter().for_each(|name| drop(headers.remove(name)));
    let rest = call.route.path.strip_prefix("/{db}").unwrap_or_default();
    let path = remote.path(&format!("{rest}{}", query_text(&call.query)));
    let (body, wait) = (Body::Full(Some(body.to_json().into())), call.state.config.limits.stall_timeout);
    let answer = remote.server.send(call.parts.method.clone(), &path, headers, body, wait).await?;
    if answer.status() == OUTDATED {
        return Err(remote.outdated().await);
    }
    Ok(passed_back(&call, answer, guard).0)
}

/// The answer of another server as an answer of this one; and whether it names the location of a document.
fn passed_back(
    call: &Call,
    answer: Response<Incoming>,
    guard: Option<OwnedRwLockReadGuard<()>>,
) -> (HttpResponse, bool) {
    let timeouts = BodyTimeout::for_peer(call.state.config.limits.stall_timeout);
    let has_location = answer.headers().contains_key(LOCATION);
    (relayed_answer(&call.parts.method, answer, timeouts, guard), has_location)
}

/// What to hold while documents are written, if there are design documents among them.
pub(super) async fn begin_design_write<'a>(
    method: &Method,
    open: &Arc<OpenVirtual>,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<Option<DesignWrite>> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match !reads && ids.into_iter().any(|id| id.starts_with("_design/")) {
        true => open.begin_design_write().await.map(Some),
        false => Ok(None),
    }
}

/// The headers of a request to a shard: some of the client's, and its user.
async fn passed_on(call: &Call, open: &OpenVirtual, remote: &RemoteShard) -> Result<HeaderMap> {
    let mut headers = on_behalf(call, open, remote).await?;
    for name in PASSED_ON.into_iter().chain([FULL_COMMIT]) {
        if let Some(value) = call.parts.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    Ok(headers)
}

/// The path after the name of the database, as the client wrote it.
pub(super) fn rest_of_path(call: &Call) -> Result<String> {
    let path = call.parts.uri.path().trim_start_matches('/');
    let (_, rest) = path.split_once('/').ok_or_else(|| Failure::internal("the path names no document"))?;
    Ok(format!("/{rest}"))
}
