//! Routes of a partition of a virtual database: its documents, whose ids are equal up to the first `:`, are in one
//! shard if the database groups them by this prefix.

use stemmadb::Value;
use stemmadb_federation::Grouping;

use super::forward::rest_of_path;
use super::shard_call::ShardCall;
use super::view;
use crate::app::{Call, Handler};
use crate::documents::{check_partition, partition_prefix};
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// Answers a request about a partition.
pub(super) async fn answer(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let partition = call.parameter("partition")?.to_owned();
    if call.entered()?.open.database.map().grouping() != Grouping::ByPrefix(':') {
        return Err(Failure::bad_request("database is not partitioned"));
    }
    check_partition(&partition)?;
    if call.query.text("partition").is_some_and(|named| named != partition) {
        return Err(Failure::bad_request("Conflicting value for `partition` in query string"));
    }
    if call.route.path.contains("/_view/") {
        return view::of_partition(call, partition).await;
    }
    let body = call.json_if_any().await?;
    let shard = call.entered()?.shard_of(&partition_prefix(&partition));
    let asking = ShardCall::at_path(&call, handler, rest_of_path(&call)?);
    let (status, mut answer) = asking.ask(&shard, &call.query, body.as_ref()).await?;
    if let Value::Object(answer) = &mut answer {
        for name in ["db_name", "dbname"] {
            if answer.contains(name) {
                answer.insert(name, call.parameter("db")?);
            }
        }
    }
    let text = format!("{}\n", answer.to_json());
    Ok(HttpResponse::text(status, "application/json", text.into_bytes()))
}
