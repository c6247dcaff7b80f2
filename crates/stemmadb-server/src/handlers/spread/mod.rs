//! Requests to virtual databases with shards on other servers.
//!
//! A request about one document goes to its shard: to the route's handler if the shard is here, else to its server.
//! Requests about several documents are divided, and those about all documents are sent to all shards; the answers are
//! put together. What the library answers from all shards (`_find`, `_aggregate`, `_changes`) has no code here.
//!
//! Each request keeps documents in their shards until it ends.

mod divided;
mod explain;
mod forward;
mod listing;
mod partition;
mod shard_call;
mod single;
mod update_where;
mod view;
mod whole;

use crate::app::{Call, Handler};
use crate::error::Result;
use crate::http::HttpResponse;
use crate::virtual_databases::Shard;
pub(super) use forward::forward_body;
pub(super) use single::{read_document, write_document};

/// Answers a request about a document.
pub(crate) async fn answer_for_document(call: Call, handler: Handler, id: &str) -> Result<HttpResponse> {
    match call.entered()?.shard_of(id) {
        Shard::Here(_) => handler(call).await,
        Shard::There(remote) => forward::forward(call, &remote, id).await,
    }
}

/// The rows of a view, wherever the shards are.
pub(super) async fn view_rows(call: Call) -> Result<HttpResponse> {
    match call.entered()?.is_spread() {
        true => view::get(call).await,
        false => super::view::get(call).await,
    }
}

/// The rows of all documents, wherever the shards are.
pub(super) async fn document_rows(call: Call) -> Result<HttpResponse> {
    match call.entered()?.is_spread() {
        true => listing::all_docs(call, false).await,
        false => super::listing::all_docs(call).await,
    }
}

/// Answers a request about several documents, or about the database.
pub(crate) async fn answer(call: Call, handler: Handler) -> Result<HttpResponse> {
    if call.route.path.starts_with("/{db}/_partition/") {
        return partition::answer(call, handler).await;
    }
    match (call.route.method.as_str(), call.route.path) {
        ("POST", "/{db}") => divided::post(call, handler).await,
        ("GET", "/{db}") => whole::info(call).await,
        (_, "/{db}/_bulk_docs") => divided::bulk_docs(call, handler).await,
        (_, "/{db}/_bulk_get") => divided::bulk_get(call, handler).await,
        (_, "/{db}/_revs_diff") => divided::revisions(call, handler, None).await,
        (_, "/{db}/_missing_revs") => divided::revisions(call, handler, Some("missing_revs")).await,
        (_, "/{db}/_all_docs") => listing::all_docs(call, false).await,
        (_, "/{db}/_design_docs") => listing::all_docs(call, true).await,
        (_, "/{db}/_all_docs/queries") => listing::queries(call, false).await,
        (_, "/{db}/_design_docs/queries") => listing::queries(call, true).await,
        (_, "/{db}/_update_where") => update_where::update_where(call, handler).await,
        (_, "/{db}/_ensure_full_commit") => whole::ensure_full_commit(call, handler).await,
        (_, "/{db}/_explain") => explain::explain(call, handler).await,
        ("PUT", "/{db}/_retention") => whole::set_everywhere(call, handler).await,
        ("COPY", _) => single::copy(call, handler).await,
        (_, "/{db}/_compact" | "/{db}/_view_cleanup") => whole::everywhere(call, handler).await,
        (_, "/{db}/_design/{ddoc}/_view/{view}") => view::get(call).await,
        (_, "/{db}/_design/{ddoc}/_view/{view}/queries") => view::queries(call).await,
        (_, "/{db}/_design/{ddoc}/_info") => view::info(call).await,
        _ => handler(call).await,
    }
}
