//! The route table, request matching, and the OpenAPI document generated from the table.
//!
//! This module is the layer above the handlers; lower layers only see [`Route`].

mod matching;
mod openapi;
mod operation;
mod parameters;
mod table;

use std::pin::Pin;

use serde::Serialize;

use crate::app::Call;
use crate::auth::{Access, Route};
use crate::error::Result;
use crate::http::HttpResponse;

pub(crate) use matching::{RouteMatch, find};
pub(crate) use openapi::openapi;
use operation::Operation;

/// An asynchronous function that handles a request.
type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Result<HttpResponse>> + Send>>;

/// A row of the route table: a route, its handler, and its description.
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) handler: Handler,
    /// A one-sentence description of the route.
    summary: &'static str,
    /// Its parameters, request body and responses.
    operation: Operation,
}

/// The public description of a route, for tests and tools.
#[derive(Debug, Clone, Serialize)]
pub struct RouteDescription {
    /// The HTTP method. `GET` includes `HEAD`.
    pub method: &'static str,
    /// The path pattern: `{name}` matches one segment; `{name*}` at the end matches the rest of the path.
    pub path: &'static str,
    /// The access that the route requires.
    pub access: Access,
    /// A one-sentence description of the route.
    pub summary: &'static str,
}

/// The route of a row of the table, for other protocols that grant the same rights.
pub(crate) fn route_named(method: &str, path: &str) -> Option<&'static Route> {
    let endpoint = table::endpoints().iter().find(|known| known.route.method == method && known.route.path == path);
    endpoint.map(|endpoint| &endpoint.route)
}

/// Descriptions of all routes, in the order of the route table.
pub fn route_descriptions() -> Vec<RouteDescription> {
    let describe = |endpoint: &'static Endpoint| RouteDescription {
        method: match endpoint.route.method.as_str() {
            "GET" => "GET",
            "PUT" => "PUT",
            "POST" => "POST",
            "DELETE" => "DELETE",
            "PATCH" => "PATCH",
            _ => "COPY",
        },
        path: endpoint.route.path,
        access: endpoint.route.access,
        summary: endpoint.summary,
    };
    table::endpoints().iter().map(describe).collect()
}
