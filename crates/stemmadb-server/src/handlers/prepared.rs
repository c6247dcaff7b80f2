//! Routes of prepared queries: create, execute, remove.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use super::mango::find_response;
use super::virtual_database;
use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::PreparedQueries;

/// `POST /{db}/_prepare`
pub(crate) async fn prepare(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_own().await?;
    let body = call.json().await?;
    let owner = call.user.name.clone();
    blocking(move || {
        let (handle, query) = served.extension::<PreparedQueries>().prepare(served.database(), owner, body)?;
        HttpResponse::json(StatusCode::CREATED, &json!({"ok": true, "handle": handle, "parameters": query.parameters}))
    })
    .await
}

/// `POST /{db}/_prepared/{handle}`
pub(crate) async fn execute(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_own().await?;
    let query = served.extension::<PreparedQueries>().get(call.parameter("handle")?, &call.user.name)?;
    let Value::Object(body) = call.json().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    if call.virtual_database.is_some() {
        let (database, request) = (call.take_reading()?, query.unplanned_request(body)?);
        return virtual_database::find(&call, database, request).await;
    }
    find_response(&call, served, "prepared", move |database| query.request(database, body)).await
}

/// `DELETE /{db}/_prepared/{handle}`
pub(crate) async fn remove(call: Call) -> Result<HttpResponse> {
    let served = call.open_own().await?;
    served.extension::<PreparedQueries>().remove(call.parameter("handle")?, &call.user.name)?;
    Ok(HttpResponse::done(StatusCode::OK))
}
