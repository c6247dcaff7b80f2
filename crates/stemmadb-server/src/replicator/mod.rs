//! The server as a replicator: between its own databases and others', once or for as long as they are there.
//!
//! The library knows how two peers come to agree; here are the peers that are reached over HTTP ([`remote`]), those of this server
//! ([`local`]), and the jobs: each a thread, since the library blocks, with retries that come less and less often ([`jobs`]). What became of
//! a document of `_replicator` is kept beside it ([`record`]).

mod connect;
mod follow;
mod jobs;
mod local;
mod record;
mod remote;
mod request;
mod time;

pub(crate) use connect::Reach;
pub(crate) use follow::{REPLICATOR, follow};
pub(crate) use jobs::{Event, Job, Jobs, Outcome, Owner};
pub(crate) use record::{Record, print as print_state};
pub(crate) use request::Request;
pub(crate) use time::told as moment;
