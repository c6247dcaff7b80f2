//! Metrics and the request log: follows one request from its arrival to the last byte of its response.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use hyper::body::{Frame, SizeHint};
use uuid::Uuid;

use crate::connections::RunningRequest;
use crate::error::Failure;
use crate::http::{Body, CancelOnDrop, HttpResponse, MemoryReservation, with_read_timeout};
use crate::metrics::{Metrics, NO_ROUTE};
use crate::spans::{FinishedRequest, Spans, TraceParent};

/// What the metrics, the log and spans record about one request. Dropping it writes the log line.
pub(crate) struct RequestRecord {
    /// The request id in the response header and in the log.
    pub(crate) id: String,
    pub(crate) route: &'static str,
    /// Whether the response may be a feed, whose chunks are sent at once and uncompressed.
    pub(crate) is_streamed: bool,
    /// The authenticated user.
    pub(crate) user: Option<String>,
    /// The trace of another program that the request belongs to.
    pub(crate) trace: Option<TraceParent>,
    /// Tells the connection that the request is under way.
    pub(crate) running: Option<RunningRequest>,
    /// The memory reserved for the body, held until the response was sent.
    pub(crate) reservation: Option<Arc<MemoryReservation>>,
    /// Cancels the reads of the request once the client has left.
    pub(crate) cancellation: CancelOnDrop,
    metrics: Arc<Metrics>,
    spans: Arc<Spans>,
    method: Method,
    peer: Option<SocketAddr>,
    started: Instant,
    status: u16,
    byte_count: u64,
    /// The error response, if the request failed.
    failure: Option<Failure>,
    /// Why the response was cut short.
    cut: Option<String>,
}

/// Ten hexadecimal digits that are unique among recent requests. They need not be secret, so they come from a counter
/// instead of a system call.
fn next_id() -> String {
    static IDS: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(Uuid::new_v4().as_u64_pair().0));
    // Multiplying by an odd factor is a permutation of the 40-bit numbers, so no id repeats before all were used.
    let number = IDS.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:010x}", number & 0xff_ffff_ffff)
}

impl RequestRecord {
    pub(crate) fn begin(metrics: Arc<Metrics>, spans: Arc<Spans>, method: Method, peer: Option<SocketAddr>) -> Self {
        let id = next_id();
        let started = Instant::now();
        RequestRecord {
            id,
            route: NO_ROUTE,
            is_streamed: false,
            user: None,
            trace: None,
            running: None,
            reservation: None,
            metrics,
            spans,
            method,
            peer,
            started,
            status: 0,
            byte_count: 0,
            failure: None,
            cut: None,
            cancellation: CancelOnDrop::default(),
        }
    }

    /// Records the error that the request failed with.
    pub(crate) fn record_failure(&mut self, failure: &Failure) {
        self.failure = Some(failure.clone());
    }

    /// Counts the response and wraps its body so that the bytes sent are recorded. `timeout` is how long a client may
    /// stop reading.
    pub(crate) fn answered(mut self, answer: HttpResponse, timeout: Duration) -> hyper::Response<RecordedBody> {
        let response = answer.into_response();
        self.status = response.status().as_u16();
        self.metrics.note(self.route, &self.method, self.status, self.started.elapsed());
        response.map(|body| RecordedBody {
            body: with_read_timeout(body, timeout, self.reservation.clone()),
            record: Some(self),
        })
    }

    /// Writes the log line and reports the span.
    fn report(&self) {
        let RequestRecord { id, route, status, byte_count, .. } = self;
        let (method, user, time) = (self.method.as_str(), self.user.as_deref(), self.started.elapsed());
        let ms = time.as_micros() as f64 / 1000.0;
        let peer = self.peer.map(|peer| peer.to_string());
        let error = self.failure.as_ref().map(Failure::error);
        let trace = self.trace.as_ref().map(|parent| parent.trace.as_str());
        // The reason of a 4xx may repeat what the client sent and is not logged; the reason of a 5xx is needed to
        // diagnose the server.
        let server_error =
            self.failure.as_ref().filter(|failure| failure.status().is_server_error()).map(Failure::reason);
        let reason = server_error.or(self.cut.as_deref());
        match reason {
            None => tracing::info!(
                target: "stemma::request",
                id, method, route, status, ms, bytes = byte_count, user, peer, trace, error
            ),
            Some(reason) => tracing::warn!(
                target: "stemma::request",
                id, method, route, status, ms, bytes = byte_count, user, peer, trace, error, reason
            ),
        }
        let (status, peer, trace) = (*status, peer.as_deref(), self.trace.as_ref());
        self.spans.report(&FinishedRequest { method, route, status, time, user, peer, trace, error, reason });
    }
}

impl Drop for RequestRecord {
    /// Reports the request, also if the client left before the response: its status is 0 then.
    fn drop(&mut self) {
        self.report();
    }
}

/// A response body that records how many bytes were sent, and logs the request after it is dropped.
pub(crate) struct RecordedBody {
    body: Body,
    /// None once it is dropped.
    record: Option<RequestRecord>,
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        if let Some(running) = record.running.take() {
            record.reservation = None;
            running.end_with(move || drop(record));
        }
    }
}

impl hyper::body::Body for RecordedBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(context);
        if let (Poll::Ready(Some(result)), Some(record)) = (&polled, &mut this.record) {
            match result {
                Ok(frame) => record.byte_count += frame.data_ref().map_or(0, |data| data.len() as u64),
                Err(error) => record.cut = Some(error.to_string()),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http_body_util::BodyExt;
    use hyper::StatusCode;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log line of a request.
    fn logged(request: impl AsyncFnOnce(RequestRecord)) -> String {
        let (lines, runtime) = (Lines::default(), tokio::runtime::Builder::new_current_thread().build().unwrap());
        let to = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
        let record = RequestRecord::begin(Arc::default(), Arc::default(), Method::GET, None);
        tracing::subscriber::with_default(subscriber, || runtime.block_on(request(record)));
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    #[test]
    fn request_ids_are_unique() {
        let ids: std::collections::BTreeSet<String> = (0..100_000).map(|_| next_id()).collect();
        assert_eq!(ids.len(), 100_000);
        assert!(ids.iter().all(|id| id.len() == 10));
    }

    #[test]
    fn traced_request_is_logged_with_its_trace() {
        let parent = TraceParent { trace: "4bf9".to_owned(), span: "00f0".to_owned(), is_sampled: true };
        let line = logged(async move |mut record| record.trace = Some(parent));
        assert!(line.contains("trace=\"4bf9\""), "{line}");
    }

    #[test]
    fn truncated_response_is_logged_with_its_cause() {
        let (pieces, from) = tokio::sync::mpsc::channel(2);
        pieces.try_send(Ok(Bytes::from_static(b"12345"))).unwrap();
        pieces.try_send(Err(std::io::Error::other("the disk is on fire"))).unwrap();
        let line = logged(async move |record| {
            let response =
                record.answered(HttpResponse::new(StatusCode::OK, Body::Chunks { from, length: None }), Duration::ZERO);
            assert!(response.into_body().collect().await.is_err());
        });
        for part in [" WARN ", "status=200", "bytes=5", "reason=\"the disk is on fire\""] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }

    #[test]
    fn abandoned_request_is_logged() {
        let line = logged(async |record| drop(record));
        assert!(line.contains(" INFO ") && line.contains("status=0"), "{line}");
    }

    #[test]
    fn client_errors_are_logged_by_kind_and_server_errors_with_reason() {
        let log_failure = |failure: Failure| {
            logged(async move |mut record| {
                record.record_failure(&failure);
                drop(record.answered(HttpResponse::from(failure), Duration::ZERO));
            })
        };
        let line = log_failure(Failure::bad_request("\"sent\" is no number"));
        assert!(line.contains(" INFO ") && line.contains("bad_request") && !line.contains("sent"), "{line}");
        let line = log_failure(Failure::internal("the disk is on fire"));
        assert!(line.contains(" WARN ") && line.contains("the disk is on fire"), "{line}");
    }
}
