//! Rights: each operation needs those of the HTTP route that does the same.

use std::sync::OnceLock;

use hyper::Method;

use super::failure::Result;
use super::server::WireServer;
use crate::accounts::Identity;
use crate::auth::{Access, Restriction, Route};
use crate::error::Failure;
use crate::http::Parameters;
use crate::routes::route_named;

macro_rules! routes {
    ($($name:ident $method:literal $path:literal,)+) => {
        /// The HTTP routes whose rights operations need.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum RightsOf {
            $(#[doc = concat!($method, " ", $path)] $name,)+
        }

        impl RightsOf {
            #[cfg(test)]
            const ALL: &[RightsOf] = &[$(RightsOf::$name,)+];

            /// The route; none if there is no such route, which is a fault.
            pub(super) fn route(self) -> Option<&'static Route> {
                match self {
                    $(RightsOf::$name => {
                        static ROUTE: OnceLock<Option<&'static Route>> = OnceLock::new();
                        *ROUTE.get_or_init(|| route_named($method, $path))
                    })+
                }
            }
        }
    };
}

routes! {
    AllDatabases "GET" "/_all_dbs",
    CreateDatabase "PUT" "/{db}",
    DeleteDatabase "DELETE" "/{db}",
    Info "GET" "/{db}",
    GetDocument "GET" "/{db}/{doc}",
    PutDocument "PUT" "/{db}/{doc}",
    PatchDocument "PATCH" "/{db}/{doc}",
    DeleteDocument "DELETE" "/{db}/{doc}",
    GetDesign "GET" "/{db}/_design/{ddoc}",
    PutDesign "PUT" "/{db}/_design/{ddoc}",
    DeleteDesign "DELETE" "/{db}/_design/{ddoc}",
    GetLocal "GET" "/{db}/_local/{local*}",
    BulkGet "POST" "/{db}/_bulk_get",
    BulkDocs "POST" "/{db}/_bulk_docs",
    Transact "POST" "/{db}/_transact",
    CallFunction "POST" "/{db}/_function/{function}",
    Publish "POST" "/{db}/_publish/{topic*}",
    SubscribeTopic "GET" "/{db}/_subscribe",
    UpdateWhere "POST" "/{db}/_update_where",
    GetFile "GET" "/{db}/{doc}/{file*}",
    PutFile "PUT" "/{db}/{doc}/{file*}",
    DeleteFile "DELETE" "/{db}/{doc}/{file*}",
    View "GET" "/{db}/_design/{ddoc}/_view/{view}",
    ListIndexes "GET" "/{db}/_index",
    CreateIndex "POST" "/{db}/_index",
    History "GET" "/{db}/_history/{doc}",
    PutRetention "PUT" "/{db}/_retention",
    Flush "POST" "/{db}/_ensure_full_commit",
    Find "POST" "/{db}/_find",
    Explain "POST" "/{db}/_explain",
    Aggregate "POST" "/{db}/_aggregate",
    Changes "GET" "/{db}/_changes",
    Watch "POST" "/{db}/_watch",
    ListKeys "GET" "/{db}/_keys/{namespace}",
    GetKey "GET" "/{db}/_keys/{namespace}/{key*}",
    PutKey "PUT" "/{db}/_keys/{namespace}/{key*}",
    DeleteKey "DELETE" "/{db}/_keys/{namespace}/{key*}",
    IncrementKey "POST" "/{db}/_keys/{namespace}/{key*}",
}

impl RightsOf {
    /// The route that reads the document `id`.
    pub(super) fn get(id: &str) -> RightsOf {
        match id {
            id if id.starts_with("_design/") => RightsOf::GetDesign,
            id if id.starts_with("_local/") => RightsOf::GetLocal,
            _ => RightsOf::GetDocument,
        }
    }
}

/// Checks that an identity may use a route, on a database and a document. Returns the restriction that the operation
/// has to apply.
pub(super) fn check(
    server: &WireServer,
    identity: &Identity,
    rights: RightsOf,
    database: &str,
    document: Option<&str>,
) -> Result<Option<Restriction>> {
    let state = &server.state;
    let route = rights.route().ok_or_else(|| Failure::internal(format!("there is no route {rights:?}")))?;
    let mut parameters = Parameters::default();
    if !database.is_empty() {
        parameters.push("db", database.to_owned());
    }
    for (prefix, name) in [("_design/", "ddoc"), ("_local/", "local"), ("", "doc")] {
        if let Some(id) = document.and_then(|id| id.strip_prefix(prefix)) {
            parameters.push(name, id.to_owned());
            break;
        }
    }
    if let Some(scope) = &identity.scope {
        scope.allow(&route.method, route.path, parameters.get("db"), route.access == Access::Anonymous)?;
    }
    debug_assert!(route.method != Method::HEAD);
    let authorized = state.authenticator.authorize(&state.directory, route, &parameters, &identity.user);
    Ok(server.wait(authorized)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_the_rights_of_a_route() {
        for rights in RightsOf::ALL {
            assert!(rights.route().is_some(), "{rights:?}");
        }
    }
}
