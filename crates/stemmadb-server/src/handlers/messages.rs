//! Messages in memory: `_publish` and `_subscribe`.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::HttpResponse;
use crate::watch::{SubscribeRequest, subscribe};

/// The largest payload in bytes. Up to 1,024 messages wait for each subscriber.
const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// `POST /{db}/_publish/{topic*}`
pub(crate) async fn publish(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let topic = call.parameter("topic")?.to_owned();
    let text = call.json_text().await?;
    if text.len() > PAYLOAD_BYTES_MAX {
        let reason = format!("A message has at most {PAYLOAD_BYTES_MAX} bytes: store a document and publish its id");
        return Err(Failure::too_large(reason));
    }
    let payload = Value::parse(&text)?;
    let count = served.database().publish(&topic, &payload)?;
    HttpResponse::json(StatusCode::OK, &json!({"ok": true, "subscribers": count}))
}

/// `GET /{db}/_subscribe`
pub(crate) async fn subscribe_topic(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let request = SubscribeRequest::parse(&call)?;
    subscribe(call, served, request)
}
