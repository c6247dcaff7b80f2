//! The route table, request matching, and the OpenAPI document generated from the table.
//!
//! This module is the layer above the handlers; lower layers only see [`Route`].

mod matching;
mod openapi;
mod operation;
mod parameters;
mod table;
mod virtual_use;

use serde::Serialize;

use crate::app::{Call, Handler};
use crate::auth::{Access, Route};
use crate::error::{Failure, Result};
use crate::handlers::spread;
use crate::http::{HttpResponse, Query};

use crate::virtual_databases::EnteredVirtual;
pub(crate) use matching::{RouteMatch, find};
pub(crate) use openapi::openapi;
use operation::Operation;
pub(crate) use virtual_use::{VirtualUse, as_of_all_shards, time_of_all_shards, virtual_use};

/// A row of the route table: a route, its handler, and its description.
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) handler: Handler,
    /// A one-sentence description of the route.
    summary: &'static str,
    /// Its parameters, request body and responses.
    operation: Operation,
}

impl Endpoint {
    /// Answers a request. `forwarded` is the document that it is about, if another server has it.
    pub(crate) async fn answer(&self, call: Call, forwarded: Option<String>) -> Result<HttpResponse> {
        // A shard answers for the documents that a user may read, as a database does.
        let is_always_divided = call.restriction.is_some()
            || call.query.text("as_of").is_some()
            || virtual_use(&self.route) == VirtualUse::Divided;
        let is_divided = |entered: &EnteredVirtual| entered.is_spread() || is_always_divided;
        let is_spread = call.part.is_none() && call.virtual_database.as_ref().is_some_and(is_divided);
        // Boxed, because their state would otherwise be part of every request's.
        match forwarded {
            Some(id) => Box::pin(spread::answer_for_document(call, self.handler, &id)).await,
            None if is_spread => Box::pin(spread::answer(call, self.handler)).await,
            None => (self.handler)(call).await,
        }
    }

    /// Whether responses may be feeds, whose chunks are sent at once and uncompressed.
    pub(crate) fn is_streamed(&self) -> bool {
        self.operation.is_streamed
    }

    /// Checks that the request has no parameter that the route does not have, unless it is a route of CouchDB.
    ///
    /// # Errors
    /// 400, naming the first unknown parameter and the known ones.
    pub(crate) fn check_parameters(&self, query: &Query) -> Result<()> {
        if !self.operation.refuses_unknown {
            return Ok(());
        }
        let known = self.operation.parameters.iter().copied().flatten();
        let known: Vec<&str> = known.filter(|known| !known.is_header).map(|known| known.name).collect();
        let Some((unknown, _)) = query.iter().find(|(name, _)| !known.contains(name)) else { return Ok(()) };
        let route = format!("{} {}", self.route.method, self.route.path);
        let unknown: String = unknown.chars().take(NAME_CHARACTERS_MAX).collect();
        Err(Failure::bad_request(match known.is_empty() {
            true => format!("{route} has no parameter `{unknown}`; it has none"),
            false => format!("{route} has no parameter `{unknown}`; it has `{}`", known.join("`, `")),
        }))
    }
}

/// The number of characters of an unknown parameter's name that an error shows.
const NAME_CHARACTERS_MAX: usize = 80;

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
