//! The exporter: batches of spans by OTLP over HTTP, in the background.

use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, IdGenerator, RandomIdGenerator, SpanData, SpanProcessor};
use stemmadb_http::network::Network;
use tokio::runtime::Handle;

use super::FinishedRequest;
use crate::error::{Failure, Result};
use crate::http::Body;

/// The time limit of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response of a collector, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Sends spans to a collector.
pub(super) struct Exporter {
    batches: BatchSpanProcessor,
    scope: InstrumentationScope,
}

impl Exporter {
    /// Reports to the collector at `endpoint`.
    ///
    /// # Errors
    /// 400 if it is no URL.
    pub(super) fn new(endpoint: &str) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::bad_request(format!("otlp.endpoint: expected a URL such as http://localhost:4318, not {why}"))
        };
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(wrong(&endpoint));
        }
        let client = stemmadb_http::network::https_client(None, false)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(TIMEOUT)
            .with_http_client(Collector { client, runtime: Handle::current() })
            .build()
            .map_err(|error| wrong(&error))?;
        let mut batches = BatchSpanProcessor::builder(exporter).build();
        let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "stemma".to_owned());
        batches.set_resource(&Resource::builder().with_service_name(name).build());
        let scope = InstrumentationScope::builder("stemma").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Exporter { batches, scope })
    }

    /// Queues the span of a request that has just finished, unless its client does not record the trace.
    pub(super) fn report(&self, request: &FinishedRequest<'_>) {
        let (ids, end_time) = (RandomIdGenerator::default(), SystemTime::now());
        let parent = request.trace.and_then(|parent| {
            let ids = (TraceId::from_hex(&parent.trace).ok()?, SpanId::from_hex(&parent.span).ok()?);
            Some((ids.0, ids.1, parent.is_sampled))
        });
        let (trace, parent_span_id, is_sampled) = parent.unwrap_or_else(|| (ids.new_trace_id(), SpanId::INVALID, true));
        if !is_sampled {
            return;
        }
        let span_context =
            SpanContext::new(trace, ids.new_span_id(), TraceFlags::SAMPLED, false, TraceState::default());
        self.batches.on_end(SpanData {
            span_context,
            parent_span_id,
            parent_span_is_remote: parent_span_id != SpanId::INVALID,
            span_kind: SpanKind::Server,
            name: format!("{} {}", request.method, request.route).into(),
            start_time: end_time.checked_sub(request.time).unwrap_or(end_time),
            end_time,
            attributes: attributes(request),
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: match request.reason {
                Some(reason) => Status::error(reason.to_owned()),
                None => Status::Unset,
            },
            instrumentation_scope: self.scope.clone(),
        });
    }

    /// Sends what is queued, for at most `limit`.
    pub(super) fn stop(&self, limit: Duration) {
        // The failure is in the log.
        self.batches.shutdown_with_timeout(limit).ok();
    }
}

/// What is known of a request, under the names of OpenTelemetry's conventions.
fn attributes(request: &FinishedRequest<'_>) -> Vec<KeyValue> {
    let texts = [("user.name", request.user), ("network.peer.address", request.peer), ("error.type", request.error)];
    let mut attributes = vec![
        KeyValue::new("http.request.method", request.method.to_owned()),
        KeyValue::new("http.route", request.route),
    ];
    if request.status != 0 {
        attributes.push(KeyValue::new("http.response.status_code", i64::from(request.status)));
    }
    attributes.extend(texts.into_iter().filter_map(|(name, text)| Some(KeyValue::new(name, text?.to_owned()))));
    attributes
}

/// The connection to the collector, by the server's HTTP client on the server's runtime: batches are made on a thread
/// outside of it.
#[derive(Debug)]
struct Collector {
    client: Client<Network, Body>,
    runtime: Handle,
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.client.request(request.map(|body| Body::Full(Some(body))));
        let exchange = async move {
            let (parts, body) = sent.await?.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        };
        let answered = self.runtime.spawn(async move { tokio::time::timeout(TIMEOUT, exchange).await }).await?;
        answered.map_err(HttpError::from)?
    }
}
