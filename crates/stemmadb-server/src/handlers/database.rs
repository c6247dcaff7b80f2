//! Routes about a database as a whole.

use hyper::StatusCode;
use hyper::header::LOCATION;
use serde_json::json;

use crate::auth::Security;
use crate::error::Result;
use crate::http::{Answer, Call, blocking};

/// `GET /{db}`
pub(crate) async fn info(call: Call) -> Result<Answer> {
    let served = call.database().await?;
    let info = blocking(move || {
        let info = served.database().info()?;
        Ok(json!({
            "db_name": served.name(),
            "doc_count": info.document_count,
            "update_seq": info.sequence.get(),
            "compact_running": false,
            "disk_format_version": 8,
            "instance_start_time": served.instance_start_time(),
        }))
    });
    Answer::ok(&info.await?)
}

/// `PUT /{db}`
pub(crate) async fn create(call: Call) -> Result<Answer> {
    let name = call.parameter("db")?;
    call.state.directory.create(name).await?;
    Ok(Answer::done(StatusCode::CREATED).with(LOCATION, &format!("/{name}")))
}

/// `DELETE /{db}`
pub(crate) async fn delete(call: Call) -> Result<Answer> {
    call.state.directory.delete(call.parameter("db")?).await?;
    Ok(Answer::done(StatusCode::OK))
}

/// `GET /{db}/_security`
pub(crate) async fn security(call: Call) -> Result<Answer> {
    Answer::ok(call.database().await?.security().value())
}

/// `PUT /{db}/_security`
pub(crate) async fn set_security(mut call: Call) -> Result<Answer> {
    let security = Security::parse(call.json().await?)?;
    call.state.directory.set_security(call.parameter("db")?, security).await?;
    Ok(Answer::done(StatusCode::OK))
}
