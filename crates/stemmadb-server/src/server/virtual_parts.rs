//! Requests for virtual databases: the part that a route is about.

use std::sync::Arc;

use crate::app::ServerState;
use crate::auth::Route;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::Parameters;
use crate::routes::{VirtualUse, virtual_use};
use crate::virtual_databases::{EnteredVirtual, Shard};

/// Opens the database of a request if it is virtual.
///
/// # Errors
/// 501 if virtual databases don't have the route.
pub(super) async fn enter_virtual(
    state: &Arc<ServerState>,
    route: &Route,
    parameters: &Parameters,
) -> Result<Option<EnteredVirtual>> {
    let Some(name) = parameters.get("db").filter(|name| state.directory.is_virtual(name)) else { return Ok(None) };
    let served_for = virtual_use(route);
    if served_for == VirtualUse::Unsupported {
        return Err(Failure::not_implemented(format!(
            "The virtual database `{name}` has no {} {}: replicate it into a database that is not virtual for that.",
            route.method, route.path
        )));
    }
    if served_for == VirtualUse::Whole {
        return Ok(None);
    }
    Box::pin(state.virtual_databases.enter(name)).await.map(Some)
}

/// The document of a virtual database that a route is about, if it is about one.
pub(super) fn document_of(route: &Route, parameters: &Parameters) -> Option<String> {
    match (virtual_use(route), parameters.get("doc"), parameters.get("ddoc")) {
        (VirtualUse::Document, Some(id), _) => Some(id.to_owned()),
        (VirtualUse::Document, None, Some(name)) => Some(format!("_design/{name}")),
        _ => None,
    }
}

/// The part of a virtual database on this server that a route is about; or else the document that it is about, whose
/// shard is on another server.
pub(super) fn part_of(
    entered: &EnteredVirtual,
    route: &Route,
    parameters: &Parameters,
) -> (Option<Arc<ServedDatabase>>, Option<String>) {
    if virtual_use(route) == VirtualUse::Own {
        return (Some(entered.open.own.clone()), None);
    }
    let Some(id) = document_of(route, parameters) else { return (None, None) };
    match entered.shard_of(&id) {
        Shard::Here(served) => (Some(served), None),
        Shard::There(_) => (None, Some(id)),
    }
}
