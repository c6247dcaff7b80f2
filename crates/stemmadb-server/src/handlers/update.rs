//! `_update`: a function of a design document writes a document, and says what is answered.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::HeaderName;
use stemmadb::Value;

use super::document::write_options;
use crate::app::Call;
use crate::design::{self, Functions, document_json, request_value, thrown_failure};
use crate::documents::{Incoming, check_id};
use crate::error::{Failure, Result};
use crate::http::{Answer, JsonPurpose, blocking, read_json};
use crate::script::Verb;
use crate::writes::write_one;

/// What is made of a body, as a multiple of its length: itself as text and in the request that the function gets, as a value, as JSON, and as
/// that is sent to the engine.
const COPIES: usize = 4;

/// `POST /{db}/_design/{ddoc}/_update/{function}`, `PUT …/{function}/{doc}`
pub(crate) async fn update(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let body = String::from_utf8_lossy(&call.bytes().await?).into_owned();
    call.reservation.grow(body.len().saturating_mul(COPIES)).await?;
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let id = call.parameters.get("doc").map(str::to_owned);
    let options = write_options(&call)?;
    let request = request_value(&served, &call.user, &call.parts, &call.query, &body, id.as_deref()).to_json();
    let scripts = call.state.scripts.clone();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let functions = Functions::new(&served, &scripts, &design::open(&snapshot, &design)?)?;
        let document = id.as_deref().map(|id| snapshot.get(id)).transpose()?.flatten();
        let before = document.map(|document| document_json(&served, &document)).transpose()?;
        let arguments = [before.unwrap_or_else(|| "null".to_owned()), request];
        let answer = functions.call(Verb::Update, &["updates", &function], &[arguments])?.pop();
        let answer = answer.ok_or_else(|| Failure::internal("the function was not answered"))?;
        let answer = read_json(answer.map_err(thrown_failure)?.as_bytes(), JsonPurpose::Documents)?;
        let wrong = || {
            Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "render_error",
                "an update function returns [document, response]",
            )
        };
        let [document, response] = answer.as_array().ok_or_else(wrong)? else { return Err(wrong()) };
        let (revision, id) = match document {
            Value::Null => (None, None),
            document => {
                let document = Incoming::parse(document.clone())?;
                document.id.as_deref().map(check_id).transpose()?;
                let (id, revision) = write_one(&served, document, &options)?;
                (Some(revision), Some(id))
            }
        };
        let status = if revision.is_some() { StatusCode::CREATED } else { StatusCode::OK };
        let answer = respond(response, status)?;
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

/// Headers that a function may set: none that speaks for the server.
fn may_set(name: &str) -> bool {
    !matches!(
        name,
        "set-cookie" | "server" | "www-authenticate" | "connection" | "transfer-encoding" | "content-length"
    ) && !name.starts_with("access-control-")
}

/// What a function says is to be answered: a text, or an object with `code`, `headers`, and `body`, `json` or `base64`.
fn respond(response: &Value, status: StatusCode) -> Result<Answer> {
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let code = response.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let status = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(status);
    let (kind, body) = match (response, response.get("json"), text("body"), text("base64")) {
        (Value::String(text), ..) => ("text/html; charset=utf-8", text.clone().into_bytes()),
        (_, Some(json), ..) => ("application/json", json.to_json().into_bytes()),
        (_, _, Some(body), _) => ("text/html; charset=utf-8", body.as_bytes().to_vec()),
        (_, _, _, Some(encoded)) => {
            let decoded = BASE64_STANDARD.decode(encoded);
            ("application/octet-stream", decoded.map_err(|_| Failure::internal("the function's base64 is none"))?)
        }
        _ => ("text/html; charset=utf-8", Vec::new()),
    };
    let mut answer = Answer::text(status, kind, body);
    let headers = response.get("headers").and_then(Value::as_object);
    for (name, value) in headers.into_iter().flat_map(|headers| headers.iter()) {
        let name = name.to_ascii_lowercase();
        if let (true, Ok(header), Some(value)) =
            (may_set(&name), HeaderName::from_bytes(name.as_bytes()), value.as_str())
        {
            answer = answer.with(header, value);
        }
    }
    // What a function answers may be a page, and is a stranger's.
    let answer = answer.with(HeaderName::from_static("content-security-policy"), "sandbox");
    Ok(answer.with(HeaderName::from_static("x-content-type-options"), "nosniff"))
}
