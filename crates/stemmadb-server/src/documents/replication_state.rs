//! What became of a document of `_replicator`: kept in a `_local` document beside it, with the revision that asked, so that it is not done
//! again at the next start; and shown as CouchDB writes it into the document. Nothing is written into the document itself.

use serde::{Deserialize, Serialize};
use stemmadb::{Document, ReplicationStats, Value};

use super::timestamp::format_rfc3339;
use crate::directory::Served;
use crate::error::Result;

/// The database of replications.
pub(crate) const REPLICATOR_DATABASE: &str = "_replicator";

/// How a replication ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ReplicationState {
    /// The revision of the document that asked.
    pub(crate) revision: String,
    /// `completed` or `failed`.
    pub(crate) state: String,
    /// When, in seconds since 1970.
    pub(crate) time: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// What the job was known by; none if it was no replication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
}

/// What was done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    revisions_checked: u64,
    missing_revisions_found: u64,
    docs_read: u64,
    docs_written: u64,
    doc_write_failures: u64,
}

impl From<&ReplicationStats> for Counts {
    fn from(done: &ReplicationStats) -> Self {
        Counts {
            revisions_checked: done.checked_count,
            missing_revisions_found: done.missing_count,
            docs_read: done.read_count,
            docs_written: done.written_count,
            doc_write_failures: done.failed_count,
        }
    }
}

fn place_of(id: &str) -> String {
    format!("_local/replication/{id}")
}

impl ReplicationState {
    /// What became of the document `id`, whichever of its revisions asked. What can't be read is none.
    pub(crate) fn of(served: &Served, id: &str) -> Result<Option<Self>> {
        let kept = served.database().local_documents().get(&place_of(id))?;
        Ok(kept.and_then(|(_, body)| body.deserialize_into().ok()))
    }

    /// What became of this revision of the document `id`.
    pub(crate) fn of_revision(served: &Served, id: &str, revision: &str) -> Result<Option<Self>> {
        Ok(Self::of(served, id)?.filter(|record| record.revision == revision))
    }

    /// Keeps it. Blocks.
    pub(crate) fn keep(&self, served: &Served, id: &str) -> Result<()> {
        served.database().local_documents().put(&place_of(id), None, &Value::from_serialize(self)?)?;
        Ok(())
    }
}

/// Appends what is shown in a document of `_replicator` of its end, after other members.
pub(super) fn print_state(served: &Served, document: &Document, out: &mut Vec<u8>) -> Result<()> {
    if served.name() != REPLICATOR_DATABASE || document.is_deleted() {
        return Ok(());
    }
    let revision = document.revision().to_string();
    let Some(record) = ReplicationState::of_revision(served, document.id().as_str(), &revision)? else { return Ok(()) };
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
