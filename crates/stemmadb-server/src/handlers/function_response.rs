//! Responses of functions of design documents: updates, shows, lists and rewrites.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::HeaderName;
use stemmadb::Value;

use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// Whether a function may set this response header. Headers for the connection, sessions and CORS are reserved for the
/// server.
fn may_set(name: &str) -> bool {
    !matches!(
        name,
        "set-cookie" | "server" | "www-authenticate" | "connection" | "transfer-encoding" | "content-length"
    ) && !name.starts_with("access-control-")
}

/// The response that a function returned: a string, or an object with `code`, `headers`, and `body`, `json` or
/// `base64`.
///
/// # Errors
/// 500 if `base64` is invalid.
pub(super) fn function_response(response: &Value, status: StatusCode) -> Result<HttpResponse> {
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
