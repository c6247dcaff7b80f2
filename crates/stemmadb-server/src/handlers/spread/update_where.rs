//! Updates of all documents that match a selector: each shard changes its own, all of them or none.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use hyper::StatusCode;
use serde_json::json;
use stemmadb::{Selector, Value};

use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::auth::Restriction;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::mango::exclude_design_documents;
use crate::virtual_databases::Shard;

/// `POST /{db}/_update_where`
pub(super) async fn update_where(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let body = call.document().await?;
    let limit = match body.get("limit") {
        None => None,
        Some(limit) => Some(limit.as_u64().ok_or_else(|| Failure::bad_request("limit is a number"))?),
    };
    let layout = call.entered()?.layout();
    // While documents move, a shard has copies that another one owns: the own ones are named.
    let bodies: Vec<(Shard, Value)> = match layout.is_moving() {
        true => owned_only(&call, &body, limit).await?,
        false => layout.all().iter().map(|shard| (shard.clone(), body.clone())).collect(),
    };
    let asking = ShardCall::same_route(&call, handler);
    let ask = |(shard, body): (Shard, Value)| {
        let asking = &asking;
        async move { changed(asking.ask(&shard, &asking.call().query, Some(&body)).await?.1) }
    };
    let mut answers = Vec::with_capacity(bodies.len());
    match limit {
        None => answers = join_all(bodies.into_iter().map(ask)).await,
        // How many documents are left for a shard depends on those before it.
        Some(limit) => {
            let mut left = limit;
            for (at, (shard, mut body)) in bodies.into_iter().enumerate() {
                // The first one also checks the request.
                if at > 0 && left == 0 {
                    break;
                }
                if let Some(body) = body.as_object_mut() {
                    body.insert("limit", left);
                }
                let answer = ask((shard, body)).await;
                let is_failed = answer.is_err();
                left = left.saturating_sub(*answer.as_ref().unwrap_or(&0));
                answers.push(answer);
                if is_failed {
                    break;
                }
            }
        }
    }
    let count: u64 = answers.iter().flatten().sum();
    match answers.into_iter().find_map(Result::err) {
        None => HttpResponse::json(StatusCode::OK, &json!({"ok": true, "changed": count})),
        Some(failure) if count == 0 => Err(failure),
        Some(failure) => Err(Failure::new(
            failure.status(),
            "partly_changed",
            format!("{count} documents were changed in other shards, but in one, none was: {}", failure.reason()),
        )),
    }
}

/// The number of documents that a shard has changed.
fn changed(answer: Value) -> Result<u64> {
    let count = answer.get("changed").and_then(Value::as_u64);
    count.ok_or_else(|| Failure::internal("a shard answered without the number of changed documents"))
}

/// The requests to the shards that have matching documents, each of which names those that the shard owns.
async fn owned_only(call: &Call, body: &Value, limit: Option<u64>) -> Result<Vec<(Shard, Value)>> {
    let selector = body.get("selector").map(Selector::parse).transpose()?;
    let layout = call.entered()?.layout();
    // The first shard reports what is wrong with the request.
    let Some(selector) = selector else { return Ok(vec![(layout.all()[0].clone(), body.clone())]) };
    let selector = call.restriction.as_ref().map(Restriction::selector).into_iter().fold(selector, Selector::and);
    let (open, placed) = (call.entered()?.open.clone(), layout.clone());
    let ids = blocking(move || {
        let mut ids: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        let find = open.database.find(exclude_design_documents(selector));
        let find = limit.into_iter().fold(find, |find, limit| find.limit(limit));
        for document in find.run()? {
            let document = document?;
            let id = document.id().as_str();
            ids.entry(placed.index_of(id)).or_default().push(id.into());
        }
        Ok(ids)
    })
    .await?;
    // Without matching documents, the first shard checks the request.
    let ids = if ids.is_empty() { [(0, Vec::new())].into() } else { ids };
    let named = |(shard, ids): (usize, Vec<Value>)| {
        let ids = single("_id", single("$in", Value::Array(ids)));
        let mut body = body.clone();
        if let Some(body) = body.as_object_mut()
            && let Some(selector) = body.remove("selector")
        {
            body.insert("selector", single("$and", Value::Array(vec![selector, ids])));
        }
        (layout.all()[shard].clone(), body)
    };
    Ok(ids.into_iter().map(named).collect())
}

fn single(name: &str, value: Value) -> Value {
    Value::Object([(name, value)].into_iter().collect())
}
