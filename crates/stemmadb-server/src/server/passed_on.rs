//! Requests that a server of a cluster passes on to the one that owns their database.
//!
//! They are passed on as they came, before they are authenticated; the owner does that. A header, sealed with the
//! secret that the servers share, says that a server of the cluster has sent the request, and whose it is.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use subtle::ConstantTimeEq;
use tokio::time::sleep;

use crate::app::{PASSED_ON, PassedOn, QUIET_MAX, ServerState, send_to_owner};
use crate::auth::{Route, SERVER_SEAL};
use crate::directory::{Place, ServedDatabase};
use crate::documents::REPLICATOR_DATABASE;
use crate::error::{Failure, Result};
use crate::http::{
    Body, BodyTimeout, EndingBody, HttpResponse, Parameters, PeerAddress, RequestBody, read_all, relayed_answer,
    relayed_body, server_runtime,
};

/// A body up to this many bytes is kept until the request is answered: it can be sent to another server.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// How long a request waits, beyond the time of two leases, for a server that answers it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The waits between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Where a request goes on.
pub(super) enum Passed {
    /// Here, with its body.
    Here(Option<Arc<ServedDatabase>>, RequestBody),
    /// It was answered by another server.
    Answered(HttpResponse),
}

/// Whether another server of the cluster has passed a request on. Its client's address is that of the request then.
///
/// # Errors
/// 403 if the seal is not the cluster's.
pub(super) fn was_passed_on(state: &ServerState, parts: &mut Parts) -> Result<bool> {
    let Some(header) = parts.headers.remove(&PASSED_ON) else { return Ok(false) };
    let forged = || Failure::forbidden(format!("`{PASSED_ON}` is for servers of a cluster."));
    let (address, seal) = header.to_str().ok().and_then(|text| text.split_once(';')).ok_or_else(forged)?;
    let expected = state.authenticator.seal(address);
    if !state.directory.is_in_cluster() || !bool::from(seal.as_bytes().ct_eq(expected.as_bytes())) {
        return Err(forged());
    }
    let address: IpAddr = address.parse().map_err(|_| forged())?;
    parts.extensions.insert(PeerAddress(SocketAddr::new(address, 0)));
    parts.extensions.insert(PassedOn);
    Ok(true)
}

/// The database whose owner answers a request in a cluster; none if every server does.
pub(super) fn database_of<'a>(route: &Route, parameters: &'a Parameters) -> Option<&'a str> {
    // Replications that documents ask for run on the server that has the documents.
    let of_replicator = route.path.starts_with("/_scheduler/docs").then_some(REPLICATOR_DATABASE);
    parameters.get("db").or(of_replicator)
}

/// Passes a request for the database `name` on if another server of the cluster owns it.
///
/// # Errors
/// 421 if it was passed on here by mistake; 503 if no server answers.
pub(super) async fn pass_on(
    state: &Arc<ServerState>,
    parts: &mut Parts,
    name: &str,
    is_passed_on: bool,
    creates: bool,
    body: RequestBody,
) -> Result<Passed> {
    let mut owner = match state.directory.place(name, is_passed_on, creates).await {
        Ok(Place::Here(served)) => return Ok(Passed::Here(served, body)),
        Ok(Place::There(owner)) if is_passed_on => return Err(misdirected(name, &owner)),
        // The server that has passed it on may reach the cluster; or the one that has passed on the request of which
        // this is a part.
        Err(failure)
            if failure.status() == StatusCode::SERVICE_UNAVAILABLE
                && (is_passed_on || parts.headers.contains_key(SERVER_SEAL)) =>
        {
            return Err(misdirected(name, "another server"));
        }
        place => match place? {
            Place::Here(served) => return Ok(Passed::Here(served, body)),
            Place::There(owner) => owner,
        },
    };
    let deadline = Instant::now() + 2 * state.directory.lease() + PATIENCE;
    let mut body = OutgoingBody::of(state, parts, body).await?;
    let mut pause = PAUSES.0;
    loop {
        let failure = match send_to_owner(state, parts, &owner, body.take()).await {
            Ok(response) if response.status() != StatusCode::MISDIRECTED_REQUEST => {
                return Ok(Passed::Answered(answered(state, parts, response)));
            }
            Ok(_) => misdirected(name, &owner),
            Err(unanswered) if unanswered.is_harmless || parts.method.is_safe() => unanswered.failure,
            Err(unanswered) => return Err(unanswered.failure),
        };
        if !body.is_kept() || Instant::now() > deadline {
            let reason = format!("No server of the cluster answers for `{name}`: {}", failure.reason());
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
        state.directory.forget_place(name);
        owner = match state.directory.place(name, false, creates).await? {
            Place::Here(served) => return Ok(Passed::Here(served, body.into_request_body())),
            Place::There(owner) => owner,
        };
    }
}

/// The error for a request whose database was taken by another server before it was answered. Who has passed it on may
/// ask that one if the request only read.
pub(super) fn no_longer_owned(may_be_repeated: bool) -> Failure {
    let reason = "The database was taken over by another server of the cluster: repeat the request.";
    of_handler(Failure::new(StatusCode::MISDIRECTED_REQUEST, "misdirected_request", reason), may_be_repeated)
}

/// The failure of a handler. If a part of the request was misdirected, the server that has passed the request on is
/// told so only if it may repeat it, because nothing was done.
pub(super) fn of_handler(failure: Failure, may_be_repeated: bool) -> Failure {
    match failure.status() {
        StatusCode::MISDIRECTED_REQUEST if !may_be_repeated => {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", failure.reason().to_owned())
        }
        _ => failure,
    }
}

fn misdirected(name: &str, owner: &str) -> Failure {
    let reason = format!("`{name}` is served by {owner}.");
    Failure::new(StatusCode::MISDIRECTED_REQUEST, "misdirected_request", reason)
}

/// The body of a request that is passed on.
enum OutgoingBody {
    /// It can be sent again.
    Kept(Option<Bytes>),
    /// It is sent while it arrives.
    Arriving(Option<Body>),
}

impl OutgoingBody {
    async fn of(state: &ServerState, parts: &Parts, body: RequestBody) -> Result<Self> {
        let stall_timeout = state.config.limits.stall_timeout;
        let timeouts = BodyTimeout::for_client(stall_timeout);
        if body.is_end_stream() {
            return Ok(OutgoingBody::Kept(None));
        }
        let length = body.size_hint().exact();
        if length.is_some_and(|length| length <= KEPT_BYTES_MAX) {
            let reservation = state.memory.reservation();
            let bytes = read_all(body, KEPT_BYTES_MAX as usize, timeouts, Some(&reservation)).await?;
            return Ok(OutgoingBody::Kept(Some(bytes)));
        }
        let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(OutgoingBody::Arriving(Some(relayed_body(body, length, timeouts, ()))))
    }

    fn take(&mut self) -> Body {
        match self {
            OutgoingBody::Kept(bytes) => Body::Full(bytes.clone()),
            OutgoingBody::Arriving(body) => body.take().unwrap_or(Body::Full(None)),
        }
    }

    fn is_kept(&self) -> bool {
        matches!(self, OutgoingBody::Kept(_))
    }

    fn into_request_body(self) -> RequestBody {
        match self {
            OutgoingBody::Kept(bytes) => RequestBody::replaced(bytes.unwrap_or_default()),
            OutgoingBody::Arriving(_) => RequestBody::replaced(Bytes::new()),
        }
    }
}

/// The answer of another server as one of this server.
fn answered(state: &Arc<ServerState>, parts: &mut Parts, mut response: Response<Incoming>) -> HttpResponse {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = parts.extensions.remove::<OnUpgrade>()
    {
        let server = hyper::upgrade::on(&mut response);
        let mut stopping = state.stopping.clone();
        server_runtime().spawn(async move {
            let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        });
        let mut answer = HttpResponse::empty(StatusCode::SWITCHING_PROTOCOLS);
        for (name, value) in response.headers() {
            if let Ok(value) = value.to_str() {
                answer = answer.with(name.clone(), value);
            }
        }
        return answer;
    }
    let timeouts = BodyTimeout::for_peer(QUIET_MAX);
    if !is_feed(parts, &response) {
        return relayed_answer(&parts.method, response, timeouts, ());
    }
    // Its owner goes on when this server stops.
    let mut stopping = state.stopping.clone();
    let stopped = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
    relayed_answer(&parts.method, response.map(|body| EndingBody::new(body, stopped)), timeouts, ())
}

/// Whether an answer has no end of its own.
fn is_feed(parts: &Parts, response: &Response<Incoming>) -> bool {
    let waits = |parameter: &str| matches!(parameter, "feed=continuous" | "feed=eventsource" | "feed=longpoll");
    let is_stream = |kind: &HeaderValue| kind.as_bytes().starts_with(b"text/event-stream");
    response.headers().get(CONTENT_TYPE).is_some_and(is_stream)
        || parts.uri.query().is_some_and(|query| query.split('&').any(waits))
}
