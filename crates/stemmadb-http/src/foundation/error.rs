//! Errors as they are in responses: an HTTP status, CouchDB's error code, and a reason.

use std::borrow::Cow;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ALLOW, HeaderName, RETRY_AFTER};
use serde::Serialize;
use stemmadb::ErrorKind;

/// The result type of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// An error response: a status and `{"error": …, "reason": …}`. Clients decide by the status and `error`; `reason` is
/// for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    status: StatusCode,
    error: Cow<'static, str>,
    reason: Cow<'static, str>,
    /// An additional header of the response.
    header: Option<(HeaderName, String)>,
}

/// The body of an error response.
#[derive(Serialize)]
pub struct ErrorBody<'a> {
    pub error: &'a str,
    pub reason: &'a str,
}

impl Failure {
    /// A failure with a status, CouchDB's error code, and a reason.
    pub fn new(status: StatusCode, error: impl Into<Cow<'static, str>>, reason: impl Into<Cow<'static, str>>) -> Self {
        Failure { status, error: error.into(), reason: reason.into(), header: None }
    }

    /// 400: the request is wrong.
    pub fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// 400: a query's parameter is wrong.
    pub fn query_parse(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "query_parse_error", reason)
    }

    /// 404, `missing`: there is no such document.
    pub fn missing() -> Self {
        Self::not_found("missing")
    }

    /// 404.
    pub fn not_found(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// 404: there is no such database.
    pub fn no_database() -> Self {
        Self::not_found("Database does not exist.")
    }

    /// 409: the document changed since it was read.
    pub fn conflict() -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "Document update conflict.")
    }

    /// 401: authentication is required or failed.
    pub fn unauthorized(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", reason)
    }

    /// 403: the request is not allowed.
    pub fn forbidden(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// 405, with the allowed methods.
    pub fn method_not_allowed(methods: &str) -> Self {
        let reason = format!("Only {methods} allowed");
        let failure = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason);
        Failure { header: Some((ALLOW, methods.to_owned())), ..failure }
    }

    /// 429, with `Retry-After`.
    pub fn too_many(reason: impl Into<Cow<'static, str>>, wait: Duration) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", reason).after(wait)
    }

    /// 503, with `Retry-After`.
    pub fn unavailable(reason: impl Into<Cow<'static, str>>, wait: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason).after(wait)
    }

    /// Adds `Retry-After`.
    fn after(self, wait: Duration) -> Self {
        // Round up to whole seconds.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Failure { header: Some((RETRY_AFTER, seconds.to_string())), ..self }
    }

    /// 413: the request is too large.
    pub fn too_large(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", reason)
    }

    /// 501: a part of the protocol that is not supported, and the reason.
    pub fn not_implemented(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", reason)
    }

    /// 500: a bug, or a fault of the machine.
    pub fn internal(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", reason)
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// CouchDB's error code, such as `not_found`.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// The reason, for people.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether another writer changed the document in between.
    pub fn is_conflict(&self) -> bool {
        self.error == "conflict"
    }

    /// Adds the document that the failure is about to the reason.
    pub fn within(self, id: &str) -> Self {
        Failure { reason: format!("{id}: {}", self.reason).into(), ..self }
    }

    pub fn header(&self) -> Option<&(HeaderName, String)> {
        self.header.as_ref()
    }

    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody { error: &self.error, reason: &self.reason }
    }
}

/// The status and the code of a response for a kind of the library's errors.
fn of_kind(kind: ErrorKind) -> (StatusCode, &'static str) {
    match kind {
        ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        ErrorKind::Duplicate => (StatusCode::CONFLICT, "duplicate"),
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "bad_request"),
        ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
        ErrorKind::Stopped => (StatusCode::REQUEST_TIMEOUT, "timeout"),
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Locked => {
            (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
    }
}

/// The status of a response for a kind of the library's errors.
pub fn status_of(kind: ErrorKind) -> StatusCode {
    of_kind(kind).0
}

impl From<stemmadb::Error> for Failure {
    fn from(error: stemmadb::Error) -> Self {
        let reason = match error.hint() {
            Some(hint) => format!("{} ({hint})", error.message()),
            None => error.message().to_owned(),
        };
        let (status, code) = match error.kind() {
            ErrorKind::Conflict => return Self::conflict(),
            ErrorKind::NotFound => return Self::missing(),
            kind => of_kind(kind),
        };
        Self::new(status, code, reason)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.error, self.reason)
    }
}

impl std::error::Error for Failure {}
