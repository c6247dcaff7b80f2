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
