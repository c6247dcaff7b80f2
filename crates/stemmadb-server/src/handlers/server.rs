//! Routes about the server itself.

use hyper::StatusCode;
use hyper::header::CACHE_CONTROL;
use serde_json::json;
use uuid::Uuid;

use crate::PROTOCOL_VERSION;
use crate::error::{Failure, Result};
use crate::http::{Answer, Call};

/// `GET /`
pub(crate) async fn welcome(call: Call) -> Result<Answer> {
    Answer::ok(&json!({
        "couchdb": "Welcome",
        "version": PROTOCOL_VERSION,
        "uuid": call.state.directory.server_id(),
        "features": ["scheduler"],
        "vendor": {"name": "Stemma", "version": env!("CARGO_PKG_VERSION")},
    }))
}

/// `GET /_up`
pub(crate) async fn up(call: Call) -> Result<Answer> {
    let seconds = call.state.started.elapsed().as_secs();
    Answer::ok(&json!({"status": "ok", "seeds": {}, "uptime": seconds}))
}

/// The most ids given at once, as in CouchDB.
const UUID_COUNT_MAX: usize = 1000;

/// `GET /_uuids`
pub(crate) async fn uuids(call: Call) -> Result<Answer> {
    let count = call.query.number("count")?.unwrap_or(1);
    if count > UUID_COUNT_MAX {
        let reason = format!("count parameter too large: at most {UUID_COUNT_MAX}");
        return Err(Failure::new(StatusCode::BAD_REQUEST, "bad_request", reason));
    }
    let uuids: Vec<_> = (0..count).map(|_| Uuid::now_v7().simple().to_string()).collect();
    Ok(Answer::ok(&json!({ "uuids": uuids }))?.with(CACHE_CONTROL, "must-revalidate, no-cache"))
}

/// `GET /_all_dbs`
pub(crate) async fn all_dbs(call: Call) -> Result<Answer> {
    Answer::ok(&call.state.directory.names())
}
