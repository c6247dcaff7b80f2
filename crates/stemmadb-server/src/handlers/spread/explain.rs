//! The plan of a query of a virtual database: that of each shard.

use hyper::StatusCode;
use stemmadb::{Object, Value};

use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// `POST /{db}/_explain`
pub(super) async fn explain(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let body = call.json().await?;
    let layout = call.entered()?.layout();
    let asked: Vec<_> = layout.all().iter().cloned().map(|shard| (shard, Some(body.clone()))).collect();
    let answers = ShardCall::same_route(&call, handler).ask_all(asked).await?;
    let (mut explained, mut plans) = (None, Object::new());
    for (name, (_, answer)) in layout.names().iter().zip(answers) {
        let Value::Object(mut answer) = answer else { return Err(Failure::internal("a shard explained nothing")) };
        plans.insert(name, answer.remove("plan").unwrap_or_default());
        explained.get_or_insert(answer);
    }
    let mut explained = explained.unwrap_or_default();
    explained.insert("dbname", call.parameter("db")?);
    explained.insert("shards", plans);
    let text = format!("{}\n", Value::Object(explained).to_json());
    Ok(HttpResponse::text(StatusCode::OK, "application/json", text.into_bytes()))
}
