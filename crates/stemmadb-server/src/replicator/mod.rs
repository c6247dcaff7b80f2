//! The replicator: runs replications between databases of this server and of other servers, once or continuously.
//!
//! The library implements the replication protocol between two peers, and the crate `stemmadb-http` the peers over
//! HTTP. This module provides the local ones ([`local`]), and runs the jobs ([`jobs`]): each has a thread while it
//! copies, because the library blocks, and none while it waits. Failed jobs are retried with exponential backoff, and
//! conflict rules are applied ([`conflicts`]). The state of a document of `_replicator` is
//! stored beside it ([`ReplicationState`]). [`Topologies`] run several replications together. All blocking waits go
//! through a [`BlockingRuntime`], so that tests can run everything on one thread over a simulated network.

mod acknowledgements;
mod conflicts;
mod follow;
mod jobs;
mod local;
mod request;
#[cfg(test)]
mod simulation;
mod topologies;
mod virtual_peer;

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use stemmadb::Value;
use stemmadb::replication::Peer;
use stemmadb_http::runtime::BlockingRuntime;
use stemmadb_http::{HttpPeer, PeerLimits, SigningKey};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{Limits, Replicator};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::MemoryBudget;
use crate::outbound::OutboundClient;
pub(crate) use acknowledgements::{Acknowledgements, TargetWait};
pub(crate) use conflicts::{ConflictDefinition, ConflictRules};
pub(crate) use follow::follow;
pub(crate) use jobs::{JOB_THREADS_MAX, Job, JobContext, JobEvent, JobOwner, JobStatus, Jobs};
use request::Endpoint;
pub(crate) use request::ReplicationRequest;
pub(crate) use topologies::{Topologies, TopologyDefinition, tend_topologies};

/// The timeout for a response of another server that makes no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the database at an HTTP URL, `http://user:password@host:port/name`, as a peer to replicate or mirror from a
/// program that is not a server. Its calls block and must run on a thread that may block; they end when `cancelled`
/// becomes true.
///
/// # Errors
/// 400 if `url` is not the URL of a database.
pub fn peer(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<Arc<dyn Peer>> {
    Ok(Arc::new(remote(url, runtime, cancelled)?))
}

/// Sends a request to a route below an HTTP URL: `/_restore` of a database, or `/_topology` of a server. Returns the
/// answer. Blocks for as long as the server works on it, up to a day.
///
/// # Errors
/// `Invalid` if `url` is no HTTP URL; the errors that the server reports.
pub fn request(
    method: Method,
    url: &str,
    route: &str,
    body: Option<&Value>,
    runtime: Handle,
) -> stemmadb::Result<Value> {
    let (_sender, cancelled) = watch::channel(false);
    let remote = remote(url, runtime, cancelled);
    let remote = remote.map_err(|failure| stemmadb::Error::invalid(failure.reason().to_owned()))?;
    remote.request(method, route, body, Duration::from_hours(24))
}

fn remote(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<HttpPeer> {
    match Endpoint::parse(&Value::from(url), "database")? {
        Endpoint::Remote { is_signed: true, .. } => {
            Err(Failure::bad_request("only a server signs its requests with its own key"))
        }
        Endpoint::Remote { url, headers, .. } => {
            let outbound = OutboundClient::new(&Replicator::default())?;
            let limits = Limits::default();
            let memory = MemoryBudget::new(limits.bodies_bytes, limits.stall_timeout);
            let (limits, runtime) = (peer_limits(limits.body_bytes, memory), BlockingRuntime::Threaded(runtime));
            Ok(HttpPeer::with_client(outbound.client, url, headers, runtime, limits, cancelled))
        }
        Endpoint::Local(name) => Err(Failure::bad_request(format!("{name:?} is no URL"))),
    }
}

/// The key with which the server signs requests to other servers; created at the first start. Blocks.
pub(crate) fn signing_key(directory: &Directory) -> Result<SigningKey> {
    let create = || Ok(serde_json::json!({ "pem": SigningKey::generate()?.to_pem() }));
    let (record, _) = directory.get_or_create_local("signing_key", create)?;
    let pem = record.get("pem").and_then(Value::as_str).unwrap_or_default();
    Ok(SigningKey::from_pem(pem)?)
}

/// The limits of responses of other servers.
fn peer_limits(document_bytes_max: usize, memory: Arc<MemoryBudget>) -> PeerLimits {
    PeerLimits { document_bytes_max, memory, stall_timeout: STALL_TIMEOUT }
}
