//! The server as a replicator: between its own databases and others', once or for as long as they are there.
//!
//! The library knows how two peers come to agree; here are the peers that are reached over HTTP ([`remote`]), those of this server
//! ([`local`]), and the jobs: each a thread, since the library blocks, with retries that come less and less often ([`jobs`]).

mod follow;
mod jobs;
mod local;
mod remote;
mod request;

pub(crate) use follow::{REPLICATOR, follow};
pub(crate) use jobs::{Job, Jobs, Outcome, Owner};
pub(crate) use request::Request;
