//! The state that all requests share, and one request with everything that was found out before its handler runs.
//!
//! Handlers and streams build on it; nothing below it (accounts, databases, the replicator) knows it.

mod call;
mod dashboard;
mod request_record;
mod state;

pub(crate) use call::Call;
pub(crate) use dashboard::{Dashboard, INDEX};
pub(crate) use request_record::{RecordedBody, RequestRecord};
pub(crate) use state::{State, UPLOADS_MAX};
