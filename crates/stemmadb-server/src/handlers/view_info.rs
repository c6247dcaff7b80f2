//! Routes of views besides queries: `_info` and `_view_cleanup`.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::Value;

use super::view::open_view_of;
use crate::app::Call;
use crate::design::{self, PROGRAM_PREFIX, declared_views};
use crate::directory::ServedDatabase;
use crate::error::Result;
use crate::http::{HttpResponse, blocking};
use crate::script::Scripts;

/// The state of a design document's views in the databases that have the documents.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct ViewsState {
    rows: u64,
    /// The sequence up to which all views include changes, and the number of changes that they lack.
    sequence: u64,
    pending: u64,
    is_updating: bool,
    signatures: String,
}

impl ViewsState {
    /// Adds the state in one database.
    ///
    /// # Errors
    /// Those of the library.
    pub(super) fn add(&mut self, served: &Arc<ServedDatabase>, scripts: &Arc<Scripts>, design: &Value) -> Result<()> {
        let newest = served.database().sequence();
        let (mut sequence, tasks) = (newest, served.database().maintenance().active_tasks());
        self.signatures.clear();
        for view in design::view_names(design) {
            // Skip invalid views: querying them reports the error.
            let Ok(opened) = open_view_of(served.clone(), scripts, design, &view) else { continue };
            let info = opened.view.info()?;
            self.rows += info.row_count;
            sequence = sequence.min(info.sequence);
            let signature = opened.program.signature();
            self.signatures.push_str(signature);
            self.is_updating |= tasks.iter().any(|task| task.name.strip_prefix(PROGRAM_PREFIX) == Some(signature));
        }
        self.sequence += sequence.get();
        self.pending += newest.get() - sequence.get();
        Ok(())
    }

    /// Adds the state in other databases.
    pub(super) fn merge(&mut self, other: ViewsState) {
        self.rows += other.rows;
        self.sequence += other.sequence;
        self.pending += other.pending;
        self.is_updating |= other.is_updating;
        self.signatures = other.signatures;
    }

    /// The answer of the route `_info`.
    ///
    /// # Errors
    /// 500 if it can't be written.
    pub(super) fn response(&self, name: &str, design: &Value) -> Result<HttpResponse> {
        let pending = self.pending;
        let language = design.get("language").and_then(Value::as_str).unwrap_or("javascript");
        HttpResponse::ok(&json!({"name": name, "view_index": {
            "updates_pending": {"minimum": pending, "preferred": pending, "total": pending},
            "waiting_commit": false,
            "waiting_clients": 0,
            "updater_running": self.is_updating,
            "update_seq": self.sequence,
            "sizes": {"file": 0, "external": 0, "active": 0},
            "rows": self.rows,
            "signature": &blake3::hash(self.signatures.as_bytes()).to_hex()[..32],
            "purge_seq": 0,
            "language": language,
            "compact_running": false,
            "collator_versions": [],
        }}))
    }
}

/// `GET /{db}/_design/{ddoc}/_info`
pub(crate) async fn info(mut call: Call) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    let scripts = call.state.scripts.clone();
    let name = call.parameter("ddoc")?.to_owned();
    blocking(move || {
        let snapshot = databases.of(&format!("_design/{name}")).database().snapshot()?;
        let design = design::open(&snapshot, &name)?.value()?;
        let mut state = ViewsState::default();
        databases.shards().iter().try_for_each(|served| state.add(served, &scripts, &design))?;
        state.response(&name, &design)
    })
    .await
}

/// `POST /{db}/_view_cleanup`
pub(crate) async fn cleanup(mut call: Call) -> Result<HttpResponse> {
    let databases = call.open_databases().await?;
    blocking(move || {
        // A view of one shard's design document has rows in all shards.
        let mut declared = Vec::new();
        for served in databases.shards() {
            let designs = design::all(&served.database().snapshot()?)?;
            declared.extend(declared_views(served, &designs)?.into_iter().map(|view| view.signature));
        }
        for served in databases.shards() {
            for name in served.database().views().names()? {
                let signature = name.strip_prefix(PROGRAM_PREFIX);
                if signature.is_some_and(|signature| !declared.iter().any(|declared| declared == signature)) {
                    served.database().views().remove(&name)?;
                }
            }
        }
        if let Some(served) = databases.only() {
            crate::mango::sync_indexes(served)?;
        }
        Ok(HttpResponse::done(StatusCode::ACCEPTED))
    })
    .await
}
