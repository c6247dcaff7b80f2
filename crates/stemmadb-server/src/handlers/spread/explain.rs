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
    let (entered, layout) = (call.entered()?, call.entered()?.layout());
    let shards = layout.names().iter().zip(layout.all()).enumerate();
    let shards = shards.filter(|(index, _)| entered.is_read(*index)).map(|(_, shard)| shard);
    let (names, asked): (Vec<_>, Vec<_>) =
        shards.map(|(name, shard)| (name, (shard.clone(), Some(body.clone())))).unzip();
    let answers = ShardCall::same_route(&call, handler).ask_all(asked).await?;
    let (mut explained, mut plans) = (None, Object::new());
    for (name, (_, answer)) in names.into_iter().zip(answers) {
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
