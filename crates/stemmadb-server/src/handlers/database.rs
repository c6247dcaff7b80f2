//! Routes of a database as a whole: creation, deletion, info, security, compaction.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::LOCATION;
use serde_json::json;
use stemmadb::IndexPolicy;
use stemmadb::replication::Peer;
use stemmadb_http::url::encode_segment;

use super::backup::show_status;
use super::document::absolute_url;
use super::virtual_database::{self, ShardTotals};
use crate::app::Call;
use crate::auth::{Restriction, Security};
use crate::directory::{NewDatabase, ServedDatabase};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, JsonPurpose, blocking, read_json};

/// `GET /{db}`
pub(crate) async fn info(call: Call) -> Result<HttpResponse> {
    if let Some(entered) = &call.virtual_database {
        let mut info = virtual_database::info(entered.open.clone(), ShardTotals::default(), None).await?;
        show_status(&call, &mut info)?;
        return HttpResponse::ok(&info);
    }
    let served = call.open_database().await?;
    let mut info = database_info(served.clone(), call.restriction.clone()).await?;
    if call.restriction.is_some() {
        return HttpResponse::ok(&info);
    }
    if let Some(url) = served.log_url() {
        info["log"] = json!(url);
    }
    show_status(&call, &mut info)?;
    HttpResponse::ok(&info)
}

/// Document counts and sizes of a database, in CouchDB's format. With a restriction, only the documents that the user
/// may read are counted, and sizes are 0.
pub(super) async fn database_info(
    served: Arc<ServedDatabase>,
    restriction: Option<Restriction>,
) -> Result<serde_json::Value> {
    blocking(move || {
        let mut info = served.database().info()?;
        if let Some(restriction) = restriction {
            info.document_count = served.database().find(restriction.selector()).count()?;
            (info.deleted_count, info.log_bytes, info.history_bytes, info.tree_bytes) = (0, 0, 0, 0);
            (info.live_bytes, info.tree_live_bytes) = (0, 0);
        }
        Ok(json!({
            "db_name": served.name(),
            "doc_count": info.document_count,
            "doc_del_count": info.deleted_count,
            "update_seq": served.sequence_text(info.sequence),
            "purge_seq": "0",
            "compact_running": served.is_compacting(),
            "disk_format_version": 8,
            "sizes": {
                "file": info.log_bytes + info.history_bytes + info.tree_bytes,
                "external": info.live_bytes,
                "active": info.live_bytes + info.tree_live_bytes,
            },
            "props": if served.is_partitioned() { json!({"partitioned": true}) } else { json!({}) },
            "cluster": {"q": 1, "n": 1, "w": 1, "r": 1},
            "instance_start_time": served.instance_start_time(),
            "uuid": served.database().identity()?,
        }))
    })
    .await
}

/// `PUT /{db}`
pub(crate) async fn create(mut call: Call) -> Result<HttpResponse> {
    let log_url = call.query.text("log").map(str::to_owned);
    if log_url.is_some() {
        for other in ["adopt", "shards", "memory"] {
            if call.query.text(other).is_some() {
                return Err(Failure::bad_request(format!("`log` is for one database: leave `{other}` out.")));
            }
        }
    }
    if call.query.flag("adopt", false)? {
        virtual_database::adopt(&mut call).await?;
        return Ok(created(&call, call.parameter("db")?));
    }
    let name = call.parameter("db")?;
    if let Some(shard_count) = call.query.number("shards")? {
        virtual_database::create(&call, shard_count).await?;
        return Ok(created(&call, name));
    }
    let is_partitioned = match call.query.text("partitioned") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Failure::bad_request("Invalid `partitioned` parameter")),
    };
    let index_policy = match call.query.json("index")? {
        Some(policy) => Some(IndexPolicy::from_value(&policy)?),
        None => None,
    };
    let is_in_memory = call.query.flag("memory", false)?;
    let new = NewDatabase { is_partitioned, is_in_memory, log_url, index_policy, ..NewDatabase::default() };
    call.state.directory.create_with(name, new).await?;
    Ok(created(&call, name))
}

fn created(call: &Call, name: &str) -> HttpResponse {
    let location = absolute_url(call, &format!("/{}", encode_segment(name)));
    HttpResponse::done(StatusCode::CREATED).with(LOCATION, &location)
}

/// `DELETE /{db}`
pub(crate) async fn delete(call: Call) -> Result<HttpResponse> {
    if call.query.text("rev").is_some() {
        let reason =
            "You tried to DELETE a database with a ?rev= parameter. Did you mean to DELETE a document instead?";
        return Err(Failure::bad_request(reason));
    }
    let name = call.parameter("db")?;
    match call.state.directory.is_virtual(name) {
        true => call.state.virtual_databases.delete(name).await?,
        // A shard, for the server that has its virtual database.
        false if call.part.is_some() => call.state.directory.delete_part(name).await?,
        false => call.state.directory.delete(name).await?,
    }
    call.state.metrics.forget_database(name);
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `GET /{db}/_security`
pub(crate) async fn security(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(call.open_database().await?.own_security().value())
}

/// `PUT /{db}/_security`
pub(crate) async fn set_security(mut call: Call) -> Result<HttpResponse> {
    let security = Security::parse(call.json().await?)?;
    call.state.directory.set_security(call.parameter("db")?, security).await?;
    if let Some(entered) = &call.virtual_database {
        entered.open.security_changed().await;
    }
    Ok(HttpResponse::done(StatusCode::OK))
}

/// `POST /{db}/_ensure_full_commit`
pub(crate) async fn ensure_full_commit(mut call: Call) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    blocking(move || {
        let mut time = String::new();
        for served in databases.all() {
            served.database().flush()?;
            time = served.instance_start_time();
        }
        HttpResponse::json(StatusCode::CREATED, &json!({"ok": true, "instance_start_time": time}))
    })
    .await
}

/// `POST /{db}/_compact`
pub(crate) async fn compact(mut call: Call) -> Result<HttpResponse> {
    if call.virtual_database.is_some() {
        call.json_if_any().await?;
        call.open_databases().await?.all().for_each(|served| served.compact());
        return Ok(HttpResponse::done(StatusCode::ACCEPTED));
    }
    if let Some(part) = &call.part {
        part.compact();
        return Ok(HttpResponse::done(StatusCode::ACCEPTED));
    }
    let served = call.state.directory.open_to_compact(call.parameter("db")?).await?;
    call.json_if_any().await?;
    served.compact();
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}

/// `POST /{db}/_compact/{ddoc}`
pub(crate) async fn compact_views(call: Call) -> Result<HttpResponse> {
    call.open_database().await?;
    Ok(HttpResponse::done(StatusCode::ACCEPTED))
}

/// `GET /{db}/_revs_limit`
pub(crate) async fn revs_limit(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&call.open_database().await?.database().maintenance().revs_limit())
}

/// `PUT /{db}/_revs_limit`
pub(crate) async fn set_revs_limit(mut call: Call) -> Result<HttpResponse> {
    let limit = read_json(&call.bytes().await?, JsonPurpose::Parameters)?
        .as_u64()
        .and_then(|limit| usize::try_from(limit).ok());
    match limit {
        Some(limit @ 1..) => call.state.directory.set_revs_limit(call.parameter("db")?, limit).await?,
        _ => return Err(Failure::bad_request("`_revs_limit` must be a positive integer")),
    }
    Ok(HttpResponse::done(StatusCode::OK))
}
