//! The table of all routes: method, path, who may use it, what answers it, what it does, what it takes and gives.
//!
//! Nothing else reaches a handler, so what is checked for every row here holds for every request.

use std::sync::OnceLock;

use hyper::Method;

use super::Endpoint;
use super::parameters::{
    BULK, BYTES, CHANGES, COPY, COUNT, DOCUMENTS, FEED, LATEST, NEXT, OPEN_REVISIONS, PAGE, RANGE, REVISION, ROWS,
    SHOW, TAG, VIEW, WATCH, WRITE,
};
use super::shape::{gives, gives_bytes, gives_events, refuses};
use crate::auth::{Access, Route};
use crate::handlers::{
    aggregate, attachment, bulk, bulk_get, changes, dashboard, database, document, insight, listing, local_docs, mango,
    node, node_config, prepared, refused, replicate, server, session, token, transact, update, updates, view, watch,
};

/// A row.
macro_rules! route {
    ($method:ident $path:literal $access:ident $handler:path, $about:literal, $shape:expr) => {
        Endpoint {
            route: Route { method: method(stringify!($method)), path: $path, access: Access::$access },
            handler: |call| Box::pin($handler(call)),
            about: $about,
            shape: $shape,
        }
    };
}

/// The method of this name; hyper has no constant for `COPY`.
fn method(name: &str) -> Method {
    Method::from_bytes(name.as_bytes()).unwrap_or(Method::GET)
}

/// All routes.
pub(super) fn endpoints() -> &'static [Endpoint] {
    static ENDPOINTS: OnceLock<Vec<Endpoint>> = OnceLock::new();
    ENDPOINTS.get_or_init(|| {
        [
            server_routes(),
            token_routes(),
            node_routes(),
            replicator_routes(),
            database_routes(),
            bulk_routes(),
            mango_routes(),
            stemma_routes(),
            document_routes(),
            refused_routes(),
            design_routes(),
        ]
        .into_iter()
        .flatten()
        .collect()
    })
}

fn server_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/" Anonymous server::welcome, "Who the server is, and which version.", gives("Welcome")),
        route!(GET "/_up" Anonymous server::up, "Whether the server can answer.", gives("Up")),
        route!(GET "/_openapi" Anonymous server::openapi, "This description of every route, as OpenAPI 3.1.", gives("Object")),
        route!(GET "/_utils" Anonymous dashboard::get, "The dashboard.", gives_bytes()),
        route!(GET "/_utils/{file*}" Anonymous dashboard::get, "A file of the dashboard.", gives_bytes()),
        route!(GET "/_uuids" Anonymous server::uuids, "Fresh random ids.",
            gives("Uuids").with(&[COUNT])),
        route!(GET "/_session" Anonymous session::get, "Who makes the request, and how that is known.",
            gives("Session")),
        route!(POST "/_session" Anonymous session::post, "Begins a session.",
            gives("LoggedIn").takes("Credentials").takes_bytes("application/x-www-form-urlencoded").with(&[NEXT])),
        route!(DELETE "/_session" Anonymous session::delete, "Ends a session.", gives("Ok").with(&[NEXT])),
        route!(GET "/_all_dbs" ServerAdmin server::all_dbs, "The names of the databases, in order.",
            gives("Names").with(&[PAGE, RANGE])),
        route!(GET "/_dbs_info" ServerAdmin server::dbs_info, "Counts and sizes of all databases.",
            gives("DatabaseInfos")),
        route!(POST "/_dbs_info" ServerAdmin server::dbs_info, "Counts and sizes of the databases named.",
            gives("DatabaseInfos").takes("Keys")),
        route!(GET "/_db_updates" ServerAdmin updates::updates, "What happens to databases, now or as it comes.",
            gives("DatabaseUpdates").or_gives("text/event-stream").with(&[FEED])),
        route!(GET "/_active_tasks" ServerAdmin server::active_tasks, "What the server does in the background.",
            gives("Objects")),
        route!(GET "/_cluster_setup" ServerAdmin server::cluster_setup, "How the server is set up: as one node.",
            gives("Object")),
        route!(GET "/_membership" ServerAdmin server::membership, "The nodes of the server: one.", gives("Membership")),
    ]
}

fn node_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_metrics" Metrics node::metrics, "What is counted, for Prometheus.", gives_bytes()),
        route!(GET "/_node/{node}" ServerAdmin node::name, "The name of a node.", gives("Object")),
        route!(GET "/_node/{node}/_config" ServerAdmin node_config::all, "Settings, in the sections that CouchDB has.", gives("Object")),
        route!(GET "/_node/{node}/_config/{section}" ServerAdmin node_config::of_section, "The settings of a section.", gives("Object")),
        route!(GET "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::get, "A setting.", gives("Setting")),
        route!(PUT "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::put, "Changes a setting, or makes an administrator; answers what was there before.",
            gives("Setting").takes("Setting")),
        route!(DELETE "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::delete, "Takes back a change of a setting, or an administrator; answers what was there before.",
            gives("Setting")),
        route!(GET "/_node/{node}/_prometheus" Metrics node::prometheus, "What is counted, for Prometheus.", gives_bytes()),
        route!(GET "/_node/{node}/_stats" Metrics node::stats, "What is counted, in CouchDB's form.", gives("Object")),
        route!(GET "/_node/{node}/_stats/{rest*}" Metrics node::stat, "One thing of what is counted.", gives("Object")),
        route!(GET "/_node/{node}/_system" Metrics node::system, "Numbers of the process.", gives("Object")),
        route!(GET "/_node/{node}/_versions" ServerAdmin node::versions, "What the server is made of.", gives("Object")),
        route!(POST "/_node/{node}/_restart" ServerAdmin node::restart, "Refused: what started a server restarts it.", refuses()),
    ]
}

fn token_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_tokens" ServerAdmin token::list, "The API tokens there are, without what they are.", gives("Tokens")),
        route!(POST "/_tokens" ServerAdmin token::create, "Makes an API token, which is told this once.",
            gives("NewToken").takes("WantedToken").status(201)),
        route!(DELETE "/_tokens/{token}" ServerAdmin token::revoke, "Takes an API token back, by its name.", gives("Ok")),
    ]
}

fn replicator_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/_replicate" ServerAdmin replicate::replicate, "Replicates once, or begins to.",
            gives("Object").takes("Replication")),
        route!(GET "/_scheduler/jobs" ServerAdmin replicate::jobs, "The replications that go on.",
            gives("Object").with(&[PAGE])),
        route!(GET "/_scheduler/jobs/{job}" ServerAdmin replicate::job, "One of the replications that go on.",
            gives("Object")),
        route!(GET "/_scheduler/docs" ServerAdmin replicate::documents, "What became of the documents of `_replicator`.",
            gives("Object").with(&[PAGE])),
        route!(GET "/_scheduler/docs/{replicator}" ServerAdmin replicate::documents, "What became of the documents of `_replicator`.",
            gives("Object").with(&[PAGE])),
        route!(GET "/_scheduler/docs/{replicator}/{id}" ServerAdmin replicate::document, "What became of one document of `_replicator`.",
            gives("Object")),
    ]
}

fn database_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}" Member database::info, "Counts and sizes of a database.", gives("DatabaseInfo")),
        route!(PUT "/{db}" ServerAdmin database::create, "Makes a database.", gives("Ok").status(201)),
        route!(DELETE "/{db}" ServerAdmin database::delete, "Deletes a database and everything in it.", gives("Ok")),
        route!(GET "/{db}/_security" Member database::security, "Who may use a database.", gives("Security")),
        route!(PUT "/{db}/_security" DatabaseAdmin database::set_security, "Says who may use a database.",
            gives("Ok").takes("Security")),
        route!(POST "/{db}" Member document::post, "Writes a document, with an id made up if it has none.",
            gives("Written").status(201).takes("Document").with(&[BULK])),
        route!(POST "/{db}/_ensure_full_commit" Member database::ensure_full_commit, "Nothing: what was acknowledged is as durable as the server says.",
            gives("Object").status(201)),
        route!(POST "/{db}/_compact" DatabaseAdmin database::compact, "Gives back space now; it is given back anyway.",
            gives("Ok").status(202).may_take("Object")),
        route!(POST "/{db}/_compact/{ddoc}" DatabaseAdmin database::compact_views, "Nothing: views are compacted by themselves.",
            gives("Ok").status(202).may_take("Object")),
        route!(POST "/{db}/_view_cleanup" DatabaseAdmin view::cleanup, "Removes the rows of views that no design document tells any more.",
            gives("Ok").status(202).may_take("Object")),
        route!(GET "/{db}/_revs_limit" Member database::revs_limit, "How many revisions of a line of descent are remembered.",
            gives("Count")),
        route!(PUT "/{db}/_revs_limit" DatabaseAdmin database::set_revs_limit, "Sets how many revisions are remembered.",
            gives("Ok").takes("Count")),
    ]
}

fn bulk_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_bulk_docs" Member bulk::bulk_docs, "Writes documents, each on its own merits.",
            gives("BulkWritten").status(201).takes("BulkDocs").with(&[BULK])),
        route!(POST "/{db}/_bulk_get" Member bulk_get::bulk_get, "Reads documents and revisions, in the order asked.",
            gives("BulkGot").or_gives("multipart/mixed").takes("BulkGet").with(&[SHOW, LATEST])),
        route!(POST "/{db}/_revs_diff" Member bulk::revs_diff, "Which revisions are not known here.",
            gives("Object").takes("RevisionsById")),
        route!(POST "/{db}/_missing_revs" Member bulk::missing_revs, "Which revisions are not known here, in an older form.",
            gives("Object").takes("RevisionsById")),
        route!(GET "/{db}/_all_docs" Member listing::all_docs, "Documents in the order of their ids.",
            gives("Rows").with(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_all_docs" Member listing::all_docs, "Documents in the order of their ids, or of the keys sent.",
            gives("Rows").may_take("Listing").with(&[PAGE, RANGE, ROWS, SHOW])),
        route!(GET "/{db}/_changes" Member changes::changes, "What changed since a sequence, now or as it comes.",
            gives("Changes").or_gives("text/event-stream").with(&[FEED, CHANGES, SHOW])),
        route!(POST "/{db}/_changes" Member changes::changes, "What changed since a sequence, filtered by ids or a selector.",
            gives("Changes").or_gives("text/event-stream").may_take("ChangesFilter").with(&[FEED, CHANGES, SHOW])),
        route!(POST "/{db}/_all_docs/queries" Member listing::queries, "Several listings at once.",
            gives("Listings").takes("Queries").with(&[SHOW])),
        route!(GET "/{db}/_design_docs" Member listing::design_docs, "Design documents in the order of their ids.",
            gives("Rows").with(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_design_docs" Member listing::design_docs, "Design documents, or those of the keys sent.",
            gives("Rows").may_take("Listing").with(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_design_docs/queries" Member listing::design_queries, "Several listings of design documents at once.",
            gives("Listings").takes("Queries").with(&[SHOW])),
        route!(GET "/{db}/_local_docs" Member local_docs::list, "The documents that are not replicated.",
            gives("Rows").with(&[PAGE, RANGE, DOCUMENTS])),
        route!(POST "/{db}/_local_docs" Member local_docs::list, "The documents that are not replicated, or those of the keys sent.",
            gives("Rows").may_take("Listing").with(&[PAGE, RANGE, DOCUMENTS])),
        route!(POST "/{db}/_local_docs/queries" Member local_docs::queries, "Several listings of such documents at once.",
            gives("Listings").takes("Queries")),
    ]
}

fn mango_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_find" Member mango::find, "Documents that match a selector.", gives("Found").takes("Find")),
        route!(POST "/{db}/_explain" Member mango::explain, "How a query is answered.", gives("Object").takes("Find")),
        route!(GET "/{db}/_index" Member mango::list, "The indexes that were declared.",
            gives("Indexes").with(&[PAGE])),
        route!(POST "/{db}/_index" DatabaseAdmin mango::create, "Declares an index.", gives("Object").takes("Index")),
        route!(POST "/{db}/_index/_bulk_delete" DatabaseAdmin mango::bulk_delete, "Takes indexes away.",
            gives("Object").takes("DocumentIds")),
        route!(DELETE "/{db}/_index/{ddoc}/json/{name}" DatabaseAdmin mango::delete, "Takes an index away.",
            gives("Ok")),
        route!(DELETE "/{db}/_index/_design/{ddoc}/json/{name}" DatabaseAdmin mango::delete, "Takes an index away.",
            gives("Ok")),
    ]
}

/// What CouchDB does not have.
fn stemma_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_transact" Member transact::post, "Writes several documents, all or none, if what was read still holds.",
            gives("Transacted").status(201).takes("Transaction").with(&[BULK])),
        route!(GET "/{db}/_watch" Member watch::follow, "The answer to a query, and what changes in it, as events or over a WebSocket.",
            gives_events().with(&[WATCH])),
        route!(POST "/{db}/_watch" Member watch::follow, "The answer to a query, and what changes in it, as events.",
            gives_events().takes("Watch")),
        route!(POST "/{db}/_aggregate" Member aggregate::post, "Counts, sums, extremes and distinct values of what matches, or of its groups.",
            gives("Aggregated").takes("Aggregate")),
        route!(POST "/{db}/_prepare" Member prepared::prepare, "Checks a query, and keeps it to be asked again.",
            gives("Prepared").status(201).takes("Find")),
        route!(POST "/{db}/_prepared/{handle}" Member prepared::ask, "Documents that match a prepared query.",
            gives("Found").takes("PreparedPage")),
        route!(GET "/{db}/_statistics" Member insight::statistics, "Counts, sizes, and how durable writes are.", gives("Object")),
        route!(GET "/{db}/_paths" Member insight::paths, "The paths that documents have, with what is there.", gives("Paths")),
        route!(GET "/{db}/_history/{doc}" Member insight::history, "The lines of descent of a document.", gives("History")),
        route!(DELETE "/{db}/_prepared/{handle}" Member prepared::forget, "Forgets a prepared query.", gives("Ok")),
    ]
}

fn design_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_design/{ddoc}/_info" Member view::info, "What is known of a design document's views.",
            gives("Object")),
        route!(GET "/{db}/_design/{ddoc}/_view/{view}" Member view::get, "The rows of a view, or what they come to.",
            gives("Rows").with(&[PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}" Member view::get, "The rows of a view, or what they come to.",
            gives("Rows").may_take("Listing").with(&[PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}/queries" Member view::queries, "Several questions to a view at once.",
            gives("Listings").takes("Queries").with(&[SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_update/{function}" Member update::update, "A function writes a document with a new id, and answers.",
            gives_bytes().status(201).takes_bytes("*/*")),
        route!(POST "/{db}/_design/{ddoc}/_update/{function}/{doc}" Member update::update, "A function writes a document, and answers.",
            gives_bytes().status(201).takes_bytes("*/*")),
        route!(PUT "/{db}/_design/{ddoc}/_update/{function}/{doc}" Member update::update, "A function writes a document, and answers.",
            gives_bytes().status(201).takes_bytes("*/*")),
    ]
}

fn document_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/{doc}" Member document::get, "Reads a document.",
            gives("Document").or_gives("multipart/related").with(&[SHOW, REVISION, OPEN_REVISIONS, TAG])),
        route!(PUT "/{db}/{doc}" Member document::put, "Writes a document.",
            gives("Written").status(201).takes("Document").takes_bytes("multipart/related").with(&[WRITE])),
        route!(DELETE "/{db}/{doc}" Member document::delete, "Deletes a document.", gives("Written").with(&[WRITE])),
        route!(COPY "/{db}/{doc}" Member document::copy, "Copies a document.",
            gives("Written").status(201).with(&[COPY, REVISION])),
        route!(GET "/{db}/_design/{ddoc}" Member document::get, "Reads a design document.",
            gives("Document").or_gives("multipart/related").with(&[SHOW, REVISION, OPEN_REVISIONS, TAG])),
        route!(PUT "/{db}/_design/{ddoc}" DatabaseAdmin document::put, "Writes a design document.",
            gives("Written").status(201).takes("Document").takes_bytes("multipart/related").with(&[WRITE])),
        route!(DELETE "/{db}/_design/{ddoc}" DatabaseAdmin document::delete, "Deletes a design document.",
            gives("Written").with(&[WRITE])),
        route!(COPY "/{db}/_design/{ddoc}" Member document::copy, "Copies a design document.",
            gives("Written").status(201).with(&[COPY, REVISION])),
        route!(GET "/{db}/_local/{local*}" Member document::get_local, "Reads a document that is not replicated.",
            gives("Document")),
        route!(PUT "/{db}/_local/{local*}" Member document::put, "Writes a document that is not replicated.",
            gives("Written").status(201).takes("Document")),
        route!(COPY "/{db}/_local/{local*}" Member document::copy_local, "Copies a document that is not replicated.",
            gives("Written").status(201).with(&[COPY])),
        route!(DELETE "/{db}/_local/{local*}" Member document::delete_local, "Deletes a document that is not replicated.",
            gives("Written")),
        route!(GET "/{db}/{doc}/{file*}" Member attachment::get, "Reads a file of a document, or a range of it.",
            gives_bytes().with(&[REVISION, TAG, BYTES])),
        route!(PUT "/{db}/{doc}/{file*}" Member attachment::put, "Gives a document a file.",
            gives("Written").status(201).takes_bytes("*/*").with(&[WRITE])),
        route!(DELETE "/{db}/{doc}/{file*}" Member attachment::delete, "Takes a file away from a document.",
            gives("Written").with(&[WRITE])),
        route!(GET "/{db}/_design/{ddoc}/{file*}" Member attachment::get, "Reads a file of a design document.",
            gives_bytes().with(&[REVISION, TAG, BYTES])),
        route!(PUT "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::put, "Gives a design document a file.",
            gives("Written").status(201).takes_bytes("*/*").with(&[WRITE])),
        route!(DELETE "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::delete, "Takes a file away from a design document.",
            gives("Written").with(&[WRITE])),
    ]
}

/// Routes of CouchDB that are not here: refused by name, so that nobody takes them for a document.
fn refused_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_purge" DatabaseAdmin refused::purge, "Refused: revisions are not purged.", refuses()),
        route!(GET "/{db}/_purged_infos" Member refused::purge, "Refused: revisions are not purged.", refuses()),
        route!(GET "/{db}/_purged_infos_limit" Member refused::purge, "Refused: revisions are not purged.", refuses()),
        route!(PUT "/{db}/_purged_infos_limit" DatabaseAdmin refused::purge, "Refused: revisions are not purged.",
            refuses()),
        route!(GET "/{db}/_shards" Member refused::shards, "Refused: there are no shards.", refuses()),
        route!(GET "/{db}/_shards/{doc}" Member refused::shards, "Refused: there are no shards.", refuses()),
        route!(POST "/{db}/_sync_shards" DatabaseAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(GET "/_reshard/{rest*}" ServerAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(POST "/_reshard/{rest*}" ServerAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(PUT "/_reshard/{rest*}" ServerAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(DELETE "/_reshard/{rest*}" ServerAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(GET "/_reshard" ServerAdmin refused::shards, "Refused: there are no shards.", refuses()),
        route!(GET "/{db}/_partition/{rest*}" Member refused::partition, "Refused: databases are not partitioned.",
            refuses()),
        route!(POST "/{db}/_partition/{rest*}" Member refused::partition, "Refused: databases are not partitioned.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_search/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(POST "/{db}/_design/{ddoc}/_search/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_nouveau/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(POST "/{db}/_design/{ddoc}/_nouveau/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_search_info/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_nouveau_info/{index}" Member refused::search, "Refused: no full-text index yet.",
            refuses()),
        route!(POST "/{db}/_search_cleanup" DatabaseAdmin refused::search, "Refused: no full-text index yet.", refuses()),
        route!(POST "/{db}/_nouveau_cleanup" DatabaseAdmin refused::search, "Refused: no full-text index yet.", refuses()),
        route!(POST "/_search_analyze" ServerAdmin refused::search, "Refused: no full-text index yet.", refuses()),
        route!(POST "/_nouveau_analyze" ServerAdmin refused::search, "Refused: no full-text index yet.", refuses()),
        route!(POST "/_cluster_setup" ServerAdmin refused::cluster, "Refused: the server is one node.", refuses()),
        route!(GET "/{db}/_design/{ddoc}/_show/{rest*}" Member refused::rendering, "Refused: shows are deprecated.",
            refuses()),
        route!(POST "/{db}/_design/{ddoc}/_show/{rest*}" Member refused::rendering, "Refused: shows are deprecated.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_list/{rest*}" Member refused::rendering, "Refused: lists are deprecated.",
            refuses()),
        route!(POST "/{db}/_design/{ddoc}/_list/{rest*}" Member refused::rendering, "Refused: lists are deprecated.",
            refuses()),
        route!(GET "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member refused::rendering, "Refused: rewrites are deprecated.",
            refuses()),
        route!(POST "/{db}/_temp_view" Member refused::temp_view, "Gone, as in CouchDB 3.", gives("Error").status(410)),
    ]
}
