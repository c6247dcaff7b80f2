//! Routes of views besides queries: `_info` and `_view_cleanup`.

use hyper::StatusCode;
use serde_json::json;
use stemmadb::Value;

use super::view::open_view;
use crate::app::Call;
use crate::design::{self, PROGRAM_PREFIX, declared_views};
use crate::error::Result;
use crate::http::{HttpResponse, blocking};

/// `GET /{db}/_design/{ddoc}/_info`
pub(crate) async fn info(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let scripts = call.state.scripts.clone();
    let name = call.parameter("ddoc")?.to_owned();
    blocking(move || {
        let snapshot = served.database().snapshot()?;
        let design = design::open(&snapshot, &name)?.value()?;
        let names = design::view_names(&design);
        let (mut rows, mut sequence, mut signatures) = (0, snapshot.sequence(), String::new());
        let (tasks, mut is_updating) = (served.database().maintenance().active_tasks(), false);
        for view in names {
            // Skip invalid views: querying them reports the error.
            let Ok(opened) = open_view(served.clone(), &scripts, &name, &view) else { continue };
            let info = opened.view.info()?;
            rows += info.row_count;
            sequence = sequence.min(info.sequence);
            let signature = opened.program.signature();
            signatures.push_str(signature);
            is_updating |= tasks.iter().any(|task| task.name.strip_prefix(PROGRAM_PREFIX) == Some(signature));
        }
        let pending = snapshot.sequence().get() - sequence.get();
        let language = design.get("language").and_then(Value::as_str).unwrap_or("javascript");
        HttpResponse::ok(&json!({"name": name, "view_index": {
            "updates_pending": {"minimum": pending, "preferred": pending, "total": pending},
            "waiting_commit": false,
            "waiting_clients": 0,
            "updater_running": is_updating,
            "update_seq": sequence.get(),
            "sizes": {"file": 0, "external": 0, "active": 0},
            "rows": rows,
            "signature": &blake3::hash(signatures.as_bytes()).to_hex()[..32],
            "purge_seq": 0,
            "language": language,
            "compact_running": false,
            "collator_versions": [],
        }}))
    })
    .await
}

/// `POST /{db}/_view_cleanup`
pub(crate) async fn cleanup(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    blocking(move || {
        let designs = design::all(&served.database().snapshot()?)?;
        let declared = declared_views(&served, &designs)?;
        for name in served.database().views().names()? {
            let signature = name.strip_prefix(PROGRAM_PREFIX);
            if signature.is_some_and(|signature| !declared.iter().any(|view| view.signature == signature)) {
                served.database().views().remove(&name)?;
            }
        }
        super::mango_index::sync_indexes(&served)?;
        Ok(HttpResponse::done(StatusCode::ACCEPTED))
    })
    .await
}
