//! The route `_update`: runs an update function of a design document, which writes a document and creates the response.

use hyper::StatusCode;
use hyper::header::HeaderName;
use stemmadb::Value;

use super::document::write_options;
use super::function_response::function_response;
use crate::app::Call;
use crate::design::{self, DesignFunctions, document_json, request_value, thrown_failure};
use crate::documents::{IncomingDocument, check_id};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json};
use crate::script::CallKind;
use crate::writes::write_one;

/// The memory for processing a body, as a multiple of its length: the text, its copy in the function's request object,
/// that object as JSON, and the message to the script engine.
pub(super) const MEMORY_FACTOR: usize = 4;

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
        let answer = function_response(response, status)?;
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
