//! Virtual databases: creation, info, questions to all shards, and moves of documents between them.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::replication::Peer;
use stemmadb::{Selector, Value};
use stemmadb_federation::Grouping;

use super::federation::{aggregated_response, found_response, unsupported_parameter};
use crate::app::Call;
use crate::auth::Restriction;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::{FindRequest, ListedIndex, chosen_index, unused_index_warning};
use crate::virtual_databases::{FencedVirtual, MoveRequest, NewVirtual, OpenVirtual, PromoteRequest, VirtualDatabases};

/// Creates a virtual database with this number of shards.
pub(super) async fn create(call: &Call, shard_count: u64) -> Result<()> {
    for other in ["partitioned", "index", "memory"] {
        if call.query.text(other).is_some() {
            return Err(Failure::bad_request(format!("A virtual database has no `{other}`")));
        }
    }
    let grouping = match call.query.text("prefix") {
        None => Grouping::ById,
        Some(text) => match Vec::from_iter(text.chars()).as_slice() {
            [separator] => Grouping::ByPrefix(*separator),
            _ => return Err(Failure::bad_request("`prefix` is one character, which ends the prefix of an id")),
        },
    };
    let shard_count = usize::try_from(shard_count).unwrap_or(usize::MAX);
    let servers = call.query.text("servers").into_iter().flat_map(|names| names.split(','));
    let servers = servers.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let replica_count = call.query.number("replicas")?.unwrap_or(0);
    let shard_bytes_max = call.query.number("shard_bytes_max")?;
    let new = NewVirtual { shard_count, grouping, servers, replica_count, shard_bytes_max };
    call.state.virtual_databases.create(call.parameter("db")?, new).await
}

/// Takes over a virtual database whose server is lost: the body has its `shards`, by their names.
pub(super) async fn adopt(call: &mut Call) -> Result<()> {
    let body = call.json().await?;
    let shards = body.get("shards").cloned().unwrap_or_default().deserialize_into().map_err(|error| {
        Failure::bad_request(format!(
            "the body is {{\"shards\": {{\"shard-1\": {{\"server\": NAME, \"database\": NAME}}, …}}}}: {error}"
        ))
    })?;
    call.state.virtual_databases.adopt(call.parameter("db")?, shards).await
}

/// Sizes in bytes, and other figures, of several shards together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ShardTotals {
    pub(super) file: u64,
    pub(super) external: u64,
    pub(super) active: u64,
    pub(super) deleted: u64,
    pub(super) is_compacting: bool,
}

/// The info of a virtual database, in the format of other databases. `others` are the shards on other servers.
pub(super) async fn info(
    open: Arc<OpenVirtual>,
    others: ShardTotals,
    restriction: Option<Restriction>,
) -> Result<serde_json::Value> {
    blocking(move || {
        let (database, layout) = (&open.database, open.layout());
        let ShardTotals { mut file, mut external, mut active, mut deleted, mut is_compacting } = others;
        for served in layout.shards() {
            let info = served.database().info()?;
            file += info.log_bytes + info.history_bytes + info.tree_bytes;
            external += info.live_bytes;
            active += info.live_bytes + info.tree_live_bytes;
            deleted += info.deleted_count;
            is_compacting |= served.is_compacting();
        }
        let readable = restriction.as_ref().map_or_else(Selector::everything, Restriction::selector);
        if restriction.is_some() {
            (file, external, active, deleted) = (0, 0, 0, 0);
        }
        let mut info = json!({
            "db_name": open.own.name(),
            "doc_count": database.find(readable).count()?,
            "update_seq": database.changes().newest_token(),
            "purge_seq": "0",
            "compact_running": is_compacting,
            "disk_format_version": 8,
            "sizes": {"file": file, "external": external, "active": active},
            "props": {"virtual": true},
            "cluster": {"q": layout.names().len(), "n": 1, "w": 1, "r": 1},
            "instance_start_time": open.own.instance_start_time(),
            "uuid": open.own.database().identity()?,
            "shards": database.shards().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "epoch": database.epoch(),
        });
        // Documents that have moved are deletions in their former shards.
        if !database.map().has_moved() {
            info["doc_del_count"] = json!(deleted);
        }
        Ok(info)
    })
    .await
}

/// `POST /{db}/_find`
pub(super) async fn find(call: &Call, mut database: FencedVirtual, request: FindRequest) -> Result<HttpResponse> {
    if let Some(name) = unsupported_parameter(&request).filter(|name| *name != "use_index") {
        return Err(Failure::not_implemented(format!("A query of a virtual database has no `{name}`.")));
    }
    let fence = database.take_fence();
    if let Some(restriction) = &call.restriction {
        let request = request.restricted_to(restriction.selector());
        return found_response(call, request, None, move |query| database.find(query), fence).await;
    }
    let (mut request, mut warning) = (request, None);
    if request.use_index.is_some() {
        let known = database.open.indexes();
        warning = unused_index_warning(&known, &request)?;
        // Documents of a partial index are meant.
        if let Some(partial) = chosen_index(&known, &request)?.and_then(ListedIndex::partial) {
            request.selector = request.selector.and(Selector::parse(partial)?);
        }
    }
    found_response(call, request, warning, move |query| database.find(query), fence).await
}

/// `POST /{db}/_aggregate`
pub(super) async fn aggregate(call: &Call, mut database: FencedVirtual, body: Value) -> Result<HttpResponse> {
    if body.get("pipeline").is_some() {
        let reason = "A virtual database runs no pipelines: ask for `figures` and `group_by`.";
        return Err(Failure::not_implemented(reason));
    }
    let readable = call.restriction.as_ref().map(Restriction::selector);
    let fence = database.take_fence();
    let aggregation = move |body: &Value| {
        readable.into_iter().fold(database.aggregation(body), |aggregation, readable| aggregation.within(readable))
    };
    aggregated_response(call, body, aggregation, fence).await
}

/// The error for a database without shards.
fn no_shards() -> Failure {
    Failure::not_implemented("The database is not virtual and has no shards: create one with `PUT /{db}?shards=2`.")
}

/// `GET /{db}/_shards`
pub(crate) async fn shards(call: Call) -> Result<HttpResponse> {
    let Some(entered) = &call.virtual_database else { return Err(no_shards()) };
    let open = entered.open.clone();
    let (databases, name) = (&call.state.virtual_databases, call.parameter("db")?);
    let (moving, shard_bytes_max) = (databases.move_status(name)?, databases.shard_bytes_max(name).await?);
    let directory = call.state.directory.clone();
    blocking(move || {
        let map = open.database.map();
        let grouping = match map.grouping() {
            Grouping::ByPrefix(separator) => json!({"prefix": separator.to_string()}),
            _ => json!({}),
        };
        let shard = |(name, buckets): (String, usize)| {
            let (database, mut server) = (open.database_name(&name), open.server_of(&name));
            if let Ok(Some(owner)) = directory.owner(&database) {
                server = owner;
            }
            let replicas = open.replicas_of(&name);
            json!({"name": name, "database": database, "server": server, "buckets": buckets, "replicas": replicas})
        };
        let shards: Vec<_> = open.database.shards().into_iter().map(shard).collect();
        let mut answer = json!({"shards": shards, "epoch": map.epoch(), "grouping": grouping, "move": moving});
        if let Some(bytes) = shard_bytes_max {
            answer["shard_bytes_max"] = json!(bytes);
        }
        HttpResponse::ok(&answer)
    })
    .await
}

/// `GET /{db}/_shards/{doc}`
pub(crate) async fn shard_of(call: Call) -> Result<HttpResponse> {
    let Some(entered) = &call.virtual_database else { return Err(no_shards()) };
    let (database, id) = (&entered.open.database, call.parameter("doc")?);
    HttpResponse::ok(&json!({"shard": database.shard_of(id), "bucket": database.bucket(id)}))
}

/// `POST /{db}/_shards`
pub(crate) async fn start_move(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.take().is_none() {
        return Err(no_shards());
    }
    let body = call.json().await?;
    let (databases, name) = (&call.state.virtual_databases, call.parameter("db")?);
    if let Some(bytes) = body.get("shard_bytes_max") {
        let invalid = || Failure::bad_request("the body is {\"shard_bytes_max\": NUMBER}, or null for never");
        let bytes = match bytes {
            Value::Null => None,
            bytes => Some(bytes.as_u64().ok_or_else(invalid)?),
        };
        if body.as_object().is_some_and(|body| body.len() > 1) {
            return Err(invalid());
        }
        databases.set_shard_bytes_max(name, bytes).await?;
        return Ok(HttpResponse::done(StatusCode::ACCEPTED));
    }
    if body.get("promote").is_some() || body.get("replicas").is_some() {
        return change_replicas(databases, name, &body).await;
    }
    let request = MoveRequest::parse(&body)?;
    match body.get("estimate") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Bool(true)) => {
            let estimate = databases.estimate(name, &request).await?;
            return HttpResponse::ok(&json!({"documents": estimate.documents, "bytes": estimate.bytes}));
        }
        Some(_) => return Err(Failure::bad_request("`estimate` is true or false")),
    }
    databases.start_move(name, request).await?;
    HttpResponse::json(StatusCode::ACCEPTED, &json!({"ok": true, "move": databases.move_status(name)?}))
}

/// Puts a replica in the place of its shard, or changes how many replicas there are.
async fn change_replicas(databases: &VirtualDatabases, name: &str, body: &Value) -> Result<HttpResponse> {
    let invalid = || {
        Failure::bad_request(
            "the body is {\"promote\": SHARD}, with the `server` of the replica if it has several, and with \
             `incomplete`, or {\"replicas\": NUMBER}, with `servers`, a list of names",
        )
    };
    let object = body.as_object().ok_or_else(invalid)?;
    let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(invalid);
    if let Some(shard) = object.get("promote") {
        if object.names().any(|name| !matches!(name, "promote" | "server" | "incomplete")) {
            return Err(invalid());
        }
        let request = PromoteRequest {
            shard: text(shard)?,
            server: object.get("server").map(text).transpose()?,
            may_be_incomplete: object.get("incomplete").is_some_and(|flag| flag == &Value::Bool(true)),
        };
        let promoted = databases.promote(name, &request).await?;
        return HttpResponse::json(StatusCode::ACCEPTED, &json!({"ok": true, "promoted": promoted}));
    }
    if object.names().any(|name| !matches!(name, "replicas" | "servers")) {
        return Err(invalid());
    }
    let count = object.get("replicas").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
    let servers = match object.get("servers") {
        None => Vec::new(),
        Some(servers) => servers.as_array().ok_or_else(invalid)?.iter().map(text).collect::<Result<_>>()?,
    };
    databases.set_replica_count(name, count.ok_or_else(invalid)?, servers).await?;
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}

/// `DELETE /{db}/_shards`
pub(crate) async fn cancel_move(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.take().is_none() {
        return Err(no_shards());
    }
    call.state.virtual_databases.cancel_move(call.parameter("db")?).await?;
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}
