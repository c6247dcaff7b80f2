//! The route `_update`: runs an update function of a design document, which writes a document and creates the response.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::HeaderName;
use stemmadb::Value;

use super::document::write_options;
use crate::app::Call;
use crate::design::{self, DesignFunctions, document_json, request_value, thrown_failure};
use crate::documents::{IncomingDocument, check_id};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json};
use crate::script::CallKind;
use crate::writes::write_one;

/// The memory for processing a body, as a multiple of its length: the text, its copy in the function's request object,
/// that object as JSON, and the message to the script engine.
const MEMORY_FACTOR: usize = 4;

/// `POST /{db}/_design/{ddoc}/_update/{function}`, `PUT` the same, `…/{function}/{doc*}`
pub(crate) async fn update(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let body = String::from_utf8_lossy(&call.bytes().await?).into_owned();
    call.reservation.grow(body.len().saturating_mul(MEMORY_FACTOR)).await?;
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let id = call.parameters.get("doc").map(str::to_owned);
    let options = write_options(&call)?;
    let request = request_value(&served, &call.user, &call.parts, &call.query, &body, id.as_deref()).to_json();
    let scripts = call.state.scripts.clone();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let functions = DesignFunctions::new(&served, &scripts, &design::open(&snapshot, &design)?)?;
        let document = id.as_deref().map(|id| snapshot.get(id)).transpose()?.flatten();
        let document = document.map(|document| document_json(&served, &document)).transpose()?;
        let arguments = [document.unwrap_or_else(|| "null".to_owned()), request];
        let result = functions.call(CallKind::Update, &["updates", &function], &[arguments])?.pop();
        let result = result.ok_or_else(|| Failure::internal("the script engine returned no result"))?;
        let result = read_json(result.map_err(thrown_failure)?.as_bytes(), JsonPurpose::Documents)?;
        let invalid = || {
            Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "render_error",
                "an update function must return [document, response]",
            )
        };
        let [document, response] = result.as_array().ok_or_else(invalid)? else { return Err(invalid()) };
        let (revision, id) = match document {
            Value::Null => (None, None),
            document => {
                let document = IncomingDocument::parse(document.clone())?;
                document.id.as_deref().map(check_id).transpose()?;
                let (id, revision) = write_one(&served, document, &options)?;
                (Some(revision), Some(id))
            }
        };
        let status = if revision.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        let answer = build_response(response, status)?;
        let answer = match revision {
            Some(revision) => answer.with(HeaderName::from_static("x-couch-update-newrev"), &revision),
            None => answer,
        };
        Ok(match id {
            Some(id) => answer.with(HeaderName::from_static("x-couch-id"), &id),
            None => answer,
        })
    })
    .await
}

/// Whether a function may set this response header. Headers for the connection, sessions and CORS are reserved for the
/// server.
fn may_set(name: &str) -> bool {
    !matches!(
        name,
        "set-cookie" | "server" | "www-authenticate" | "connection" | "transfer-encoding" | "content-length"
    ) && !name.starts_with("access-control-")
}

/// Builds the response that a function returned: a string, or an object with `code`, `headers`, and `body`, `json` or
/// `base64`.
fn build_response(response: &Value, status: StatusCode) -> Result<HttpResponse> {
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let code = response.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let status = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(status);
    let (kind, body) = match (response, response.get("json"), text("body"), text("base64")) {
        (Value::String(text), ..) => ("text/html; charset=utf-8", text.clone().into_bytes()),
        (_, Some(json), ..) => ("application/json", json.to_json().into_bytes()),
        (_, _, Some(body), _) => ("text/html; charset=utf-8", body.as_bytes().to_vec()),
        (_, _, _, Some(encoded)) => {
            let decoded = BASE64_STANDARD.decode(encoded);
            (
                "application/octet-stream",
                decoded.map_err(|_| Failure::internal("the function returned invalid base64"))?,
            )
        }
        _ => ("text/html; charset=utf-8", Vec::new()),
    };
    let mut answer = HttpResponse::text(status, kind, body);
    let headers = response.get("headers").and_then(Value::as_object);
    for (name, value) in headers.into_iter().flat_map(|headers| headers.iter()) {
        let name = name.to_ascii_lowercase();
        if let (true, Ok(header), Some(value)) =
            (may_set(&name), HeaderName::from_bytes(name.as_bytes()), value.as_str())
        {
            answer = answer.with(header, value);
        }
    }
    // The response may be an HTML page written by an untrusted author.
    let answer = answer.with(HeaderName::from_static("content-security-policy"), "sandbox");
    Ok(answer.with(HeaderName::from_static("x-content-type-options"), "nosniff"))
}
