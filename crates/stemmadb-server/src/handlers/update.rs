//! The route `_update`: runs an update function of a design document, which writes a document and creates the response.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderName;
use stemmadb::Value;

use super::document::write_options;
use super::function_inputs::FunctionInputs;
use super::function_response::function_response;
use super::spread::write_document;
use crate::app::Call;
use crate::design::{request_value, thrown_failure};
use crate::directory::ServedDatabase;
use crate::documents::{IncomingDocument, check_id};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json};
use crate::script::CallKind;
use crate::writes::{new_document_id, write_one};

/// The memory for processing a body, as a multiple of its length: the text, its copy in the function's request object,
/// that object as JSON, and the message to the script engine.
pub(super) const MEMORY_FACTOR: usize = 4;

/// `POST /{db}/_design/{ddoc}/_update/{function}`, `PUT` the same, `…/{function}/{doc*}`
pub(crate) async fn update(mut call: Call) -> Result<HttpResponse> {
    let body = String::from_utf8_lossy(&call.bytes().await?).into_owned();
    call.reservation.grow(body.len().saturating_mul(MEMORY_FACTOR)).await?;
    let (design, function) = (call.parameter("ddoc")?.to_owned(), call.parameter("function")?.to_owned());
    let id = call.parameters.get("doc").map(str::to_owned);
    let inputs = FunctionInputs::read(&call, &design, id.as_deref()).await?;
    let (served, scripts) = (inputs.served.clone(), call.state.scripts.clone());
    let request = request_value(&served, &call.user, &call.parts, &call.query, &body, id.as_deref()).to_json();
    let called = blocking(move || {
        let functions = inputs.functions(&scripts)?;
        let arguments = [inputs.document_text(), request];
        let result = functions.call(CallKind::Update, &["updates", &function], &[arguments])?.pop();
        let result = result.ok_or_else(|| Failure::internal("the script engine returned no result"))?;
        read_json(result.map_err(thrown_failure)?.as_bytes(), JsonPurpose::Documents)
    });
    let result = called.await?;
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
            let (id, revision) = write(&call, served, document.clone()).await?;
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
}

/// Writes the document of an update function; returns its id and its revision.
async fn write(call: &Call, served: Arc<ServedDatabase>, mut document: Value) -> Result<(String, String)> {
    if call.virtual_database.is_some() {
        let id = document.get("_id").and_then(Value::as_str).map_or_else(new_document_id, str::to_owned);
        check_id(&id)?;
        if let Some(document) = document.as_object_mut() {
            document.insert("_id", id.as_str());
        }
        return write_document(call, &id, &document).await;
    }
    let options = write_options(call)?;
    blocking(move || {
        let document = IncomingDocument::parse(document)?;
        document.id.as_deref().map(check_id).transpose()?;
        write_one(&served, document, &options)
    })
    .await
}
