//! The routes that virtual databases have, and the part of a virtual database that each is about.

use std::time::{SystemTime, UNIX_EPOCH};

use stemmadb::past::At;

use crate::app::parse_as_of;
use crate::auth::Route;
use crate::error::{Failure, Result};
use crate::http::Query;

/// The part of a virtual database that a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VirtualUse {
    /// The handler finds the shards itself.
    Shards,
    /// The request is divided by `handlers::spread`, wherever the shards are.
    Divided,
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
        ("PUT" | "DELETE", "/{db}") | ("POST", "/{db}/_restore" | "/{db}/_backup") => VirtualUse::Whole,
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
            | "/{db}/_prepare"
            | "/{db}/_prepared/{handle}"
            | "/{db}/_index"
            | "/{db}/_index/_bulk_delete"
            | "/{db}/_index/{ddoc}/json/{name}"
            | "/{db}/_index/_design/{ddoc}/json/{name}"
            | "/{db}/_aggregate"
            | "/{db}/_ensure_full_commit"
            | "/{db}/_compact"
            | "/{db}/_view_cleanup"
            | "/{db}/_design/{ddoc}/_show/{function}"
            | "/{db}/_design/{ddoc}/_show/{function}/{doc*}"
            | "/{db}/_design/{ddoc}/_update/{function}"
            | "/{db}/_design/{ddoc}/_update/{function}/{doc*}"
            | "/{db}/_design/{ddoc}/_list/{function}/{view}"
            | "/{db}/_design/{ddoc}/_list/{function}/{other}/{view}"
            | "/{db}/_design/{ddoc}/_rewrite"
            | "/{db}/_design/{ddoc}/_rewrite/{rest*}"
            | "/{db}/_design/{ddoc}/_info"
            | "/{db}/_design/{ddoc}/_view/{view}"
            | "/{db}/_design/{ddoc}/_view/{view}/queries",
        )
        | ("GET" | "POST" | "DELETE", "/{db}/_shards")
        | ("GET", "/{db}/_shards/{doc}") => VirtualUse::Shards,
        (
            _,
            "/{db}/_partition/{partition}"
            | "/{db}/_partition/{partition}/_all_docs"
            | "/{db}/_partition/{partition}/_find"
            | "/{db}/_partition/{partition}/_explain"
            | "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}"
            | "/{db}/_partition/{partition}/{rest*}",
        ) => VirtualUse::Divided,
        ("COPY", "/{db}/{doc}" | "/{db}/_design/{ddoc}")
        | (_, "/{db}/_explain")
        | ("PUT", "/{db}/_retention")
        | ("POST", "/{db}/_update_where") => VirtualUse::Divided,
        (
            "GET" | "PUT" | "DELETE" | "PATCH",
            "/{db}/{doc}" | "/{db}/_design/{ddoc}" | "/{db}/{doc}/{file*}" | "/{db}/_design/{ddoc}/{file*}",
        )
        | ("GET", "/{db}/_history/{doc}")
        | ("POST", "/{db}/_compact/{ddoc}") => VirtualUse::Document,
        ("GET" | "PUT" | "DELETE" | "COPY", "/{db}/_local/{local*}")
        | (_, "/{db}/_local_docs" | "/{db}/_local_docs/queries" | "/{db}/_security")
        | ("GET", "/{db}/_revs_limit" | "/{db}/_subscribe")
        | ("POST", "/{db}/_publish/{topic*}")
        | (_, "/{db}/_keys/{namespace}" | "/{db}/_keys/{namespace}/{key*}") => VirtualUse::Own,
        _ => VirtualUse::Unsupported,
    }
}

/// A point in the past as all shards understand it.
///
/// # Errors
/// 400 for a sequence, which shards don't have in common.
pub(crate) fn time_of_all_shards(at: At) -> Result<SystemTime> {
    match at {
        At::Time(time) => Ok(time),
        At::Ago(ago) => Ok(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH)),
        _ => Err(Failure::bad_request("The shards of a virtual database have no common sequence: name a time.")),
    }
}

/// The parameter `as_of` of a request, as all shards understand it: a time.
///
/// # Errors
/// 400 for a sequence, which shards don't have in common; 501 if the route reads no past of several shards.
pub(crate) fn as_of_all_shards(route: &Route, query: &Query) -> Result<Option<SystemTime>> {
    let Some(at) = parse_as_of(query)? else { return Ok(None) };
    let time = time_of_all_shards(at)?;
    let reads_past = matches!(
        (route.method.as_str(), route.path),
        ("GET", "/{db}/{doc}" | "/{db}/{doc}/{file*}")
            | (
                _,
                "/{db}/_all_docs"
                    | "/{db}/_find"
                    | "/{db}/_explain"
                    | "/{db}/_aggregate"
                    | "/{db}/_design/{ddoc}/_view/{view}"
                    | "/{db}/_design/{ddoc}/_view/{view}/queries"
            )
    );
    match reads_past {
        true => Ok(Some(time)),
        false => Err(Failure::not_implemented(format!(
            "{} {} of a virtual database can't be read as of the past: read documents, attachments, `_all_docs`, \
             `_find`, `_aggregate` or views.",
            route.method, route.path
        ))),
    }
}
