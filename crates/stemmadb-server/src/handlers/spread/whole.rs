//! Requests about a database as a whole, sent to all shards.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::error::Result;
use crate::handlers::backup::show_status;
use crate::handlers::virtual_database::{self, ShardTotals};
use crate::http::{HttpResponse, Query};
use crate::virtual_databases::Shard;

/// `GET /{db}`
pub(super) async fn info(call: Call) -> Result<HttpResponse> {
    let handler: Handler = |call| Box::pin(crate::handlers::database::info(call));
    let (entered, mut totals) = (call.entered()?, ShardTotals::default());
    for shard in entered.layout().all().iter().filter(|shard| shard.here().is_none()) {
        let (_, info) = ShardCall::get(&call, handler, "").ask(shard, &Query::default(), None).await?;
        let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or_default();
        let size = |name: &str| number(info.get("sizes").and_then(|sizes| sizes.get(name)));
        totals.file += size("file");
        totals.external += size("external");
        totals.active += size("active");
        totals.deleted += number(info.get("doc_del_count"));
        totals.is_compacting |= info.get("compact_running") == Some(&Value::Bool(true));
    }
    let mut info = virtual_database::info(entered.open.clone(), totals, call.restriction.clone()).await?;
    if call.restriction.is_none() {
        show_status(&call, &mut info)?;
    }
    HttpResponse::ok(&info)
}

/// Sends the request, which has no body, to all shards and to what the database stores itself.
async fn send(call: &Call, handler: Handler) -> Result<Vec<(StatusCode, Value)>> {
    let entered = call.entered()?;
    let own = Shard::Here(entered.open.own.clone());
    let all: Vec<_> = entered.layout().all().iter().cloned().chain([own]).map(|shard| (shard, None)).collect();
    ShardCall::same_route(call, handler).ask_all(all).await
}

/// `POST /{db}/_ensure_full_commit`
pub(super) async fn ensure_full_commit(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    call.json_if_any().await?;
    send(&call, handler).await?;
    let time = call.entered()?.open.own.instance_start_time();
    HttpResponse::json(StatusCode::CREATED, &json!({"ok": true, "instance_start_time": time}))
}

/// `PUT /{db}/_retention`
pub(super) async fn set_everywhere(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let body = call.json().await?;
    let layout = call.entered()?.layout();
    let all: Vec<_> = layout.all().iter().cloned().map(|shard| (shard, Some(body.clone()))).collect();
    ShardCall::setting(&call, handler).ask_all(all).await?;
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `POST /{db}/_compact`, `POST /{db}/_view_cleanup`
pub(super) async fn everywhere(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    call.json_if_any().await?;
    send(&call, handler).await?;
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}
