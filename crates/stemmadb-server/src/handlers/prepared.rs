//! Prepared queries: made, asked, forgotten.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use super::mango::found;
use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};
use crate::mango::PreparedQueries;

/// `POST /{db}/_prepare`
pub(crate) async fn prepare(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let body = call.json().await?;
    let owner = call.user.name.clone();
    blocking(move || {
        let (handle, query) = served.extension::<PreparedQueries>().prepare(served.database(), owner, body)?;
        Answer::json(StatusCode::CREATED, &json!({"ok": true, "handle": handle, "parameters": query.parameters}))
    })
    .await
}

/// `POST /{db}/_prepared/{handle}`
pub(crate) async fn ask(mut call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let query = served.extension::<PreparedQueries>().get(call.parameter("handle")?, &call.user.name)?;
    let Value::Object(body) = call.json().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    found(&call, served, move |database| query.request(database, body)).await
}

/// `DELETE /{db}/_prepared/{handle}`
pub(crate) async fn forget(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    served.extension::<PreparedQueries>().forget(call.parameter("handle")?, &call.user.name)?;
    Ok(Answer::done(StatusCode::OK))
}
