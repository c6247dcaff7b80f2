//! The server as a replicator: between its own databases and others', once or for as long as they are there.
//!
//! The library knows how two peers come to agree; here are the peers that are reached over HTTP ([`remote`]), those of this server
//! ([`local`]), and the jobs: each a thread, since the library blocks, with retries that come less and less often ([`jobs`]). What became of
//! a document of `_replicator` is kept beside it ([`record`]). What others tell of a file is compared
//! with what arrives ([`compared`]). Jobs wait for a runtime in one place ([`waits`]), so that tests can keep all of it to one thread, on a network
//! that is made up.

mod compared;
mod connect;
mod follow;
mod jobs;
mod local;
mod record;
mod remote;
mod request;
#[cfg(test)]
mod simulation;
mod time;
mod waits;

use std::sync::Arc;

use stemmadb::{Peer, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::{Limits, Replicator};
use crate::error::{Failure, Result};
use crate::http::Room;
pub(crate) use connect::Reach;
pub(crate) use follow::{REPLICATOR, follow};
pub(crate) use jobs::{Event, Job, Jobs, Outcome, Owner};
pub(crate) use record::{Record, print as print_state};
use remote::Remote;
use request::Endpoint;
pub(crate) use request::Request;
pub(crate) use time::told as moment;
use waits::Waits;

/// A database that is reached over HTTP, at `http://user:password@host:port/name`, as a peer: to replicate or mirror it from elsewhere than a
/// server. Its calls block, so they belong on a thread that may; they end when `cancelled` becomes true.
///
/// # Errors
/// 400 if it is no URL of a database.
pub fn peer(url: &str, runtime: Handle, cancelled: watch::Receiver<bool>) -> Result<Arc<dyn Peer>> {
    match Endpoint::parse(&Value::from(url), "database")? {
        Endpoint::Remote { url, headers } => {
            let reach = Reach::new(&Replicator::default())?;
            let limits = Limits::default();
            let (runtime, room) = (Waits::For(runtime), Room::new(limits.bodies_bytes, limits.stall_timeout));
            Ok(Arc::new(Remote::new(reach.client, url, headers, runtime, limits.body_bytes, room, cancelled)))
        }
        Endpoint::Local(name) => Err(Failure::bad_request(format!("{name:?} is no URL"))),
    }
}
