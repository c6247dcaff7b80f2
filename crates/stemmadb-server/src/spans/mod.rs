//! Spans: each request is reported to a collector of OpenTelemetry, as a part of its client's trace if it names one.
//!
//! Needs the cargo feature `otlp`.

#[cfg(feature = "otlp")]
mod otlp;

use std::time::Duration;

use hyper::HeaderMap;

#[cfg(not(feature = "otlp"))]
use crate::error::Failure;
use crate::error::Result;
#[cfg(feature = "otlp")]
use otlp::Exporter;

/// The place of a request in a trace: the header `traceparent` of W3C Trace Context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceParent {
    /// The id of the trace, 32 hexadecimal digits.
    pub(crate) trace: String,
    /// The id of the client's span, 16 hexadecimal digits.
    pub(crate) span: String,
    /// Whether the client records the trace.
    pub(crate) is_sampled: bool,
}

impl TraceParent {
    /// The one in these headers; `None` without a valid header.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Later versions may have more parts.
        let is_hex = |part: &str, count: usize| {
            part.len() == count && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_valid = is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(span, 16);
        let is_known = is_hex(flags, 2) && (version != "00" || parts.next().is_none());
        let is_set = [trace, span].iter().all(|part| part.bytes().any(|byte| byte != b'0'));
        let flags = u8::from_str_radix(flags, 16).ok().filter(|_| is_valid && is_known && is_set)?;
        Some(TraceParent { trace: trace.to_owned(), span: span.to_owned(), is_sampled: flags & 1 == 1 })
    }
}

/// A request that was answered.
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "read by the exporter only"))]
pub(crate) struct FinishedRequest<'a> {
    pub(crate) method: &'a str,
    pub(crate) route: &'static str,
    /// The status of HTTP; 0 if the client left before the response.
    pub(crate) status: u16,
    pub(crate) time: Duration,
    /// The authenticated user.
    pub(crate) user: Option<&'a str>,
    pub(crate) peer: Option<&'a str>,
    pub(crate) trace: Option<&'a TraceParent>,
    /// The kind of the error.
    pub(crate) error: Option<&'a str>,
    /// Why the server failed.
    pub(crate) reason: Option<&'a str>,
}

/// Reports requests to a collector, if there is one.
#[derive(Default)]
pub(crate) struct Spans {
    #[cfg(feature = "otlp")]
    exporter: Option<Exporter>,
}

impl Spans {
    /// Reports to the collector at `endpoint`, a URL such as `http://localhost:4318`; `None`: to no one. Must be called
    /// within the runtime.
    ///
    /// # Errors
    /// 400 if `endpoint` is no such URL, or if this program was built without OpenTelemetry.
    #[cfg(feature = "otlp")]
    pub(crate) fn new(endpoint: Option<&str>) -> Result<Self> {
        Ok(Spans { exporter: endpoint.map(Exporter::new).transpose()? })
    }

    #[cfg(not(feature = "otlp"))]
    pub(crate) fn new(endpoint: Option<&str>) -> Result<Self> {
        match endpoint {
            None => Ok(Spans {}),
            Some(_) => {
                Err(Failure::bad_request("this program was built without OpenTelemetry: otlp.endpoint can't be used"))
            }
        }
    }

    /// Whether there is a collector.
    pub(crate) fn are_reported(&self) -> bool {
        #[cfg(feature = "otlp")]
        return self.exporter.is_some();
        #[cfg(not(feature = "otlp"))]
        false
    }

    /// Reports a request that has just finished. Costs about a microsecond and never waits: if the collector is slow,
    /// spans are dropped.
    pub(crate) fn report(&self, request: &FinishedRequest<'_>) {
        #[cfg(feature = "otlp")]
        self.exporter.iter().for_each(|exporter| exporter.report(request));
        #[cfg(not(feature = "otlp"))]
        let _ = request;
    }

    /// Sends what is not yet sent, for at most `limit`.
    pub(crate) fn stop(&self, limit: Duration) {
        #[cfg(feature = "otlp")]
        self.exporter.iter().for_each(|exporter| exporter.stop(limit));
        #[cfg(not(feature = "otlp"))]
        let _ = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_those_of_valid_headers() {
        let parent = |header: &str| {
            TraceParent::of(&HeaderMap::from_iter([("traceparent".parse().unwrap(), header.parse().unwrap())]))
        };
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (valid, is_sampled) in [
            ("00-ID-00f067aa0ba902b7-01", true),
            ("00-ID-00f067aa0ba902b7-00", false),
            ("cc-ID-00f067aa0ba902b7-03-what", true),
        ] {
            let (trace, span) = (id.to_owned(), "00f067aa0ba902b7".to_owned());
            assert_eq!(parent(&valid.replace("ID", id)), Some(TraceParent { trace, span, is_sampled }), "{valid}");
        }
        let zeros = "0".repeat(32);
        for wrong in [
            "",
            "00",
            "ff-ID-00f067aa0ba902b7-01",
            "00-ID-00f067aa0ba902b7",
            "00-ID-00f067aa0ba902b7-01-what",
            "00-IDx-00f067aa0ba902b7-01",
            "00-ID-0000000000000000-01",
            &format!("00-{zeros}-00f067aa0ba902b7-01"),
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parent(&wrong.replace("ID", id)), None, "{wrong}");
        }
    }
}
