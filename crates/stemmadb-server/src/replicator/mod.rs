//! The replicator: runs replications between databases of this server and of other servers, once or continuously.
//!
//! The library implements the replication protocol between two peers. This module provides the peers over HTTP
//! ([`remote`]) and the local ones ([`local`]), and runs the jobs ([`jobs`]): each has a thread, because the library
//! blocks, and failed jobs are retried with exponential backoff. The state of a document of `_replicator` is stored
//! beside it ([`ReplicationState`]). Received files are verified against the length and digest that the source
//! announced ([`verified_content`]). All blocking waits go through [`runtime`], so that tests can run everything on one
//! thread over a simulated network.

mod follow;
mod jobs;
mod local;
mod remote;
mod request;
mod runtime;
#[cfg(test)]
mod simulation;
mod verified_content;

use std::sync::Arc;

use stemmadb::Value;
use stemmadb::replication::Peer;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{Limits, Replicator};
use crate::error::{Failure, Result};
use crate::http::MemoryBudget;
use crate::outbound::OutboundClient;
pub(crate) use follow::follow;
pub(crate) use jobs::{Job, JobContext, JobEvent, JobOwner, JobStatus, Jobs};
use remote::RemotePeer;
use request::Endpoint;
pub(crate) use request::ReplicationRequest;
use runtime::JobRuntime;

/// Returns the database at an HTTP URL, `http://user:password@host:port/name`, as a peer to replicate or mirror from a
/// program that is not a server. Its calls block and must run on a thread that may block; they end when `cancelled`
/// becomes true.
///
/// # Errors
/// 400 if `url` is not the URL of a database.
pub fn peer(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<Arc<dyn Peer>> {
    Ok(Arc::new(remote(url, runtime, cancelled)?))
}

/// Sends a POST request to a route, such as `/_restore`, of the database at an HTTP URL; returns the answer. Blocks for
/// as long as the server works on it, up to a day.
///
/// # Errors
/// `Invalid` if `url` is not the URL of a database; the errors that the server reports.
pub fn post(url: &str, route: &str, body: &Value, runtime: Handle) -> stemmadb::Result<Value> {
    let (_sender, cancelled) = watch::channel(false);
    let remote = remote(url, runtime, cancelled);
    let remote = remote.map_err(|failure| stemmadb::Error::invalid(failure.reason().to_owned()))?;
    remote.post(route, body, std::time::Duration::from_hours(24))
}

fn remote(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<RemotePeer> {
    match Endpoint::parse(&Value::from(url), "database")? {
        Endpoint::Remote { url, headers } => {
            let outbound = OutboundClient::new(&Replicator::default())?;
            let limits = Limits::default();
            let (runtime, memory) =
                (JobRuntime::Threaded(runtime), MemoryBudget::new(limits.bodies_bytes, limits.stall_timeout));
            Ok(RemotePeer::new(outbound.client, url, headers, runtime, limits.body_bytes, memory, cancelled))
        }
        Endpoint::Local(name) => Err(Failure::bad_request(format!("{name:?} is no URL"))),
    }
}
