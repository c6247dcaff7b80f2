//! Access levels, and routes as authorization sees them.

use hyper::Method;
use serde::Serialize;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Anybody.
    Anonymous,
    /// Whoever said who they are.
    User,
    /// Members of the database, which are all where none are named; and its administrators.
    Member,
    /// Administrators of the database, and of the server.
    DatabaseAdmin,
    /// Whoever has the role `_metrics`, and administrators of the server.
    Metrics,
    /// Administrators of the server.
    ServerAdmin,
}

/// A route as authorization sees it: a row of the table of routes without its handler.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// The path: `{name}` is any one segment, `{name*}` at the end is the rest.
    pub(crate) path: &'static str,
    /// Who may use it.
    pub(crate) access: Access,
}
