//! The server as a replicator: between its own databases and others', once or for as long as they are there.
//!
//! The library knows how two peers come to agree; here are the peers that are reached over HTTP ([`remote`]), those of this server
//! ([`local`]), and the jobs: each a thread, since the library blocks, with retries that come less and less often ([`jobs`]). What became of
//! a document of `_replicator` is kept beside it ([`ReplicationState`]). What others tell of a file is compared
//! with what arrives ([`verified_content`]). Jobs wait for a runtime in one place ([`runtime`]), so that tests can keep all of it to one thread, on a network
//! that is made up.

mod connect;
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
pub(crate) use connect::OutboundClient;
pub(crate) use follow::follow;
pub(crate) use jobs::{Event, Job, JobContext, Jobs, Outcome, Owner};
use remote::Remote;
use request::Endpoint;
pub(crate) use request::Request;
use runtime::JobRuntime;

/// A database that is reached over HTTP, at `http://user:password@host:port/name`, as a peer: to replicate or mirror it from elsewhere than a
/// server. Its calls block, so they belong on a thread that may; they end when `cancelled` becomes true.
///
/// # Errors
/// 400 if it is no URL of a database.
pub fn peer(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<Arc<dyn Peer>> {
    match Endpoint::parse(&Value::from(url), "database")? {
        Endpoint::Remote { url, headers } => {
            let outbound = OutboundClient::new(&Replicator::default())?;
            let limits = Limits::default();
            let (runtime, memory) =
                (JobRuntime::For(runtime), MemoryBudget::new(limits.bodies_bytes, limits.stall_timeout));
            Ok(Arc::new(Remote::new(outbound.client, url, headers, runtime, limits.body_bytes, memory, cancelled)))
        }
        Endpoint::Local(name) => Err(Failure::bad_request(format!("{name:?} is no URL"))),
    }
}
