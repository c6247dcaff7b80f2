//! Metrics, the request log and spans.

use std::time::{Duration, Instant};

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

/// A request that was executed, and is not logged yet.
pub(super) struct FinishedOperation {
    /// None if it is unknown.
    operation: Option<Operation>,
    error: Option<Error>,
    time: Duration,
    /// As by HTTP.
    status: u16,
}

impl FinishedOperation {
    /// Counts a request that began at `started`.
    pub(super) fn note(
        server: &WireServer,
        operation: Option<Operation>,
        error: Option<Error>,
        started: Instant,
    ) -> Self {
        let status = error.as_ref().map_or(200, |error| status_of(error.kind()).as_u16());
        let finished = FinishedOperation { operation, error, time: started.elapsed(), status };
        let counted_time = Some(finished.time).filter(|_| !operation.is_some_and(is_endless));
        server.state.metrics.note_wire(finished.route(), status, counted_time);
        finished
    }

    fn route(&self) -> &'static str {
        self.operation.map_or(crate::metrics::NO_ROUTE, Operation::name)
    }

    /// Logs and reports it, as HTTP's requests are: a line has neither ids nor values.
    pub(super) fn log(self, server: &WireServer, connection: &Connection) {
        let spans = &server.state.spans;
        if !tracing::enabled!(target: "stemma::request", tracing::Level::INFO) && !spans.are_reported() {
            return;
        }
        let (route, method) = (self.route(), crate::metrics::WIRE_METHOD);
        let FinishedOperation { error, time, status, .. } = &self;
        let ms = time.as_micros() as f64 / 1000.0;
        let user = connection.user_name();
        let (user, peer) = (user.as_deref(), connection.peer.to_string());
        let reason = error.as_ref().filter(|_| *status == 500).map(Error::message);
        let error = error.as_ref().map(|error| stemmadb_wire::kind_name(error.kind()));
        match reason {
            None => tracing::info!(target: "stemma::request", method, route, status, ms, user, peer, error),
            Some(reason) => {
                tracing::warn!(target: "stemma::request", method, route, status, ms, user, peer, error, reason);
            }
        }
        let (time, status, peer) = (*time, *status, Some(peer.as_str()));
        spans.report(&FinishedRequest { method, route, status, time, user, peer, trace: None, error, reason });
    }
}
