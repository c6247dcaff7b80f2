//! Requests to the server of a cluster that owns a database, in the name of the client that has sent one here.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, IF_NONE_MATCH, RANGE, TE, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use stemmadb::Value;
use tokio::time::timeout;

use super::ServerState;
use crate::error::{Failure, Result};
use crate::http::{Body, BodyTimeout, HttpResponse, PeerAddress, read_all, relayed_answer};

/// The header of a request that was passed on: the address of its client, and a seal.
pub(crate) const PASSED_ON: HeaderName = HeaderName::from_static("x-stemma-passed-on");

/// The headers of a request that belong to its connection. Its length follows from its body.
const KEPT_BACK: [HeaderName; 7] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    TE,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("transfer-encoding"),
];
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The largest answer that is read as a whole.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How often the server that is to answer is looked for among the members of the cluster.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// An extension of a request that another server of the cluster has passed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassedOn;

/// How long an answer that is passed on may stand still: feeds are quiet, and a server that ends closes its
/// connections.
pub(crate) const QUIET_MAX: Duration = Duration::from_secs(3600);

/// A request that was not answered.
pub(crate) struct Unanswered {
    pub(crate) failure: Failure,
    /// Whether it certainly had no effect.
    pub(crate) is_harmless: bool,
}

/// Sends a request to another server, and waits for the head of its answer as long as that is a member of the cluster.
pub(crate) async fn send_to_owner(
    state: &Arc<ServerState>,
    parts: &Parts,
    owner: &str,
    body: Body,
) -> std::result::Result<Response<Incoming>, Unanswered> {
    let unanswered = |why: String, is_harmless| Unanswered { failure: unavailable(owner, &why), is_harmless };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().method(parts.method.clone()).uri(format!("{owner}{path}"));
    if let Some(headers) = request.headers_mut() {
        *headers = passed_headers(state, parts);
    }
    let request = request.body(body).map_err(|error| unanswered(error.to_string(), true))?;
    let mut response = std::pin::pin!(state.outbound.client.request(request));
    loop {
        match timeout(LOOK_INTERVAL, response.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => return Err(unanswered(error.to_string(), error.is_connect())),
            Err(_) if state.directory.members().iter().any(|member| member == owner) => {}
            Err(_) => return Err(unanswered("it is no longer in the cluster".to_owned(), false)),
        }
    }
}

/// Reads a path of another server of the cluster as the client of a request. Returns the JSON of the answer.
///
/// # Errors
/// The error that the server answers with; 503 if it does not answer.
pub(crate) async fn ask_owner(state: &Arc<ServerState>, parts: &Parts, owner: &str, path: &str) -> Result<Value> {
    let mut asked = parts.clone();
    asked.method = Method::GET;
    asked.uri = path.parse().map_err(|_| Failure::internal("a path is malformed"))?;
    [CONTENT_TYPE, CONTENT_ENCODING, ACCEPT_ENCODING, IF_MATCH, IF_NONE_MATCH, RANGE].iter().for_each(|name| {
        asked.headers.remove(name);
    });
    let answer = send_to_owner(state, &asked, owner, Body::Full(None)).await.map_err(|error| error.failure)?;
    let (status, timeouts) = (answer.status(), BodyTimeout::for_peer(state.config.limits.stall_timeout));
    let reservation = state.memory.reservation();
    let bytes = read_all(answer.into_body(), ANSWER_BYTES_MAX, timeouts, Some(&reservation)).await?;
    let answer = Value::parse(&bytes)?;
    if status.is_success() {
        return Ok(answer);
    }
    let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or("unknown").to_owned();
    Err(Failure::new(status, text("error"), text("reason")))
}

/// Reads a path of all other servers of the cluster as the client of a request, unless one of them has passed it on.
/// Those that don't answer are left out.
pub(crate) async fn ask_others(state: &Arc<ServerState>, parts: &Parts, path: &str) -> Vec<Value> {
    let others = other_members(state, parts);
    let asked = join_all(others.iter().map(|other| ask_owner(state, parts, other, path))).await;
    asked.into_iter().flatten().collect()
}

/// The other servers of the cluster; none if one of them has passed a request on.
pub(crate) fn other_members(state: &ServerState, parts: &Parts) -> Vec<String> {
    let mut members = state.directory.members();
    let own = state.directory.own_address();
    members.retain(|member| Some(member.as_str()) != own && parts.extensions.get::<PassedOn>().is_none());
    members
}

/// The answer of another server of the cluster to a request with this JSON body.
///
/// # Errors
/// 503 if it does not answer.
pub(crate) async fn answer_of(
    state: &Arc<ServerState>,
    parts: &Parts,
    other: &str,
    body: &Value,
) -> Result<HttpResponse> {
    let mut asked = parts.clone();
    asked.headers.remove(CONTENT_ENCODING);
    asked.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = Body::Full(Some(body.to_json().into()));
    let answer = send_to_owner(state, &asked, other, body).await.map_err(|error| error.failure)?;
    Ok(relayed_answer(&parts.method, answer, BodyTimeout::for_peer(QUIET_MAX), ()))
}

fn passed_headers(state: &ServerState, parts: &Parts) -> HeaderMap {
    let mut headers = parts.headers.clone();
    let is_upgrade = upgrades(parts);
    for name in KEPT_BACK {
        if !is_upgrade || ![CONNECTION, UPGRADE].contains(&name) {
            headers.remove(name);
        }
    }
    if let Some(authority) = parts.uri.authority()
        && !headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    let address = PeerAddress::of(parts).to_string();
    if let Ok(sealed) = HeaderValue::from_str(&format!("{address};{}", state.authenticator.seal(&address))) {
        headers.insert(PASSED_ON, sealed);
    }
    if state.config.is_encrypted() {
        headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static("https"));
    }
    headers
}

/// Whether a request is to make another connection of its own, such as a WebSocket.
fn upgrades(parts: &Parts) -> bool {
    parts.headers.contains_key(UPGRADE) && parts.extensions.get::<OnUpgrade>().is_some()
}

fn unavailable(owner: &str, why: &str) -> Failure {
    let reason = format!("The server {owner} does not answer: {why}");
    Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
}
