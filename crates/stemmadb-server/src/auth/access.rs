//! Access levels, and the part of a route that authorization needs.

use hyper::Method;
use serde::Serialize;

/// The access level that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Everyone, including anonymous requests.
    Anonymous,
    /// Every authenticated user.
    User,
    /// Members of the database, which is everyone if no members are named, and its administrators.
    Member,
    /// Administrators of the database, and of the server.
    DatabaseAdmin,
    /// Users with the role `_metrics`, and administrators of the server.
    Metrics,
    /// Administrators of the server.
    ServerAdmin,
}

/// A route for authorization: a row of the route table without its handler.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path: `{name}` is any one segment, `{name*}` at the end is the rest.
    pub(crate) path: &'static str,
    /// The required access level.
    pub(crate) access: Access,
}

/// The last segments of routes that only read, and may read much.
const READING: [&str; 18] = [
    "_aggregate",
    "_all_docs",
    "_bulk_get",
    "_changes",
    "_count",
    "_design_docs",
    "_explain",
    "_explain_analyze",
    "_find",
    "_history",
    "_local_docs",
    "_missing_revs",
    "_paths",
    "_revs_diff",
    "_statistics",
    "queries",
    "{handle}",
    "{view}",
];

impl Route {
    /// Whether a request does nothing but read, perhaps for long, so that it may be cancelled when its client leaves.
    pub(crate) fn only_reads(&self) -> bool {
        self.method != Method::DELETE && self.path.rsplit('/').next().is_some_and(|last| READING.contains(&last))
    }
}
