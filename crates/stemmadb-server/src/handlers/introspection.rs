//! Routes that inspect a database: `_statistics`, `_paths`, `_history`.

use std::time::UNIX_EPOCH;

use hyper::StatusCode;
use serde_json::{Map, Value as Json, json};
use stemmadb::{IndexInfo, IndexState, Revision, Sequence};

use super::document::check_readable;
use super::node::query_counters;
use crate::app::Call;
use crate::directory::ServedDatabase;
use crate::documents::format_rfc3339;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking, streamed, write_string};

/// `GET /{db}/_statistics`
pub(crate) async fn statistics(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let queries = query_counters(&call.state.metrics.queries_of(served.name()));
    blocking(move || {
        let database = served.database();
        let info = database.info()?;
        let views = database.views().names()?;
        HttpResponse::ok(&json!({
            "db_name": served.name(),
            "seq": served.sequence_text(info.sequence),
            "documents": {"live": info.document_count, "deleted": info.deleted_count},
            "durability": info.durability.to_string(),
            "revs_limit": database.maintenance().revs_limit(),
            "log": {
                "bytes": info.log_bytes,
                "live_bytes": info.live_bytes,
                "segments": info.segment_count,
                "history_bytes": info.history_bytes,
                "writes": info.write_count,
                "flushes": info.flush_count,
            },
            "tree": {
                "bytes": info.tree_bytes,
                "live_bytes": info.tree_live_bytes,
                "held_bytes": info.tree_held_bytes,
                "oldest_snapshot": info.oldest_snapshot.map(|snapshot| json!({
                    "seq": served.sequence_text(snapshot.sequence),
                    "age_s": snapshot.age.as_secs(),
                })),
                "writers_waited": info.stall_count,
            },
            "history": history_json(&served, info.sequence)?,
            "memory_bytes": info.memory_bytes,
            "index": {"paths": info.path_count, "shapes": info.shape_count},
            "declared_indexes": database.indexes().list().iter().map(index_json).collect::<Vec<_>>(),
            "view_count": views.len(),
            "queries": queries,
            "in_memory": database.path().is_none(),
            "compacting": served.is_compacting(),
            "format_version": info.format_version,
        }))
    })
    .await
}

/// How far the past reaches, and how much of it is kept.
fn history_json(served: &ServedDatabase, newest: Sequence) -> Result<Json> {
    let history = served.database().history();
    let oldest = history.oldest();
    let time = |sequence| -> Result<Option<u64>> {
        let since = history.time_of(sequence)?.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Ok(since.map(|since| since.as_micros() as u64))
    };
    let pins = history.pins().into_iter().map(|(name, at)| (name, served.sequence_text(at).into()));
    let retention: Json = serde_json::from_str(&history.retention().to_value().to_json()).unwrap_or_default();
    Ok(json!({
        "retention": retention,
        "pins": pins.collect::<Map<_, _>>(),
        "oldest_seq": served.sequence_text(oldest),
        "oldest_time_us": time(oldest)?,
        "newest_time_us": time(newest)?,
    }))
}

fn index_json(index: &IndexInfo) -> Json {
    let (state, why) = match &index.state {
        IndexState::Building(_) => ("building", None),
        IndexState::Ready => ("ready", None),
        IndexState::Failed { why } => ("failed", Some(why)),
    };
    json!({"name": index.name, "unique": index.unique, "state": state, "why": why})
}

/// `GET /{db}/_paths`
pub(crate) async fn paths(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let stall_timeout = call.state.config.limits.stall_timeout;
    streamed(StatusCode::OK, "application/json", stall_timeout, move |mut out| async move {
        out.buffer.extend_from_slice(b"{\"rows\":[");
        for (at, path) in served.database().indexes().paths()?.into_iter().enumerate() {
            out.buffer.extend_from_slice(if at == 0 { b"\n{\"path\":" } else { b",\n{\"path\":" });
            write_string(&mut out.buffer, &path.path);
            let kinds: Map<_, _> =
                path.kinds.iter().map(|(kind, count)| (kind.name().to_owned(), (*count).into())).collect();
            let counts = format!(
                ",\"documents\":{},\"values\":{},\"kinds\":{}}}",
                path.document_count,
                path.value_count,
                Json::Object(kinds)
            );
            out.buffer.extend_from_slice(counts.as_bytes());
            out.flush_if_full().await;
        }
        out.buffer.extend_from_slice(b"\n]}\n");
        Ok(())
    })
    .await
}

/// `GET /{db}/_history/{doc}`
pub(crate) async fn history(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let id = call.parameter("doc")?.to_owned();
    let include_docs = call.query.flag("include_docs", false)?;
    let restriction = call.restriction.clone();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        check_readable(&snapshot, &id, restriction.as_ref())?;
        let branches = snapshot.revisions(&id)?;
        let Some(winner) = branches.first().and_then(|branch| branch.revisions.first()) else {
            return Err(Failure::missing());
        };
        let document = snapshot.get_revision(&id, winner)?.ok_or_else(Failure::missing)?;
        let mut stored = Vec::new();
        for revision in served.database().history().revisions(&id)? {
            // Revisions that the user may not read are left out.
            if restriction.as_ref().map_or(Ok(true), |restriction| restriction.allows(&revision.document))? {
                stored.push(revision);
            }
        }
        let stored = stored.iter().map(|revision| {
            let since = revision.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let seconds = since.map(|since| since.as_secs());
            let mut object = json!({
                "rev": revision.document.revision().to_string(),
                "deleted": revision.document.is_deleted(),
                "seq": served.sequence_text(revision.sequence),
                "time": seconds.map(format_rfc3339),
                "time_us": since.map(|since| since.as_micros() as u64),
            });
            if let Some(author) = &revision.author {
                object["author"] = json!(author);
            }
            if include_docs {
                object["doc"] = serde_json::from_str(&revision.document.to_json()?).unwrap_or_default();
            }
            Ok(object)
        });
        let stored = stored.collect::<Result<Vec<_>>>()?;
        let branches: Vec<_> = branches
            .iter()
            .map(|branch| {
                let revisions: Vec<_> = branch.revisions.iter().map(Revision::to_string).collect();
                json!({"rev": revisions.first(), "deleted": branch.deleted, "revisions": revisions})
            })
            .collect();
        HttpResponse::ok(&json!({
            "id": id,
            "rev": winner.to_string(),
            "deleted": document.is_deleted(),
            "seq": served.sequence_text(document.sequence()),
            "branches": branches,
            "stored": stored,
        }))
    })
    .await
}
