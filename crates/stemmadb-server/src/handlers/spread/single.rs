//! Documents of a virtual database that a request reads and writes besides the one that its path names, or instead of
//! it: copies, and design documents.

use std::sync::Arc;

use hyper::Method;
use stemmadb::Value;
use stemmadb_http::url::encode_id;

use super::forward::begin_design_write;
use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::error::{Failure, Result};
use crate::handlers::document::{self, destination, document_id, written_response, written_status};
use crate::http::{HttpResponse, Query};
use crate::virtual_databases::Shard;

/// Reads a document with these parameters, as the user may read it.
///
/// # Errors
/// Those of the route of the document; 503 if its server does not answer.
pub(in crate::handlers) async fn read_document(call: &Call, id: &str, query: &Query) -> Result<Value> {
    let handler: Handler = |call| Box::pin(document::get(call));
    let shard = call.entered()?.shard_of(id);
    let asking = ShardCall::of_document(call, handler, id, format!("/{}", encode_id(id)))?;
    Ok(asking.ask(&shard, query, None).await?.1)
}

/// Writes a document as the user may write it; returns its id and its revision.
///
/// # Errors
/// Those of the route of the document; 503 if its server does not answer.
pub(in crate::handlers) async fn write_document(call: &Call, id: &str, document: &Value) -> Result<(String, String)> {
    let handler: Handler = |call| Box::pin(document::put(call));
    let entered = call.entered()?;
    let shard = entered.shard_of(id);
    let _write = begin_design_write(&Method::PUT, &entered.open, [id]).await?;
    let asking = ShardCall::of_document(call, handler, id, format!("/{}", encode_id(id)))?;
    let mut query = Query::default();
    call.query.text("batch").into_iter().for_each(|batch| query.set("batch", batch));
    let (_, written) = asking.ask(&shard, &query, Some(document)).await?;
    let text = |name: &str| written.get(name).and_then(Value::as_str).map(str::to_owned);
    text("id").zip(text("rev")).ok_or_else(|| Failure::internal("a shard answered without a revision"))
}

/// `COPY /{db}/{doc}`, also to another shard
pub(super) async fn copy(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let (id, (target, parent)) = (document_id(&call)?, destination(&call)?);
    let entered = call.entered()?;
    let shards = (entered.shard_of(&id), entered.shard_of(&target));
    if let (Shard::Here(source), Shard::Here(to)) = &shards
        && Arc::ptr_eq(source, to)
    {
        call.part = Some(source.clone());
        return handler(call).await;
    }
    let mut query = Query::default();
    query.set("attachments", "true");
    call.query.text("rev").into_iter().for_each(|revision| query.set("rev", revision));
    let mut copied = read_document(&call, &id, &query).await?;
    if let Some(object) = copied.as_object_mut() {
        object.insert("_id", target.as_str());
        object.remove("_rev");
        if let Some(parent) = parent {
            object.insert("_rev", parent.to_string());
        }
    }
    let (id, revision) = write_document(&call, &target, &copied).await?;
    written_response(&call, written_status(&call), call.parameter("db")?, &id, &revision)
}
