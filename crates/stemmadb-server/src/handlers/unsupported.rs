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
        "Revisions can't be purged: the database has no documents without revisions. Delete the document and compact.",
    )
}

/// Synchronization and splitting of shards in a cluster.
pub(crate) async fn shards(_call: Call) -> Result<HttpResponse> {
    not_implemented("There is no cluster: virtual databases move their shards by `POST /{db}/_shards`.")
}

/// Full-text search.
pub(crate) async fn search(_call: Call) -> Result<HttpResponse> {
    not_implemented("Full-text search is not supported yet; $regex and $beginsWith use the index.")
}

/// Setting up a cluster.
pub(crate) async fn cluster(_call: Call) -> Result<HttpResponse> {
    not_implemented("The server is a single node; there is no cluster to set up.")
}

/// Views without a design document.
pub(crate) async fn temp_view(_call: Call) -> Result<HttpResponse> {
    Err(Failure::new(StatusCode::GONE, "gone", "Temporary views are not supported in CouchDB"))
}
