//! The route `_rewrite`: the rules or the function `rewrites` of a design document name the request to handle instead.
//!
//! The new request is routed, authenticated and authorized like any other. It can't leave the database, and a function
//! can't set the headers that identify the user or frame the message.

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use stemmadb::Value;
use stemmadb_http::url::encode_segment;

use super::function_inputs::FunctionInputs;
use super::function_response::function_response;
use crate::app::Call;
use crate::design::{insecure, request_value, rewrite_by_rules, thrown_failure};
use crate::error::{Failure, Result};
use crate::http::{
    HttpResponse, JsonPurpose, Query, RequestBody, RequestedPath, RewrittenRequest, blocking, read_json, segments,
};
use crate::script::CallKind;

/// How often a request can be rewritten.
const REWRITES_MAX: usize = 10;

/// Counts the rewrites of a request.
#[derive(Debug, Clone, Default)]
struct RewriteCount(usize);

/// `GET /{db}/_design/{ddoc}/_rewrite/{rest*}` and other methods, with and without a rest
pub(crate) async fn rewrite(mut call: Call) -> Result<HttpResponse> {
    let count = call.parts.extensions.get::<RewriteCount>().cloned().unwrap_or_default().0 + 1;
    if count > REWRITES_MAX {
        return Err(Failure::bad_request("Exceeded rewrite recursion limit"));
    }
    let inputs = FunctionInputs::read(&call, call.parameter("ddoc")?, None).await?;
    let base = DesignPath::of(&call)?;
    match inputs.design.get("rewrites") {
        Some(Value::Array(rules)) => {
            let found = rewrite_by_rules(rules, call.parts.method.as_str(), &base.rest, &call.query)?;
            let found = found.ok_or_else(|| Failure::not_found("missing"))?;
            let uri = base.uri(&found.segments, &found.query)?;
            let body = call.body.take().unwrap_or_else(|| RequestBody::replaced(Bytes::new()));
            let parts = rewritten_parts(&call.parts, uri, count);
            Ok(RewrittenRequest::response(Request::from_parts(parts, body)))
        }
        Some(Value::String(_)) => by_function(call, inputs, base, count).await,
        _ => Err(Failure::new(StatusCode::NOT_FOUND, "rewrite_error", "Invalid path.")),
    }
}

/// Calls the function `rewrites`.
async fn by_function(mut call: Call, inputs: FunctionInputs, base: DesignPath, count: usize) -> Result<HttpResponse> {
    let bytes = call.bytes().await?;
    call.reservation.grow(bytes.len().saturating_mul(super::update::MEMORY_FACTOR)).await?;
    let body = String::from_utf8_lossy(&bytes).into_owned();
    let request = request_value(&inputs.served, &call.user, &call.parts, &call.query, &body, None).to_json();
    let scripts = call.state.scripts.clone();
    let answer = blocking(move || {
        let functions = inputs.functions(&scripts)?;
        let result = functions.call(CallKind::Rewrite, &["rewrites"], &[[request]])?.pop();
        let result = result.ok_or_else(|| Failure::internal("the script engine returned no result"))?;
        read_json(result.map_err(thrown_failure)?.as_bytes(), JsonPurpose::Documents)
    });
    let answer = answer.await?;
    let path = match &answer {
        Value::String(path) => path.as_str(),
        Value::Object(object) if object.get("code").is_some() => return function_response(&answer, StatusCode::OK),
        Value::Object(object) => object.get("path").and_then(Value::as_str).ok_or_else(no_path)?,
        Value::Null => return Err(Failure::new(StatusCode::NOT_FOUND, "rewrite_error", "Invalid path.")),
        _ => return Err(no_path()),
    };
    let (path, own_query) = path.split_once('?').unwrap_or((path, ""));
    let query = match answer.get("query").and_then(Value::as_object) {
        Some(query) => query.iter().map(|(name, value)| (name.to_owned(), text_of(value))).collect(),
        None if !own_query.is_empty() => pairs(&Query::parse(own_query)?),
        None => pairs(&call.query),
    };
    let uri = base.uri(&segments_of(path)?, &query)?;
    let mut parts = rewritten_parts(&call.parts, uri, count);
    if let Some(method) = answer.get("method").and_then(Value::as_str) {
        parts.method = Method::from_bytes(method.as_bytes()).map_err(|_| no_path())?;
    }
    if let Some(headers) = answer.get("headers").and_then(Value::as_object) {
        set_headers(&mut parts.headers, headers);
    }
    let content = match answer.get("body") {
        None => bytes,
        Some(body) => Bytes::from(text_of(body)),
    };
    parts.headers.remove("content-encoding");
    Ok(RewrittenRequest::response(Request::from_parts(parts, RequestBody::replaced(content))))
}

fn no_path() -> Failure {
    let reason = "Rewrite result must produce a new path.";
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "rewrite_error", reason)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_json(), str::to_owned)
}

fn pairs(query: &Query) -> Vec<(String, String)> {
    query.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The segments of a path, without those that are empty.
fn segments_of(path: &str) -> Result<Vec<String>> {
    Ok(segments(path)?.into_iter().filter(|segment| !segment.is_empty()).collect())
}

/// The path of a design document, and what follows `_rewrite` in the request.
struct DesignPath {
    database: String,
    design: String,
    rest: Vec<String>,
}

impl DesignPath {
    fn of(call: &Call) -> Result<Self> {
        let path = segments(call.parts.uri.path())?;
        let rest = path.into_iter().skip_while(|segment| segment != "_rewrite").skip(1).collect();
        Ok(DesignPath { database: call.parameter("db")?.to_owned(), design: call.parameter("ddoc")?.to_owned(), rest })
    }

    /// The URI of a path relative to the design document.
    fn uri(&self, relative: &[String], query: &[(String, String)]) -> Result<Uri> {
        let mut path = vec![self.database.as_str(), "_design", self.design.as_str()];
        for segment in relative {
            match segment.as_str() {
                ".." if path.len() > 1 => drop(path.pop()),
                ".." => return Err(insecure()),
                "." => {}
                name => path.push(name),
            }
        }
        let path: String = path.iter().map(|segment| format!("/{}", encode_segment(segment))).collect();
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{}={}", encode_segment(name), encode_segment(value))).collect();
        let text = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
        let target: PathAndQuery =
            text.parse().map_err(|error| Failure::bad_request(format!("the rewritten path is invalid: {error}")))?;
        Ok(Uri::from(target))
    }
}

/// The head of the request with another target.
fn rewritten_parts(original: &Parts, uri: Uri, count: usize) -> Parts {
    let mut parts = original.clone();
    let requested = original.extensions.get::<RequestedPath>().cloned();
    parts.extensions.insert(requested.unwrap_or_else(|| RequestedPath(original.uri.path().to_owned())));
    parts.extensions.insert(RewriteCount(count));
    parts.uri = uri;
    parts
}

/// Whether a function may set this request header. Headers that identify the user, name the server or frame the message
/// are those of the client.
fn may_set(name: &str) -> bool {
    !matches!(
        name,
        "authorization"
            | "cookie"
            | "host"
            | "origin"
            | "referer"
            | "connection"
            | "transfer-encoding"
            | "content-length"
            | "content-encoding"
            | "expect"
            | "upgrade"
            | "proxy-authorization"
    ) && !name.starts_with("x-auth-")
        && !name.starts_with("x-forwarded-")
        && !name.starts_with("sec-")
}

fn set_headers(headers: &mut HeaderMap, given: &stemmadb::Object) {
    for (name, value) in given.iter().filter(|(name, _)| may_set(&name.to_ascii_lowercase())) {
        let name = hyper::header::HeaderName::from_bytes(name.as_bytes());
        let value = hyper::header::HeaderValue::from_str(&text_of(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    }
}
