//! Metrics, the request log and spans.

use std::time::Instant;

use stemmadb::Error;
use stemmadb_wire::Operation;

use super::connection::Connection;
use super::server::WireServer;
use crate::error::status_of;
use crate::spans::FinishedRequest;

/// Whether an operation lasts as long as its client wants: its time says nothing about the server.
fn is_endless(operation: Operation) -> bool {
    matches!(operation, Operation::Subscribe | Operation::SubscribePaths | Operation::Watch)
}

/// Counts a request, logs and reports it, as HTTP's are: a line has neither ids nor values.
pub(super) fn record(
    server: &WireServer,
    connection: &Connection,
    operation: Option<Operation>,
    error: Option<&Error>,
    started: Instant,
) {
    // That of HTTP.
    let status = error.map_or(200, |error| status_of(error.kind()).as_u16());
    let time = started.elapsed();
    let route = operation.map_or(crate::metrics::NO_ROUTE, Operation::name);
    let counted_time = Some(time).filter(|_| !operation.is_some_and(is_endless));
    server.state.metrics.note_wire(route, status, counted_time);
    let spans = &server.state.spans;
    if !tracing::enabled!(target: "stemma::request", tracing::Level::INFO) && !spans.are_reported() {
        return;
    }
    let (ms, method) = (time.as_micros() as f64 / 1000.0, crate::metrics::WIRE_METHOD);
    let user = connection.user_name();
    let (user, peer) = (user.as_deref(), connection.peer.to_string());
    let reason = error.filter(|_| status == 500).map(Error::message);
    let error = error.map(|error| stemmadb_wire::kind_name(error.kind()));
    match reason {
        None => tracing::info!(target: "stemma::request", method, route, status, ms, user, peer, error),
        Some(reason) => {
            tracing::warn!(target: "stemma::request", method, route, status, ms, user, peer, error, reason);
        }
    }
    let peer = Some(peer.as_str());
    spans.report(&FinishedRequest { method, route, status, time, user, peer, trace: None, error, reason });
}
