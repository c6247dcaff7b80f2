//! The final state of replications that documents of `_replicator` requested.
//!
//! The state is stored in a `_local` document, together with the revision that requested the replication, so that a
//! finished replication does not run again after a restart. Reads add it to the document as the `_replication_*` fields
//! that CouchDB would write; the document itself is not modified.

use serde::{Deserialize, Serialize};
use stemmadb::{Document, ReplicationStats, Value};

use super::REPLICATOR_DATABASE;
use super::timestamp::format_rfc3339;
use crate::directory::ServedDatabase;
use crate::error::Result;

/// The final state of a replication.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ReplicationState {
    /// The revision of the document that requested it.
    pub(crate) revision: String,
    /// `completed` or `failed`.
    pub(crate) state: String,
    /// When it ended, in seconds since 1970.
    pub(crate) time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The replication id; `None` if the document was not a valid request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<ReplicationCounts>,
}

/// CouchDB's replication statistics.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ReplicationCounts {
    revisions_checked: u64,
    missing_revisions_found: u64,
    docs_read: u64,
    docs_written: u64,
    doc_write_failures: u64,
}

impl From<&ReplicationStats> for ReplicationCounts {
    fn from(stats: &ReplicationStats) -> Self {
        ReplicationCounts {
            revisions_checked: stats.checked_count,
            missing_revisions_found: stats.missing_count,
            docs_read: stats.read_count,
            docs_written: stats.written_count,
            doc_write_failures: stats.failed_count,
        }
    }
}

/// The id of the local document that stores the state for the document `id`.
fn state_id(id: &str) -> String {
    format!("_local/replication/{id}")
}

impl ReplicationState {
    /// Loads the state for any revision of the document `id`; `None` if there is none or it can't be parsed.
    pub(crate) fn load(served: &ServedDatabase, id: &str) -> Result<Option<Self>> {
        let stored = served.database().local_documents().get(&state_id(id))?;
        Ok(stored.and_then(|(_, body)| body.deserialize_into().ok()))
    }

    /// Loads the state for this revision of the document `id`.
    pub(crate) fn load_for_revision(served: &ServedDatabase, id: &str, revision: &str) -> Result<Option<Self>> {
        Ok(Self::load(served, id)?.filter(|record| record.revision == revision))
    }

    /// Stores the state. Blocks.
    pub(crate) fn save(&self, served: &ServedDatabase, id: &str) -> Result<()> {
        served.database().local_documents().put(&state_id(id), None, &Value::from_serialize(self)?)?;
        Ok(())
    }
}

/// Appends the `_replication_*` fields to a document of `_replicator`; the object must have other fields before.
pub(super) fn print_state(served: &ServedDatabase, document: &Document, out: &mut Vec<u8>) -> Result<()> {
    if served.name() != REPLICATOR_DATABASE || document.is_deleted() {
        return Ok(());
    }
    let revision = document.revision().to_string();
    let Some(record) = ReplicationState::load_for_revision(served, document.id().as_str(), &revision)? else {
        return Ok(());
    };
    let mut member = |name: &str, value: serde_json::Value| {
        out.extend_from_slice(format!(",\"_replication_{name}\":{value}").as_bytes());
    };
    member("state", record.state.into());
    member("state_time", format_rfc3339(record.time).into());
    if let Some(error) = record.error {
        member("state_reason", error.into());
    }
    if let Some(id) = record.id {
        member("id", id.into());
    }
    if let Some(counts) = record.counts {
        member("stats", serde_json::to_value(counts).unwrap_or_default());
    }
    Ok(())
}
