//! Routes of the server as a whole.

use hyper::StatusCode;
use hyper::header::CACHE_CONTROL;
use serde_json::json;
use stemmadb::Value;
use stemmadb_http::url::encode_segment;
use uuid::Uuid;

use super::node::NODE;
use crate::PROTOCOL_VERSION;
use crate::app::{Call, ask_owner};
use crate::directory::Place;
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

/// `GET /`
pub(crate) async fn welcome(call: Call) -> Result<HttpResponse> {
    HttpResponse::ok(&json!({
        "couchdb": "Welcome",
        "version": PROTOCOL_VERSION,
        "uuid": call.state.directory.server_id(),
        "features": ["partitioned", "scheduler"],
        "vendor": {"name": "Stemma", "version": env!("CARGO_PKG_VERSION")},
    }))
}

/// `GET /_up`
pub(crate) async fn up(call: Call) -> Result<HttpResponse> {
    let seconds = call.state.started.elapsed().as_secs();
    if call.state.directory.is_leaving() {
        // So that a load balancer sends requests elsewhere; those that come anyway are passed on.
        return HttpResponse::json(StatusCode::NOT_FOUND, &json!({"status": "maintenance_mode", "uptime": seconds}));
    }
    HttpResponse::ok(&json!({"status": "ok", "seeds": {}, "uptime": seconds}))
}

/// `GET /_openapi`
pub(crate) async fn openapi(call: Call) -> Result<HttpResponse> {
    Ok(HttpResponse::text(StatusCode::OK, "application/json", (call.state.openapi)()))
}

/// The most ids of one response, as in CouchDB.
const UUID_COUNT_MAX: usize = 1000;

/// `GET /_uuids`
pub(crate) async fn uuids(call: Call) -> Result<HttpResponse> {
    let count = call.query.number("count")?.unwrap_or(1);
    if count > UUID_COUNT_MAX {
        let reason = format!("count parameter too large: at most {UUID_COUNT_MAX}");
        return Err(Failure::new(StatusCode::BAD_REQUEST, "bad_request", reason));
    }
    let uuids: Vec<_> = (0..count).map(|_| Uuid::now_v7().simple().to_string()).collect();
    Ok(HttpResponse::ok(&json!({ "uuids": uuids }))?.with(CACHE_CONTROL, "must-revalidate, no-cache"))
}

/// `GET /_all_dbs`
pub(crate) async fn all_dbs(call: Call) -> Result<HttpResponse> {
    let text = |names: &[&str]| -> Result<Option<String>> {
        for name in names {
            if let Some(value) = call.query.json(name)? {
                return Ok(value.as_str().map(str::to_owned));
            }
        }
        Ok(None)
    };
    let (start, end) = (text(&["startkey", "start_key"])?, text(&["endkey", "end_key"])?);
    let descending = call.query.flag("descending", false)?;
    let (least, greatest) = if descending { (end, start) } else { (start, end) };
    let mut names = call.state.directory.list().await?;
    names.retain(|name| least.as_ref().is_none_or(|least| name >= least));
    names.retain(|name| greatest.as_ref().is_none_or(|greatest| name <= greatest));
    if descending {
        names.reverse();
    }
    let skip = call.query.number("skip")?.unwrap_or(0);
    let limit = call.query.number("limit")?.unwrap_or(usize::MAX);
    HttpResponse::ok(&names.into_iter().skip(skip).take(limit).collect::<Vec<_>>())
}

/// The most databases in one `POST /_dbs_info`, as in CouchDB.
const INFO_COUNT_MAX: usize = 100;

/// `GET /_dbs_info`, `POST /_dbs_info`
pub(crate) async fn dbs_info(mut call: Call) -> Result<HttpResponse> {
    let names = match call.json_if_any().await? {
        None => call.state.directory.list().await?,
        Some(body) => {
            let keys = body.get("keys").and_then(Value::as_array);
            let keys = keys.ok_or_else(|| Failure::bad_request("`keys` member must exist."))?;
            keys.iter().filter_map(|key| key.as_str().map(str::to_owned)).collect()
        }
    };
    if names.len() > INFO_COUNT_MAX && call.parts.method == hyper::Method::POST {
        return Err(Failure::bad_request(format!("`keys` has more than {INFO_COUNT_MAX} names")));
    }
    let mut rows = Vec::with_capacity(names.len());
    for name in names {
        if let Place::There(owner) = call.state.directory.place(&name, false, false).await? {
            let path = format!("/{}", encode_segment(&name));
            rows.push(match ask_owner(&call.state, &call.parts, &owner, &path).await {
                Ok(info) => json!({"key": name, "info": info}),
                Err(failure) => json!({"key": name, "error": failure.error()}),
            });
            continue;
        }
        if call.state.directory.is_virtual(&name) {
            let open = call.state.virtual_databases.open(&name).await;
            rows.push(match open {
                Ok(open) => {
                    json!({"key": name, "info": super::virtual_database::info(open, Default::default(), None).await?})
                }
                Err(failure) => json!({"key": name, "error": failure.error()}),
            });
            continue;
        }
        rows.push(match call.state.directory.open_database(&name).await {
            Ok(served) => json!({"key": name, "info": super::database::database_info(served, None).await?}),
            Err(failure) => json!({"key": name, "error": failure.error()}),
        });
    }
    HttpResponse::ok(&rows)
}

/// `GET /_cluster_setup`
pub(crate) async fn cluster_setup(call: Call) -> Result<HttpResponse> {
    let state = if call.state.directory.is_in_cluster() { "cluster_finished" } else { "single_node_enabled" };
    HttpResponse::ok(&json!({ "state": state }))
}

/// `GET /_membership`
pub(crate) async fn membership(call: Call) -> Result<HttpResponse> {
    let members = call.state.directory.members();
    if !members.is_empty() {
        return HttpResponse::ok(&json!({"all_nodes": members, "cluster_nodes": members}));
    }
    HttpResponse::ok(&json!({"all_nodes": [NODE], "cluster_nodes": [NODE]}))
}
