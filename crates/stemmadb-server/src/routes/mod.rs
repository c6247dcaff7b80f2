//! The table of all routes, the matching of requests to them, and the OpenAPI document made from them.
//!
//! It is above the handlers: what is below knows a route only as [`Route`].

mod matching;
mod openapi;
mod parameters;
mod shape;
mod table;

use std::pin::Pin;

use serde::Serialize;

use crate::app::Call;
use crate::auth::{Access, Route};
use crate::error::Result;
use crate::http::Answer;

pub(crate) use matching::{RouteMatch, find};
pub(crate) use openapi::openapi;
use shape::Shape;

/// What answers a request.
type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;

/// A row of the table: a route, what answers it, and its description.
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) handler: Handler,
    /// What it does, in one sentence.
    about: &'static str,
    /// What it takes and returns.
    shape: Shape,
}

/// A route as it is described to others: to tests, and to the OpenAPI document.
#[derive(Debug, Clone, Serialize)]
pub struct Described {
    /// The method; a `GET` answers `HEAD` too.
    pub method: &'static str,
    /// The path: `{name}` is any one segment, `{name*}` at the end is all the rest.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    /// What it does, in one sentence.
    pub about: &'static str,
}

/// Every route, in the order of the table.
pub fn described() -> Vec<Described> {
    let describe = |endpoint: &'static Endpoint| Described {
        method: match endpoint.route.method.as_str() {
            "GET" => "GET",
            "PUT" => "PUT",
            "POST" => "POST",
            "DELETE" => "DELETE",
            _ => "COPY",
        },
        path: endpoint.route.path,
        access: endpoint.route.access,
        about: endpoint.about,
    };
    table::endpoints().iter().map(describe).collect()
}
