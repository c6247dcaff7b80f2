//! The table of all routes: method, path, who may use it, what answers it, what it does.
//!
//! Nothing else reaches a handler, so what is checked for every row here holds for every request.

use std::sync::OnceLock;

use hyper::Method;

use super::Route;
use crate::auth::Access;
use crate::handlers::{database, server};

/// A row.
macro_rules! route {
    ($method:ident $path:literal $access:ident $handler:path, $about:literal) => {
        Route {
            method: Method::$method,
            path: $path,
            access: Access::$access,
            handler: |call| Box::pin($handler(call)),
            about: $about,
        }
    };
}

/// All routes.
pub(super) fn routes() -> &'static [Route] {
    static ROUTES: OnceLock<Vec<Route>> = OnceLock::new();
    ROUTES.get_or_init(|| [server_routes(), database_routes()].into_iter().flatten().collect())
}

fn server_routes() -> Vec<Route> {
    vec![
        route!(GET "/" Anonymous server::welcome, "Who the server is, and which version."),
        route!(GET "/_up" Anonymous server::up, "Whether the server can answer."),
        route!(GET "/_uuids" Anonymous server::uuids, "Fresh random ids."),
        route!(GET "/_all_dbs" ServerAdmin server::all_dbs, "The names of the databases, in order."),
    ]
}

fn database_routes() -> Vec<Route> {
    vec![
        route!(GET "/{db}" Member database::info, "Counts and sizes of a database."),
        route!(PUT "/{db}" ServerAdmin database::create, "Makes a database."),
        route!(DELETE "/{db}" ServerAdmin database::delete, "Deletes a database and everything in it."),
        route!(GET "/{db}/_security" Member database::security, "Who may use a database."),
        route!(PUT "/{db}/_security" DatabaseAdmin database::set_security, "Says who may use a database."),
    ]
}
