//! The table of all routes: method, path, who may use it, what answers it, what it does.
//!
//! Nothing else reaches a handler, so what is checked for every row here holds for every request.

use std::sync::OnceLock;

use hyper::Method;

use super::Route;
use crate::auth::Access;
use crate::handlers::{
    attachment, bulk, changes, database, document, listing, mango, refused, replicate, server, session, update,
    updates, view,
};

/// A row.
macro_rules! route {
    ($method:ident $path:literal $access:ident $handler:path, $about:literal) => {
        Route {
            method: method(stringify!($method)),
            path: $path,
            access: Access::$access,
            handler: |call| Box::pin($handler(call)),
            about: $about,
        }
    };
}

/// The method of this name; hyper has no constant for `COPY`.
fn method(name: &str) -> Method {
    Method::from_bytes(name.as_bytes()).unwrap_or(Method::GET)
}

/// All routes.
pub(super) fn routes() -> &'static [Route] {
    static ROUTES: OnceLock<Vec<Route>> = OnceLock::new();
    ROUTES.get_or_init(|| {
        [
            server_routes(),
            replicator_routes(),
            database_routes(),
            bulk_routes(),
            mango_routes(),
            document_routes(),
            refused_routes(),
            design_routes(),
        ]
        .into_iter()
        .flatten()
        .collect()
    })
}

fn server_routes() -> Vec<Route> {
    vec![
        route!(GET "/" Anonymous server::welcome, "Who the server is, and which version."),
        route!(GET "/_up" Anonymous server::up, "Whether the server can answer."),
        route!(GET "/_uuids" Anonymous server::uuids, "Fresh random ids."),
        route!(GET "/_session" Anonymous session::get, "Who makes the request, and how that is known."),
        route!(POST "/_session" Anonymous session::post, "Begins a session."),
        route!(DELETE "/_session" Anonymous session::delete, "Ends a session."),
        route!(GET "/_all_dbs" ServerAdmin server::all_dbs, "The names of the databases, in order."),
        route!(GET "/_dbs_info" ServerAdmin server::dbs_info, "Counts and sizes of all databases."),
        route!(POST "/_dbs_info" ServerAdmin server::dbs_info, "Counts and sizes of the databases named."),
        route!(GET "/_db_updates" ServerAdmin updates::updates, "What happens to databases, now or as it comes."),
        route!(GET "/_active_tasks" ServerAdmin server::active_tasks, "What the server does in the background."),
        route!(GET "/_membership" ServerAdmin server::membership, "The nodes of the server: one."),
    ]
}

fn replicator_routes() -> Vec<Route> {
    vec![
        route!(POST "/_replicate" ServerAdmin replicate::replicate, "Replicates once, or begins to."),
        route!(GET "/_scheduler/jobs" ServerAdmin replicate::jobs, "The replications that go on."),
        route!(GET "/_scheduler/jobs/{job}" ServerAdmin replicate::job, "One of the replications that go on."),
        route!(GET "/_scheduler/docs" ServerAdmin replicate::documents, "What became of the documents of `_replicator`."),
        route!(GET "/_scheduler/docs/{replicator}" ServerAdmin replicate::documents, "What became of the documents of `_replicator`."),
        route!(GET "/_scheduler/docs/{replicator}/{id}" ServerAdmin replicate::document, "What became of one document of `_replicator`."),
    ]
}

fn database_routes() -> Vec<Route> {
    vec![
        route!(GET "/{db}" Member database::info, "Counts and sizes of a database."),
        route!(PUT "/{db}" ServerAdmin database::create, "Makes a database."),
        route!(DELETE "/{db}" ServerAdmin database::delete, "Deletes a database and everything in it."),
        route!(GET "/{db}/_security" Member database::security, "Who may use a database."),
        route!(PUT "/{db}/_security" DatabaseAdmin database::set_security, "Says who may use a database."),
        route!(POST "/{db}" Member document::post, "Writes a document, with an id made up if it has none."),
        route!(POST "/{db}/_ensure_full_commit" Member database::ensure_full_commit, "Nothing: what was acknowledged is as durable as the server says."),
        route!(POST "/{db}/_compact" DatabaseAdmin database::compact, "Gives back space now; it is given back anyway."),
        route!(POST "/{db}/_compact/{ddoc}" DatabaseAdmin database::compact_views, "Nothing: views are compacted by themselves."),
        route!(POST "/{db}/_view_cleanup" DatabaseAdmin view::cleanup, "Removes the rows of views that no design document tells any more."),
        route!(GET "/{db}/_revs_limit" Member database::revs_limit, "How many revisions of a line of descent are remembered."),
        route!(PUT "/{db}/_revs_limit" DatabaseAdmin database::set_revs_limit, "Sets how many revisions are remembered."),
    ]
}

fn bulk_routes() -> Vec<Route> {
    vec![
        route!(POST "/{db}/_bulk_docs" Member bulk::bulk_docs, "Writes documents, each on its own merits."),
        route!(POST "/{db}/_bulk_get" Member bulk::bulk_get, "Reads documents and revisions, in the order asked."),
        route!(POST "/{db}/_revs_diff" Member bulk::revs_diff, "Which revisions are not known here."),
        route!(POST "/{db}/_missing_revs" Member bulk::missing_revs, "Which revisions are not known here, in an older form."),
        route!(GET "/{db}/_all_docs" Member listing::all_docs, "Documents in the order of their ids."),
        route!(POST "/{db}/_all_docs" Member listing::all_docs, "Documents in the order of their ids, or of the keys sent."),
        route!(GET "/{db}/_changes" Member changes::changes, "What changed since a sequence, now or as it comes."),
        route!(POST "/{db}/_changes" Member changes::changes, "What changed since a sequence, filtered by ids or a selector."),
        route!(POST "/{db}/_all_docs/queries" Member listing::queries, "Several listings at once."),
        route!(GET "/{db}/_design_docs" Member listing::design_docs, "Design documents in the order of their ids."),
        route!(POST "/{db}/_design_docs" Member listing::design_docs, "Design documents, or those of the keys sent."),
        route!(GET "/{db}/_local_docs" Member listing::local_docs, "The documents that are not replicated."),
    ]
}

fn mango_routes() -> Vec<Route> {
    vec![
        route!(POST "/{db}/_find" Member mango::find, "Documents that match a selector."),
        route!(POST "/{db}/_explain" Member mango::explain, "How a query is answered."),
        route!(GET "/{db}/_index" Member mango::list, "The indexes that were declared."),
        route!(POST "/{db}/_index" DatabaseAdmin mango::create, "Declares an index."),
        route!(POST "/{db}/_index/_bulk_delete" DatabaseAdmin mango::bulk_delete, "Takes indexes away."),
        route!(DELETE "/{db}/_index/{ddoc}/json/{name}" DatabaseAdmin mango::delete, "Takes an index away."),
        route!(DELETE "/{db}/_index/_design/{ddoc}/json/{name}" DatabaseAdmin mango::delete, "Takes an index away."),
    ]
}

fn design_routes() -> Vec<Route> {
    vec![
        route!(GET "/{db}/_design/{ddoc}/_info" Member view::info, "What is known of a design document's views."),
        route!(GET "/{db}/_design/{ddoc}/_view/{view}" Member view::get, "The rows of a view, or what they come to."),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}" Member view::get, "The rows of a view, or what they come to."),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}/queries" Member view::queries, "Several questions to a view at once."),
        route!(POST "/{db}/_design/{ddoc}/_update/{function}" Member update::update, "A function writes a document with a new id, and answers."),
        route!(PUT "/{db}/_design/{ddoc}/_update/{function}/{doc}" Member update::update, "A function writes a document, and answers."),
    ]
}

fn document_routes() -> Vec<Route> {
    vec![
        route!(GET "/{db}/{doc}" Member document::get, "Reads a document."),
        route!(PUT "/{db}/{doc}" Member document::put, "Writes a document."),
        route!(DELETE "/{db}/{doc}" Member document::delete, "Deletes a document."),
        route!(COPY "/{db}/{doc}" Member document::copy, "Copies a document."),
        route!(GET "/{db}/_design/{ddoc}" Member document::get, "Reads a design document."),
        route!(PUT "/{db}/_design/{ddoc}" DatabaseAdmin document::put, "Writes a design document."),
        route!(DELETE "/{db}/_design/{ddoc}" DatabaseAdmin document::delete, "Deletes a design document."),
        route!(COPY "/{db}/_design/{ddoc}" Member document::copy, "Copies a design document."),
        route!(GET "/{db}/_local/{local*}" Member document::get_local, "Reads a document that is not replicated."),
        route!(PUT "/{db}/_local/{local*}" Member document::put, "Writes a document that is not replicated."),
        route!(DELETE "/{db}/_local/{local*}" Member document::delete_local, "Deletes a document that is not replicated."),
        route!(GET "/{db}/{doc}/{file*}" Member attachment::get, "Reads a file of a document, or a range of it."),
        route!(PUT "/{db}/{doc}/{file*}" Member attachment::put, "Gives a document a file."),
        route!(DELETE "/{db}/{doc}/{file*}" Member attachment::delete, "Takes a file away from a document."),
        route!(GET "/{db}/_design/{ddoc}/{file*}" Member attachment::get, "Reads a file of a design document."),
        route!(PUT "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::put, "Gives a design document a file."),
        route!(DELETE "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::delete, "Takes a file away from a design document."),
    ]
}

/// Routes of CouchDB that are not here: refused by name, so that nobody takes them for a document.
fn refused_routes() -> Vec<Route> {
    vec![
        route!(POST "/{db}/_purge" DatabaseAdmin refused::purge, "Refused: revisions are not purged."),
        route!(GET "/{db}/_purged_infos" Member refused::purge, "Refused: revisions are not purged."),
        route!(GET "/{db}/_purged_infos_limit" Member refused::purge, "Refused: revisions are not purged."),
        route!(PUT "/{db}/_purged_infos_limit" DatabaseAdmin refused::purge, "Refused: revisions are not purged."),
        route!(GET "/{db}/_shards" Member refused::shards, "Refused: there are no shards."),
        route!(GET "/{db}/_shards/{doc}" Member refused::shards, "Refused: there are no shards."),
        route!(POST "/{db}/_sync_shards" DatabaseAdmin refused::shards, "Refused: there are no shards."),
        route!(GET "/_reshard/{rest*}" ServerAdmin refused::shards, "Refused: there are no shards."),
        route!(GET "/{db}/_partition/{rest*}" Member refused::partition, "Refused: databases are not partitioned."),
        route!(POST "/{db}/_partition/{rest*}" Member refused::partition, "Refused: databases are not partitioned."),
        route!(GET "/{db}/_design/{ddoc}/_search/{index}" Member refused::search, "Refused: no full-text index yet."),
        route!(POST "/{db}/_design/{ddoc}/_search/{index}" Member refused::search, "Refused: no full-text index yet."),
        route!(GET "/{db}/_design/{ddoc}/_nouveau/{index}" Member refused::search, "Refused: no full-text index yet."),
        route!(POST "/{db}/_design/{ddoc}/_nouveau/{index}" Member refused::search, "Refused: no full-text index yet."),
        route!(POST "/_search_analyze" ServerAdmin refused::search, "Refused: no full-text index yet."),
        route!(POST "/_nouveau_analyze" ServerAdmin refused::search, "Refused: no full-text index yet."),
        route!(GET "/_cluster_setup" ServerAdmin refused::cluster, "Refused: the server is one node."),
        route!(POST "/_cluster_setup" ServerAdmin refused::cluster, "Refused: the server is one node."),
        route!(GET "/{db}/_design/{ddoc}/_show/{rest*}" Member refused::rendering, "Refused: shows are deprecated."),
        route!(POST "/{db}/_design/{ddoc}/_show/{rest*}" Member refused::rendering, "Refused: shows are deprecated."),
        route!(GET "/{db}/_design/{ddoc}/_list/{rest*}" Member refused::rendering, "Refused: lists are deprecated."),
        route!(POST "/{db}/_design/{ddoc}/_list/{rest*}" Member refused::rendering, "Refused: lists are deprecated."),
        route!(GET "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member refused::rendering, "Refused: rewrites are deprecated."),
        route!(POST "/{db}/_temp_view" Member refused::temp_view, "Gone, as in CouchDB 3."),
    ]
}
