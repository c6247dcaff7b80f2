//! Backups of virtual databases: one of each shard, made by its server, one of what the virtual database stores itself,
//! and a manifest, which is written last.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use super::shard_call::ShardCall;
use crate::app::{Call, Handler};
use crate::error::{Failure, Result};
use crate::handlers::backup::{manifest_name, manifest_place, target_name};
use crate::http::{HttpResponse, blocking};
use crate::objects::backup_target;
use crate::servers::HERE;
use crate::virtual_databases::{PartBackup, Shard};

/// `POST /{db}/_backup`
pub(super) async fn back_up(mut call: Call, handler: Handler) -> Result<HttpResponse> {
    let body = call.json_if_any().await?.unwrap_or_default();
    for name in ["continuous", "cancel", "keep"] {
        if body.get(name).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(Failure::not_implemented(format!("Backups of a virtual database have no `{name}`.")));
        }
    }
    let (target, entered) = (target_name(&call, &body)?, call.entered()?);
    let (place, layout) = (manifest_place(&call, &target)?, entered.layout());
    if call.state.servers.cluster().is_some() {
        return Err(Failure::not_implemented("A cluster makes no backups of virtual databases."));
    }
    if layout.is_moving() {
        return Err(is_moving());
    }
    let of_part = |target: &str| {
        let mut body = body.clone();
        if let Value::Object(body) = &mut body {
            body.insert("target", target);
        } else {
            body = Value::Object([("target", Value::from(target))].into_iter().collect());
        }
        body
    };
    let targets: Vec<String> = layout.names().iter().map(|shard| format!("{target}.{shard}")).collect();
    let shards = layout.all().iter().zip(&targets);
    let asked: Vec<_> = shards.map(|(shard, target)| (shard.clone(), Some(of_part(target)))).collect();
    let asking = ShardCall::same_route(&call, handler);
    let mut answers = asking.ask_all(asked).await?;
    let own = Shard::Here(entered.open.own.clone());
    answers.push(asking.ask(&own, &call.query, Some(&of_part(&target))).await?);
    let number = |answer: &Value, name: &str| answer.get(name).and_then(Value::as_u64);
    let sum = |name: &str| answers.iter().filter_map(|(_, answer)| number(answer, name)).sum::<u64>();
    let part = |server: &str, target: &str, answer: &Value| {
        let backup = number(answer, "backup").ok_or_else(|| Failure::internal("a backup has no number"))?;
        Ok::<_, Failure>(PartBackup { server: server.to_owned(), target: target.to_owned(), backup })
    };
    let mut parts = BTreeMap::new();
    for (at, (name, shard)) in layout.names().iter().zip(layout.all()).enumerate() {
        parts.insert(name.clone(), part(shard.server(), &targets[at], &answers[at].1)?);
    }
    let own = part(HERE, &target, &answers[parts.len()].1)?;
    let manifest = call.state.virtual_databases.manifest(call.parameter("db")?, own, parts).await?;
    // The copying of documents begins without the fence.
    if layout.epoch() != Some(entered.open.database.epoch()) {
        return Err(is_moving());
    }
    let answer = json!({
        "ok": true,
        "backup": manifest.number(),
        "copied_bytes": sum("copied_bytes"),
        "linked_bytes": sum("linked_bytes"),
        "total_bytes": sum("total_bytes"),
    });
    blocking(move || {
        let (name, text) = (manifest_name(manifest.number()), json!(manifest).to_string());
        let target = backup_target(&place, true)?;
        if !target.put_new(&name, text.as_bytes())? {
            let reason = format!("{} has a manifest {name} already", target.describe());
            return Err(Failure::new(StatusCode::CONFLICT, "conflict", reason));
        }
        target.flush()?;
        HttpResponse::json(StatusCode::CREATED, &answer)
    })
    .await
}

fn is_moving() -> Failure {
    let reason = "Documents of the virtual database move between shards: repeat the request after the move.";
    Failure::new(StatusCode::CONFLICT, "conflict", reason)
}
