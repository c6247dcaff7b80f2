//! Metrics and the request log.

use std::time::Instant;

use stemmadb::{Error, ErrorKind};
use stemmadb_wire::Operation;

use super::connection::Connection;
use super::server::WireServer;

/// The status that HTTP would have.
fn status(error: Option<&Error>) -> u16 {
    match error.map(Error::kind) {
        None => 200,
        Some(ErrorKind::Invalid) => 400,
        Some(ErrorKind::Forbidden) => 403,
        Some(ErrorKind::NotFound) => 404,
        Some(ErrorKind::Stopped) => 408,
        Some(ErrorKind::Conflict | ErrorKind::Duplicate) => 409,
        Some(ErrorKind::Unavailable | ErrorKind::Locked | ErrorKind::Closed) => 503,
        Some(_) => 500,
    }
}

/// Whether an operation lasts as long as its client wants: its time says nothing about the server.
fn is_endless(operation: Operation) -> bool {
    matches!(operation, Operation::Subscribe | Operation::SubscribePaths | Operation::Watch)
}

/// Counts a request and logs it, as HTTP's are: a line has neither ids nor values.
pub(super) fn record(
    server: &WireServer,
    connection: &Connection,
    operation: Option<Operation>,
    error: Option<&Error>,
    started: Instant,
) {
    let (status, time) = (status(error), started.elapsed());
    let route = operation.map_or(crate::metrics::NO_ROUTE, Operation::name);
    let counted_time = Some(time).filter(|_| !operation.is_some_and(is_endless));
    server.state.metrics.note_wire(route, status, counted_time);
    if !tracing::enabled!(target: "stemma::request", tracing::Level::INFO) {
        return;
    }
    let (ms, method) = (time.as_micros() as f64 / 1000.0, crate::metrics::WIRE_METHOD);
    let user = connection.user_name();
    let (user, peer) = (user.as_deref(), connection.peer.to_string());
    let name = error.map(|error| stemmadb_wire::kind_name(error.kind()));
    match error.filter(|_| status == 500) {
        None => tracing::info!(target: "stemma::request", method, route, status, ms, user, peer, error = name),
        Some(error) => {
            let reason = error.message();
            tracing::warn!(target: "stemma::request", method, route, status, ms, user, peer, error = name, reason);
        }
    }
}
