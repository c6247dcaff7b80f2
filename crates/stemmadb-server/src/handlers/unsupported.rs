//! CouchDB routes that are not supported: each returns 501 with the reason. Without them, the paths would match
//! document routes.

use hyper::StatusCode;

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::HttpResponse;

fn not_implemented(reason: &'static str) -> Result<HttpResponse> {
    Err(Failure::not_implemented(reason))
}

/// Purging of revisions.
pub(crate) async fn purge(_call: Call) -> Result<HttpResponse> {
    not_implemented(
        "Revisions can't be purged: replicas would restore them. Delete the document; old bodies are not kept.",
    )
}

/// Shards and their synchronization.
pub(crate) async fn shards(_call: Call) -> Result<HttpResponse> {
    not_implemented("A database is stored on one node and has no shards.")
}

/// Partitioned databases.
pub(crate) async fn partition(_call: Call) -> Result<HttpResponse> {
    not_implemented("Databases are not partitioned: every field is indexed, so use a range of ids or a selector.")
}

/// Full-text search.
pub(crate) async fn search(_call: Call) -> Result<HttpResponse> {
    not_implemented("Full-text search is not supported yet; $regex and $beginsWith use the index.")
}

/// Setting up a cluster.
pub(crate) async fn cluster(_call: Call) -> Result<HttpResponse> {
    not_implemented("The server is a single node; there is no cluster to set up.")
}

/// Shows, lists and rewrites.
pub(crate) async fn rendering(_call: Call) -> Result<HttpResponse> {
    not_implemented(
        "Shows, lists and rewrites are deprecated in CouchDB 3 and removed in CouchDB 4: render in the application.",
    )
}

/// Views without a design document.
pub(crate) async fn temp_view(_call: Call) -> Result<HttpResponse> {
    Err(Failure::new(StatusCode::GONE, "gone", "Temporary views are not supported in CouchDB"))
}
