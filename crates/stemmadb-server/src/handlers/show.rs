//! The route `_show`: a function of a design document renders a document.

use hyper::StatusCode;
use hyper::header::{ETAG, VARY};

use super::document::has_etag;
use super::function_inputs::FunctionInputs;
use super::function_response::function_response;
use crate::app::Call;
use crate::design::{request_value, thrown_failure};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json};
use crate::script::CallKind;

/// `GET /{db}/_design/{ddoc}/_show/{function}`, `…/{function}/{doc*}`, `POST` the same
pub(crate) async fn show(mut call: Call) -> Result<HttpResponse> {
    let body = String::from_utf8_lossy(&call.bytes().await?).into_owned();
    call.reservation.grow(body.len().saturating_mul(super::update::MEMORY_FACTOR)).await?;
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let id = call.parameters.get("doc").map(str::to_owned);
    let inputs = FunctionInputs::read(&call, &design, id.as_deref()).await?;
    let request = request_value(&inputs.served, &call.user, &call.parts, &call.query, &body, id.as_deref()).to_json();
    let scripts = call.state.scripts.clone();
    let variant = variant_of(&call);
    let if_none_match = call.header("if-none-match").map(str::to_owned);
    blocking(move || {
        let functions = inputs.functions(&scripts)?;
        let [design, document] = inputs.revisions();
        let etag = rendered_etag(&[design, document, &variant]);
        if if_none_match.is_some_and(|tags| has_etag(&tags, &etag)) {
            return Ok(HttpResponse::empty(StatusCode::NOT_MODIFIED).with(ETAG, &etag));
        }
        let arguments = [inputs.document_text(), request];
        let result = functions.call(CallKind::Show, &["shows", &function], &[arguments])?.pop();
        rendered(result, &etag)
    })
    .await
}

/// The response of a show or a list.
pub(super) fn rendered(
    result: Option<std::result::Result<String, crate::script::ThrownError>>,
    etag: &str,
) -> Result<HttpResponse> {
    let result = result.ok_or_else(|| Failure::internal("the script engine returned no result"))?;
    let response = read_json(result.map_err(thrown_failure)?.as_bytes(), JsonPurpose::Documents)?;
    Ok(function_response(&response, StatusCode::OK)?.with(ETAG, etag).with(VARY, "Accept"))
}

/// The inputs of a rendered response besides functions and documents: the URL, the accepted types, and the user.
pub(super) fn variant_of(call: &Call) -> String {
    let uri = call.parts.uri.path_and_query().map_or("", |path| path.as_str());
    let accept = call.header("accept").unwrap_or_default();
    format!("{} {uri}\n{accept}\n{:?}\n{:?}", call.parts.method, call.user.name, call.user.roles)
}

/// The entity tag of a rendered response.
pub(super) fn rendered_etag(depends_on: &[&str]) -> String {
    format!("\"{}\"", &blake3::hash(depends_on.join("\n").as_bytes()).to_hex()[..32])
}
