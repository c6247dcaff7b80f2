//! Messages in memory: `_publish` and `_subscribe`.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use crate::app::Call;
use crate::directory::check_message_bytes;
use crate::error::Result;
use crate::http::HttpResponse;
use crate::watch::{SubscribeRequest, subscribe};

/// `POST /{db}/_publish/{topic*}`
pub(crate) async fn publish(mut call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let topic = call.parameter("topic")?.to_owned();
    let text = call.json_text().await?;
    check_message_bytes(text.len())?;
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
