//! Routes of CouchDB that are not here, each with the reason: 501, so that nobody takes them for a document.

use hyper::StatusCode;

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::Answer;

fn refuse(reason: &'static str) -> Result<Answer> {
    Err(Failure::not_implemented(reason))
}

/// Purging.
pub(crate) async fn purge(_call: Call) -> Result<Answer> {
    refuse(
        "Revisions can't be purged: what replicas agree on can't be taken back. Delete the document; its old bodies are gone.",
    )
}

/// Shards and their synchronization.
pub(crate) async fn shards(_call: Call) -> Result<Answer> {
    refuse("A database here is one file tree on one node: it has no shards.")
}

/// Partitioned databases.
pub(crate) async fn partition(_call: Call) -> Result<Answer> {
    refuse("Databases are not partitioned: every field is indexed, so a range of ids or a selector does as well.")
}

/// Full-text search.
pub(crate) async fn search(_call: Call) -> Result<Answer> {
    refuse("There is no full-text index yet: $regex and $beginsWith are answered from the index.")
}

/// Setting up a cluster.
pub(crate) async fn cluster(_call: Call) -> Result<Answer> {
    refuse("The server is one node; there is no cluster to set up.")
}

/// Shows, lists and rewrites.
pub(crate) async fn rendering(_call: Call) -> Result<Answer> {
    refuse("Shows, lists and rewrites are deprecated in CouchDB 3 and gone in 4: render in a program of your own.")
}

/// Views without a design document.
pub(crate) async fn temp_view(_call: Call) -> Result<Answer> {
    Err(Failure::new(StatusCode::GONE, "gone", "Temporary views are not supported in CouchDB"))
}
