//! Server state shared by all requests, and the per-request context passed to handlers.
//!
//! Handlers and streams depend on this module; accounts, databases and the replicator, which are below it, do not.

mod call;
mod dashboard;
mod owner;
mod request_record;
mod state;

pub(crate) use call::{Call, Handler, parse_as_of};
pub(crate) use dashboard::{Dashboard, INDEX};
pub(crate) use owner::{
    PASSED_ON, PassedOn, QUIET_MAX, answer_of, ask_others, ask_owner, other_members, send_to_owner,
};
pub(crate) use request_record::{RecordedBody, RequestRecord};
pub(crate) use state::{ServerState, UPLOADS_MAX};
