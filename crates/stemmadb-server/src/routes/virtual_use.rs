//! The routes that virtual databases have, and the part of a virtual database that each is about.

use crate::auth::Route;

/// The part of a virtual database that a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VirtualUse {
    /// The handler finds the shards itself.
    Shards,
    /// The document that the path names: the handler gets its shard as if it were the database.
    Document,
    /// What the virtual database stores itself, such as `_local` documents.
    Own,
    /// The database as a whole: the handler does not open it.
    Whole,
    /// Nothing: the answer is 501.
    Unsupported,
}

/// The part of a virtual database that a route is about. Routes are unsupported unless they are named here.
pub(crate) fn virtual_use(route: &Route) -> VirtualUse {
    match (route.method.as_str(), route.path) {
        ("PUT" | "DELETE", "/{db}") => VirtualUse::Whole,
        (_, "/{db}")
        | (
            _,
            "/{db}/_bulk_docs"
            | "/{db}/_bulk_get"
            | "/{db}/_revs_diff"
            | "/{db}/_missing_revs"
            | "/{db}/_all_docs"
            | "/{db}/_all_docs/queries"
            | "/{db}/_design_docs"
            | "/{db}/_design_docs/queries"
            | "/{db}/_changes"
            | "/{db}/_transact"
            | "/{db}/_watch"
            | "/{db}/_find"
            | "/{db}/_aggregate"
            | "/{db}/_ensure_full_commit"
            | "/{db}/_compact"
            | "/{db}/_view_cleanup"
            | "/{db}/_design/{ddoc}/_info"
            | "/{db}/_design/{ddoc}/_view/{view}"
            | "/{db}/_design/{ddoc}/_view/{view}/queries",
        )
        | ("GET" | "POST" | "DELETE", "/{db}/_shards")
        | ("GET", "/{db}/_shards/{doc}") => VirtualUse::Shards,
        (
            "GET" | "PUT" | "DELETE" | "PATCH",
            "/{db}/{doc}" | "/{db}/_design/{ddoc}" | "/{db}/{doc}/{file*}" | "/{db}/_design/{ddoc}/{file*}",
        )
        | ("POST", "/{db}/_compact/{ddoc}") => VirtualUse::Document,
        ("GET" | "PUT" | "DELETE" | "COPY", "/{db}/_local/{local*}")
        | (_, "/{db}/_local_docs" | "/{db}/_local_docs/queries" | "/{db}/_security")
        | ("GET", "/{db}/_revs_limit" | "/{db}/_subscribe")
        | ("POST", "/{db}/_publish/{topic*}")
        | (_, "/{db}/_keys/{namespace}" | "/{db}/_keys/{namespace}/{key*}") => VirtualUse::Own,
        _ => VirtualUse::Unsupported,
    }
}
