//! Calls of the program's functions.

use hyper::StatusCode;
use stemmadb::Value;

use super::document::write_options;
use crate::app::Call;
use crate::error::Result;
use crate::functions::FunctionContext;
use crate::http::{HttpResponse, blocking};

/// `POST /{db}/_function/{function}`
pub(crate) async fn call(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let (name, options) = (call.parameter("function")?.to_owned(), write_options(&call)?);
    let input = call.json_if_any().await?.unwrap_or(Value::Null);
    let (functions, limits) = (call.state.functions.clone(), call.state.settings.config().limits.clone());
    blocking(move || {
        let context = FunctionContext::new(served, options, limits.query_time);
        let mut text = functions.call(&name, input, &context, limits.body_bytes)?.to_json().into_bytes();
        text.push(b'\n');
        Ok(HttpResponse::text(StatusCode::OK, "application/json", text))
    })
    .await
}
