//! The route table: method, path, required access, handler, summary, parameters and bodies of every route.
//!
//! Handlers are only reachable through this table, so a check that covers every row covers every request.

use std::sync::OnceLock;

use hyper::Method;

use super::Endpoint;
use super::operation::{not_supported, returns, returns_bytes, returns_events, returns_json_lines};
use super::parameters::{
    ANALYZE, BULK, BYTES, CHANGES, COPY, COUNT, DOCUMENTS, FEDERATED, FEDERATED_CHANGES, FEED, KEY_LIST, KEY_SET,
    KEY_WRITE, LATEST, LOG, NEW_DATABASE, NEXT, OPEN_REVISIONS, PAGE, PAST, RANGE, REVISION, ROWS, SHOW, SUBSCRIBE,
    TAG, TIER_CHANGES, VIEW, WAIT, WATCH, WRITE,
};
use crate::auth::{Access, Route};
use crate::handlers::{
    active_tasks, aggregate, attachment, backup, bulk, bulk_get, changes, conflict_rule, console, dashboard, database,
    document, federation, functions, introspection, keys, list, listing, local_docs, log, mango, mango_index, messages,
    node, node_config, partition, patch, prepared, replicate, retention, rewrite, roles, server, servers, session,
    shard_view, show, tiers, token, topology, transact, triggers, unsupported, update, updates, view, view_info,
    virtual_database, watch, wire,
};

/// Builds a row: `METHOD path Access handler, summary, operation`.
macro_rules! route {
    ($method:ident $path:literal $access:ident $handler:path, $summary:literal, $operation:expr) => {
        Endpoint {
            route: Route { method: method(stringify!($method)), path: $path, access: Access::$access },
            handler: |call| Box::pin($handler(call)),
            summary: $summary,
            operation: $operation,
        }
    };
}

/// Parses a method name; hyper has no constant for `COPY`.
fn method(name: &str) -> Method {
    Method::from_bytes(name.as_bytes()).unwrap_or(Method::GET)
}

/// All routes.
pub(super) fn endpoints() -> &'static [Endpoint] {
    static ENDPOINTS: OnceLock<Vec<Endpoint>> = OnceLock::new();
    ENDPOINTS.get_or_init(|| {
        let mut endpoints = Vec::new();
        endpoints.extend(server_routes());
        endpoints.extend(own(token_routes()));
        endpoints.extend(node_routes());
        endpoints.extend(replicator_routes());
        endpoints.extend(own(federation_routes()));
        endpoints.extend(own(shard_routes()));
        endpoints.extend(own(tier_routes()));
        endpoints.extend(database_routes());
        endpoints.extend(bulk_routes());
        endpoints.extend(mango_routes());
        endpoints.extend(partition_routes());
        endpoints.extend(own(stemma_routes()));
        endpoints.extend(own(key_routes()));
        endpoints.extend(document_routes());
        endpoints.extend(unsupported_routes());
        endpoints.extend(design_routes());
        endpoints.extend(rendering_routes());
        endpoints
    })
}

/// Routes that CouchDB does not have: unknown parameters are an error.
fn own(routes: Vec<Endpoint>) -> impl IntoIterator<Item = Endpoint> {
    routes.into_iter().map(|endpoint| Endpoint { operation: endpoint.operation.refusing_unknown(), ..endpoint })
}

fn server_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/" Anonymous server::welcome, "Returns the server's name and version.", returns("Welcome")),
        route!(GET "/_up" Anonymous server::up, "Returns 200 if the server accepts requests.", returns("Up")),
        route!(GET "/_openapi" Anonymous server::openapi, "Returns this OpenAPI 3.1 document.",
            returns("Object").refusing_unknown()),
        route!(GET "/_utils" Anonymous dashboard::get, "Returns the start page of the dashboard.", returns_bytes()),
        route!(GET "/_utils/{file*}" Anonymous dashboard::get, "Returns a file of the dashboard.", returns_bytes()),
        route!(GET "/_console" Anonymous console::get, "Redirects to the web console.",
            returns_bytes().status(301).refusing_unknown()),
        route!(GET "/_console/{file*}" Anonymous console::get, "Returns a file of the web console.",
            returns_bytes().refusing_unknown()),
        route!(GET "/_wire" Anonymous wire::connect,
            "Opens a WebSocket for the wire protocol, whose handshake authenticates the client.",
            returns_bytes().status(101).refusing_unknown()),
        route!(GET "/_uuids" Anonymous server::uuids, "Generates unique ids.", returns("Uuids").parameters(&[COUNT])),
        route!(GET "/_session" Anonymous session::get, "Returns the current user and the authentication method.",
            returns("Session")),
        route!(POST "/_session" Anonymous session::post, "Logs in and sets a session cookie.",
            returns("Login").body("Credentials").bytes_body("application/x-www-form-urlencoded")
                .parameters(&[NEXT])),
        route!(DELETE "/_session" Anonymous session::delete, "Logs out and removes the session cookie.",
            returns("Ok").parameters(&[NEXT])),
        route!(GET "/_all_dbs" ServerAdmin server::all_dbs, "Lists the names of all databases in order.",
            returns("Names").parameters(&[PAGE, RANGE])),
        route!(GET "/_dbs_info" ServerAdmin server::dbs_info, "Returns document counts and sizes of all databases.",
            returns("DatabaseInfos")),
        route!(POST "/_dbs_info" ServerAdmin server::dbs_info,
            "Returns document counts and sizes of the named databases.", returns("DatabaseInfos").body("Keys")),
        route!(GET "/_db_updates" ServerAdmin updates::updates,
            "Lists or streams the creation, update and deletion of databases.",
            returns("DatabaseUpdates").or_returns("text/event-stream").parameters(&[FEED]).streamed()),
        route!(GET "/_active_tasks" ServerAdmin active_tasks::active_tasks,
            "Lists running replications, compactions, index builds and backups.", returns("Objects")),
        route!(GET "/_cluster_setup" ServerAdmin server::cluster_setup, "Returns the cluster state: a single node.",
            returns("Object")),
        route!(GET "/_membership" ServerAdmin server::membership, "Lists the servers of the cluster by their URLs.",
            returns("Membership")),
    ]
}

fn node_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_metrics" Metrics node::metrics, "Returns metrics in Prometheus text format.",
            returns_bytes().refusing_unknown()),
        route!(GET "/_log" ServerAdmin log::lines, "Returns the last lines of the server's log, or streams new ones.",
            returns_json_lines().or_returns("text/event-stream").parameters(&[LOG]).streamed().refusing_unknown()),
        route!(GET "/_node/{node}" ServerAdmin node::name, "Returns the name of the node.", returns("Object")),
        route!(GET "/_node/{node}/_config" ServerAdmin node_config::all, "Returns all settings, in CouchDB's sections.",
            returns("Object")),
        route!(GET "/_node/{node}/_config/{section}" ServerAdmin node_config::get_section,
            "Returns the settings of a section.", returns("Object")),
        route!(GET "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::get, "Returns a setting.",
            returns("Setting")),
        route!(PUT "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::put,
            "Changes a setting or creates an administrator; returns the previous value.",
            returns("Setting").body("Setting")),
        route!(DELETE "/_node/{node}/_config/{section}/{key}" ServerAdmin node_config::delete,
            "Resets a setting or removes an administrator; returns the previous value.", returns("Setting")),
        route!(GET "/_node/{node}/_prometheus" Metrics node::prometheus, "Returns metrics in Prometheus text format.",
            returns_bytes()),
        route!(GET "/_node/{node}/_stats" Metrics node::stats, "Returns metrics in CouchDB's JSON format.",
            returns("Object")),
        route!(GET "/_node/{node}/_stats/{rest*}" Metrics node::stat, "Returns one metric in CouchDB's JSON format.",
            returns("Object")),
        route!(GET "/_node/{node}/_system" Metrics node::system, "Returns the uptime and memory use of the process.",
            returns("Object")),
        route!(GET "/_node/{node}/_versions" ServerAdmin node::versions,
            "Returns the versions of the server's components.", returns("Object")),
        route!(POST "/_node/{node}/_restart" ServerAdmin node::restart,
            "Not supported: restart the server with its service manager.", not_supported()),
    ]
}

fn token_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_tokens" ServerAdmin token::list, "Lists API tokens without their secrets.", returns("Tokens")),
        route!(POST "/_tokens" ServerAdmin token::create,
            "Creates an API token; only this response contains its secret.",
            returns("NewToken").body("TokenRequest").status(201)),
        route!(GET "/_signing_key" ServerAdmin token::signing_key,
            "Returns the public key with which the server signs requests to other servers.", returns("SigningKey")),
        route!(GET "/_roles" ServerAdmin roles::list, "Lists the roles with statements.", returns("Roles")),
        route!(PUT "/_roles/{role}" ServerAdmin roles::put,
            "Sets what users and tokens with a role may do in databases of which they are no members.",
            returns("Ok").status(201).body("Role")),
        route!(DELETE "/_roles/{role}" ServerAdmin roles::delete, "Deletes a role with statements.", returns("Ok")),
        route!(DELETE "/_tokens/{token}" ServerAdmin token::revoke, "Revokes an API token by name.", returns("Ok")),
    ]
}

fn replicator_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/_replicate" ServerAdmin replicate::replicate,
            "Runs a one-time replication, or starts or cancels a continuous one.",
            returns("Object").body("Replication")),
        route!(GET "/_scheduler/jobs" ServerAdmin replicate::jobs, "Lists running replications.",
            returns("Object").parameters(&[PAGE])),
        route!(GET "/_scheduler/jobs/{job}" ServerAdmin replicate::job, "Returns the state of a replication.",
            returns("Object")),
        route!(GET "/_scheduler/docs" ServerAdmin replicate::documents,
            "Lists the documents of `_replicator` with their replication states.",
            returns("Object").parameters(&[PAGE])),
        route!(GET "/_scheduler/docs/{replicator}" ServerAdmin replicate::documents,
            "Lists the documents of `_replicator` with their replication states.",
            returns("Object").parameters(&[PAGE])),
        route!(GET "/_scheduler/docs/{replicator}/{id}" ServerAdmin replicate::document,
            "Returns the replication state of a document of `_replicator`.", returns("Object")),
        route!(GET "/_topology" ServerAdmin topology::list,
            "Lists the topologies with the states of their replications, without credentials.", returns("Topologies")),
        route!(GET "/_topology/{name}" ServerAdmin topology::get,
            "Returns a topology with the states of its replications, without credentials.", returns("TopologyState")),
        route!(PUT "/_topology/{name}" ServerAdmin topology::put,
            "Defines databases and the replications between them, which run until the topology is deleted.",
            returns("Ok").status(201).body("Topology")),
        route!(DELETE "/_topology/{name}" ServerAdmin topology::delete,
            "Ends the replications of a topology and deletes it; documents stay.", returns("Ok")),
        route!(POST "/_topology/{name}/_pause" ServerAdmin topology::pause,
            "Ends the replications of a topology until it is resumed.", returns("Ok")),
        route!(POST "/_topology/{name}/_resume" ServerAdmin topology::resume,
            "Starts the replications of a paused topology again.", returns("Ok")),
    ]
}

fn federation_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_federation" ServerAdmin federation::list, "Lists the federations, without credentials.",
            returns("Federations")),
        route!(GET "/_federation/{name}" ServerAdmin federation::get, "Returns a federation, without credentials.",
            returns("Federation")),
        route!(PUT "/_federation/{name}" ServerAdmin federation::put,
            "Defines databases, on this and on other servers, that are read as one.",
            returns("Ok").status(201).body("Federation")),
        route!(DELETE "/_federation/{name}" ServerAdmin federation::delete,
            "Deletes the definition of a federation; its databases stay.", returns("Ok")),
        route!(POST "/_federation/{name}/_find" User federation::find,
            "Returns documents of all members that match a selector, sorted and limited together.",
            returns("FindResult").body("Find").parameters(&[FEDERATED])),
        route!(POST "/_federation/{name}/_count" User federation::count,
            "Counts the documents of all members that match a selector.",
            returns("FederatedCount").body("Selection").parameters(&[FEDERATED])),
        route!(POST "/_federation/{name}/_aggregate" User federation::aggregate,
            "Computes counts, sums, extremes and distinct values of all members together, optionally by group.",
            returns("AggregateResult").body("Aggregate").parameters(&[FEDERATED])),
        route!(GET "/_federation/{name}/_changes" User federation::changes,
            "Lists the changes of all members since a position.",
            returns("FederatedChanges").parameters(&[FEDERATED, FEDERATED_CHANGES])),
    ]
}

fn shard_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/_servers" ServerAdmin servers::list,
            "Lists other servers on which shards of virtual databases can be, without credentials.",
            returns("Servers")),
        route!(GET "/_servers/{name}" ServerAdmin servers::get, "Returns another server, without credentials.",
            returns("Server")),
        route!(PUT "/_servers/{name}" ServerAdmin servers::put,
            "Adds a server, on which shards of virtual databases can then be.",
            returns("Ok").status(201).body("Server")),
        route!(DELETE "/_servers/{name}" ServerAdmin servers::delete, "Forgets a server that has no shards.",
            returns("Ok")),
        route!(GET "/{db}/_shards" Member virtual_database::shards,
            "Lists the shards of a virtual database, and the state of the move between them.", returns("Shards")),
        route!(GET "/{db}/_shards/{doc}" Member virtual_database::shard_of,
            "Returns which shard of a virtual database has a document.", returns("ShardOf")),
        route!(POST "/{db}/_shards" ServerAdmin virtual_database::start_move,
            "Splits or merges shards of a virtual database, or moves buckets between them, while it is used.",
            returns("ShardMoveStarted").status(202).body("ShardMove")),
        route!(POST "/{db}/_shard_view" ServerAdmin shard_view::post,
            "Returns a shard's part of a view of a virtual database, for the server that merges the parts.",
            returns_json_lines().body("ShardView")),
        route!(DELETE "/{db}/_shards" ServerAdmin virtual_database::cancel_move,
            "Takes back the move between shards unless its documents are in the new shard already.",
            returns("Ok").status(202)),
    ]
}

fn tier_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_tiers" DatabaseAdmin tiers::get,
            "Returns the tiers of a database, what they hold, and the state of the moves between them.",
            returns("TierStatus")),
        route!(PUT "/{db}/_tiers" ServerAdmin tiers::put,
            "Defines databases to which documents move when they are old, unused or large.",
            returns("Ok").status(201).body("Tiers")),
        route!(POST "/{db}/_tiers" ServerAdmin tiers::post,
            "Moves documents between tiers now, or pauses and resumes the moves.",
            returns("TierMigration").body("TierAction")),
        route!(DELETE "/{db}/_tiers" ServerAdmin tiers::delete,
            "Deletes the definition of a database's tiers; documents stay where they are.", returns("Ok")),
        route!(POST "/{db}/_tiers/_find" Member tiers::find,
            "Returns documents of all tiers that match a selector, sorted and limited together.",
            returns("FindResult").body("Find")),
        route!(POST "/{db}/_tiers/_count" Member tiers::count,
            "Counts the documents of all tiers that match a selector.",
            returns("FederatedCount").body("Selection")),
        route!(POST "/{db}/_tiers/_aggregate" Member tiers::aggregate,
            "Computes counts, sums, extremes and distinct values of all tiers together, optionally by group.",
            returns("AggregateResult").body("Aggregate")),
        route!(GET "/{db}/_tiers/_changes" Member tiers::changes,
            "Lists the changes of all tiers since a sequence; a document that moved to another tier is no deletion.",
            returns("TierChanges").parameters(&[TIER_CHANGES])),
    ]
}

fn database_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}" Member database::info, "Returns document counts and sizes of a database.",
            returns("DatabaseInfo")),
        route!(PUT "/{db}" ServerAdmin database::create, "Creates a database.",
            returns("Ok").status(201).parameters(&[NEW_DATABASE])),
        route!(DELETE "/{db}" ServerAdmin database::delete, "Deletes a database and everything in it.", returns("Ok")),
        route!(GET "/{db}/_security" Member database::security, "Returns the administrators and members of a database.",
            returns("Security")),
        route!(PUT "/{db}/_security" DatabaseAdmin database::set_security,
            "Sets the administrators and members of a database.", returns("Ok").body("Security")),
        route!(POST "/{db}" Member document::post, "Writes a document; generates an id if it has none.",
            returns("WriteResult").status(201).body("Document").parameters(&[BULK])),
        route!(POST "/{db}/_ensure_full_commit" Member database::ensure_full_commit,
            "Flushes acknowledged writes to disk.", returns("Object").status(201)),
        route!(POST "/{db}/_compact" DatabaseAdmin database::compact,
            "Starts a compaction now; the server also compacts automatically.",
            returns("Ok").status(202).optional_body("Object")),
        route!(POST "/{db}/_compact/{ddoc}" DatabaseAdmin database::compact_views,
            "No-op: views are compacted automatically.", returns("Ok").status(202).optional_body("Object")),
        route!(POST "/{db}/_view_cleanup" DatabaseAdmin view_info::cleanup,
            "Removes the indexes of views that no design document declares.",
            returns("Ok").status(202).optional_body("Object")),
        route!(GET "/{db}/_revs_limit" Member database::revs_limit, "Returns how many revisions of a branch are kept.",
            returns("Count")),
        route!(PUT "/{db}/_revs_limit" DatabaseAdmin database::set_revs_limit,
            "Sets how many revisions of a branch are kept.", returns("Ok").body("Count")),
    ]
}

fn bulk_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_bulk_docs" Member bulk::bulk_docs, "Writes documents independently of each other.",
            returns("BulkDocsResult").status(201).body("BulkDocs").parameters(&[BULK])),
        route!(POST "/{db}/_bulk_get" Member bulk_get::bulk_get,
            "Reads documents and revisions, in the order of the request.",
            returns("BulkGetResult").or_returns("multipart/mixed").body("BulkGet").parameters(&[SHOW, LATEST])),
        route!(POST "/{db}/_revs_diff" Member bulk::revs_diff,
            "Returns which of the given revisions the database lacks.", returns("Object").body("RevisionsById")),
        route!(POST "/{db}/_missing_revs" Member bulk::missing_revs,
            "Returns which of the given revisions the database lacks, in an older format.",
            returns("Object").body("RevisionsById")),
        route!(GET "/{db}/_all_docs" Member listing::all_docs, "Lists documents in the order of their ids.",
            returns("Rows").parameters(&[PAST, PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_all_docs" Member listing::all_docs,
            "Lists documents in the order of their ids or of the given keys.",
            returns("Rows").optional_body("Listing").parameters(&[PAST, PAGE, RANGE, ROWS, SHOW])),
        route!(GET "/{db}/_changes" Member changes::changes, "Lists or streams changes since a sequence.",
            returns("Changes").or_returns("text/event-stream").parameters(&[PAST, FEED, CHANGES, SHOW]).streamed()),
        route!(POST "/{db}/_changes" Member changes::changes,
            "Lists or streams changes since a sequence, filtered by ids or a selector.",
            returns("Changes").or_returns("text/event-stream").optional_body("ChangesFilter")
                .parameters(&[PAST, FEED, CHANGES, SHOW]).streamed()),
        route!(POST "/{db}/_all_docs/queries" Member listing::queries, "Runs several listings of documents.",
            returns("Listings").body("Queries").parameters(&[SHOW])),
        route!(GET "/{db}/_design_docs" Member listing::design_docs,
            "Lists design documents in the order of their ids.",
            returns("Rows").parameters(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_design_docs" Member listing::design_docs,
            "Lists design documents, or those with the given keys.",
            returns("Rows").optional_body("Listing").parameters(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_design_docs/queries" Member listing::design_queries,
            "Runs several listings of design documents.", returns("Listings").body("Queries").parameters(&[SHOW])),
        route!(GET "/{db}/_local_docs" Member local_docs::list, "Lists local documents, which are not replicated.",
            returns("Rows").parameters(&[PAGE, RANGE, DOCUMENTS])),
        route!(POST "/{db}/_local_docs" Member local_docs::list, "Lists local documents, or those with the given keys.",
            returns("Rows").optional_body("Listing").parameters(&[PAGE, RANGE, DOCUMENTS])),
        route!(POST "/{db}/_local_docs/queries" Member local_docs::queries, "Runs several listings of local documents.",
            returns("Listings").body("Queries")),
    ]
}

fn mango_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_find" Member mango::find, "Returns documents that match a selector.",
            returns("FindResult").body("Find").parameters(&[PAST])),
        route!(POST "/{db}/_explain" Member mango::explain, "Returns the plan of a query.",
            returns("Object").body("Find").parameters(&[PAST, ANALYZE])),
        route!(GET "/{db}/_index" Member mango_index::list, "Lists the declared indexes.",
            returns("Indexes").parameters(&[PAGE])),
        route!(POST "/{db}/_index" DatabaseAdmin mango_index::create, "Declares an index.",
            returns("Object").body("Index")),
        route!(POST "/{db}/_index/_bulk_delete" DatabaseAdmin mango_index::bulk_delete,
            "Deletes all indexes of several design documents.", returns("Object").body("DocumentIds")),
        route!(DELETE "/{db}/_index/{ddoc}/json/{name}" DatabaseAdmin mango_index::delete, "Deletes an index.",
            returns("Ok")),
        route!(DELETE "/{db}/_index/_design/{ddoc}/json/{name}" DatabaseAdmin mango_index::delete, "Deletes an index.",
            returns("Ok")),
    ]
}

fn partition_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_partition/{partition}" Member partition::info,
            "Returns document counts and sizes of a partition.", returns("Object")),
        route!(GET "/{db}/_partition/{partition}/_all_docs" Member partition::all_docs,
            "Lists the documents of a partition in the order of their ids.",
            returns("Rows").parameters(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_partition/{partition}/_all_docs" Member partition::all_docs,
            "Lists the documents of a partition in the order of their ids or of the given keys.",
            returns("Rows").optional_body("Listing").parameters(&[PAGE, RANGE, ROWS, SHOW])),
        route!(POST "/{db}/_partition/{partition}/_find" Member partition::find,
            "Returns documents of a partition that match a selector.", returns("FindResult").body("Find")),
        route!(POST "/{db}/_partition/{partition}/_explain" Member partition::explain,
            "Returns the plan of a query within a partition.", returns("Object").body("Find")),
        route!(GET "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}" Member partition::view,
            "Queries a view within a partition: returns its rows or their reduction.",
            returns("Rows").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_partition/{partition}/_design/{ddoc}/_view/{view}" Member partition::view,
            "Queries a view within a partition: returns its rows or their reduction.",
            returns("Rows").optional_body("Listing").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(GET "/{db}/_partition/{partition}/{rest*}" Member partition::unknown,
            "Returns 404: partitions have no other routes.", returns("Error").status(404)),
        route!(POST "/{db}/_partition/{partition}/{rest*}" Member partition::unknown,
            "Returns 404: partitions have no other routes.", returns("Error").status(404)),
    ]
}

/// Routes that CouchDB does not have.
fn stemma_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_transact" Member transact::post, "Writes several documents atomically if all checks hold.",
            returns("TransactionResult").status(201).body("Transaction").parameters(&[BULK])),
        route!(PATCH "/{db}/{doc}" Member patch::patch_document,
            "Changes fields of a document by update operators or JSON Merge Patch; keeps the others.",
            returns("WriteResult").status(201).body("Patch").parameters(&[WRITE])),
        route!(POST "/{db}/_update_where" Member patch::update_where,
            "Changes or deletes all documents that match a selector, or none.",
            returns("ChangedCount").body("UpdateWhere").parameters(&[BULK])),
        route!(POST "/{db}/_backup" ServerAdmin backup::back_up,
            "Makes an incremental backup, or starts or ends a continuous one.",
            returns("BackupResult").status(201).optional_body("Backup")),
        route!(POST "/{db}/_restore" ServerAdmin backup::restore,
            "Restores a backup as a new database, or reverts a database to it.",
            returns("RestoreResult").status(201).optional_body("Restore")),
        route!(POST "/{db}/_branch" ServerAdmin backup::branch,
            "Creates a database with the state of this one, now or in the past.",
            returns("Ok").status(201).body("Branch")),
        route!(GET "/{db}/_watch" Member watch::watch_query,
            "Runs a live query: streams its result, then each change, as events or over a WebSocket.",
            returns_events().parameters(&[WATCH])),
        route!(POST "/{db}/_watch" Member watch::watch_query,
            "Runs a live query: streams its result, then each change, as events.", returns_events().body("Watch")),
        route!(POST "/{db}/_publish/{topic*}" Member messages::publish,
            "Passes a message to the current subscribers of a topic, at most once; stores nothing.",
            returns("Published").body("Any")),
        route!(GET "/{db}/_subscribe" Member messages::subscribe_topic,
            "Streams the messages of matching topics from now on, as events or over a WebSocket.",
            returns_events().parameters(&[SUBSCRIBE])),
        route!(POST "/{db}/_function/{function}" Member functions::call,
            "Calls a function of the program that runs the server: the body is its input, the response its output.",
            returns("Any").body("Any")),
        route!(GET "/{db}/_triggers" DatabaseAdmin triggers::list,
            "Lists the webhooks and trigger functions of a database with their states, without secrets.",
            returns("Triggers")),
        route!(GET "/{db}/_triggers/{name}" DatabaseAdmin triggers::get,
            "Returns a webhook or trigger function with its state.", returns("TriggerState")),
        route!(PUT "/{db}/_triggers/{name}" ServerAdmin triggers::put,
            "Defines a webhook or a trigger function, which is called for each matching change.",
            returns("Ok").status(201).body("Trigger")),
        route!(DELETE "/{db}/_triggers/{name}" ServerAdmin triggers::delete,
            "Deletes a webhook or trigger function and its position.", returns("Ok")),
        route!(POST "/{db}/_triggers/{name}/_redeliver" ServerAdmin triggers::redeliver,
            "Calls a trigger for its dead letters, or for that of one document, and deletes those that succeed.",
            returns("Redelivered").optional_body("Redeliver")),
        route!(GET "/{db}/_conflict_rule" DatabaseAdmin conflict_rule::get,
            "Returns the conflict rule of a database, and how many documents it resolved.",
            returns("ConflictRuleState")),
        route!(PUT "/{db}/_conflict_rule" DatabaseAdmin conflict_rule::put,
            "Sets the rule that resolves documents which replicas changed at the same time.",
            returns("Ok").status(201).body("ConflictRule")),
        route!(DELETE "/{db}/_conflict_rule" DatabaseAdmin conflict_rule::delete,
            "Removes the conflict rule; documents stay resolved.", returns("Ok")),
        route!(POST "/{db}/_aggregate" Member aggregate::post,
            "Computes counts, sums, extremes and distinct values, optionally by group, or runs a pipeline.",
            returns("AggregateResult").body("Aggregate").parameters(&[PAST])),
        route!(POST "/{db}/_prepare" Member prepared::prepare, "Checks a query and stores it for repeated execution.",
            returns("PreparedQuery").status(201).body("Find")),
        route!(POST "/{db}/_prepared/{handle}" Member prepared::execute, "Runs a prepared query.",
            returns("FindResult").body("PreparedPage")),
        route!(GET "/{db}/_statistics" Member introspection::statistics,
            "Returns counts, sizes and the durability setting of a database.", returns("Object")),
        route!(GET "/{db}/_paths" Member introspection::paths,
            "Lists the field paths of all documents, with the counts and types of their values.", returns("Paths")),
        route!(GET "/{db}/_history/{doc}" Member introspection::history,
            "Returns all branches of a document's revision tree, and its stored revisions with their times.",
            returns("History").parameters(&[DOCUMENTS])),
        route!(GET "/{db}/_retention" DatabaseAdmin retention::get,
            "Returns how much of the past the database keeps, and the bytes that it takes.", returns("Retentions")),
        route!(PUT "/{db}/_retention" DatabaseAdmin retention::put,
            "Sets how much of the past is kept, of the database and of documents whose ids have a prefix.",
            returns("Ok").body("RetentionChange")),
        route!(DELETE "/{db}/_prepared/{handle}" Member prepared::remove, "Removes a prepared query.", returns("Ok")),
    ]
}

fn key_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_keys/{namespace}" Member keys::list, "Lists the keys of a namespace with their values.",
            returns("Rows").parameters(&[KEY_LIST])),
        route!(GET "/{db}/_keys/{namespace}/{key*}" Member keys::get, "Returns the value of a key.",
            returns("KeyValue")),
        route!(PUT "/{db}/_keys/{namespace}/{key*}" Member keys::put, "Sets the value of a key.",
            returns("KeySet").status(201).body("Any").parameters(&[KEY_SET])),
        route!(POST "/{db}/_keys/{namespace}/{key*}" Member keys::increment,
            "Adds a number to the value of a key; returns the sum.",
            returns("KeyValue").body("KeyIncrement").parameters(&[KEY_WRITE])),
        route!(DELETE "/{db}/_keys/{namespace}/{key*}" Member keys::delete, "Removes a key.",
            returns("Ok").parameters(&[KEY_WRITE])),
    ]
}

fn design_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_design/{ddoc}/_info" Member view_info::info,
            "Returns the state of a design document's views.",
            returns("Object")),
        route!(GET "/{db}/_design/{ddoc}/_view/{view}" Member view::get,
            "Queries a view: returns its rows or their reduction.",
            returns("Rows").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}" Member view::get,
            "Queries a view: returns its rows or their reduction.",
            returns("Rows").optional_body("Listing").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_view/{view}/queries" Member view::queries, "Runs several queries on a view.",
            returns("Listings").body("Queries").parameters(&[PAST, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_update/{function}" Member update::update,
            "Runs an update function without a document; it may create one.",
            returns_bytes().status(201).bytes_body("*/*")),
        route!(PUT "/{db}/_design/{ddoc}/_update/{function}" Member update::update,
            "Runs an update function without a document; it may create one.",
            returns_bytes().status(201).bytes_body("*/*")),
        route!(POST "/{db}/_design/{ddoc}/_update/{function}/{doc*}" Member update::update,
            "Runs an update function on a document.", returns_bytes().status(201).bytes_body("*/*")),
        route!(PUT "/{db}/_design/{ddoc}/_update/{function}/{doc*}" Member update::update,
            "Runs an update function on a document.", returns_bytes().status(201).bytes_body("*/*")),
    ]
}

/// Deprecated in CouchDB, but still used.
fn rendering_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/_design/{ddoc}/_show/{function}" Member show::show,
            "Runs a show function without a document.", returns_bytes()),
        route!(POST "/{db}/_design/{ddoc}/_show/{function}" Member show::show,
            "Runs a show function without a document.", returns_bytes().bytes_body("*/*")),
        route!(GET "/{db}/_design/{ddoc}/_show/{function}/{doc*}" Member show::show,
            "Runs a show function on a document.", returns_bytes()),
        route!(POST "/{db}/_design/{ddoc}/_show/{function}/{doc*}" Member show::show,
            "Runs a show function on a document.", returns_bytes().bytes_body("*/*")),
        route!(GET "/{db}/_design/{ddoc}/_list/{function}/{view}" Member list::list,
            "Runs a list function on the rows of a view.",
            returns_bytes().parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_list/{function}/{view}" Member list::list,
            "Runs a list function on the rows of a view.",
            returns_bytes().optional_body("Listing").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(GET "/{db}/_design/{ddoc}/_list/{function}/{other}/{view}" Member list::list,
            "Runs a list function on the rows of a view of another design document.",
            returns_bytes().parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(POST "/{db}/_design/{ddoc}/_list/{function}/{other}/{view}" Member list::list,
            "Runs a list function on the rows of a view of another design document.",
            returns_bytes().optional_body("Listing").parameters(&[PAST, PAGE, RANGE, ROWS, VIEW, SHOW])),
        route!(GET "/{db}/_design/{ddoc}/_rewrite" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes()),
        route!(GET "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes()),
        route!(POST "/{db}/_design/{ddoc}/_rewrite" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes().bytes_body("*/*")),
        route!(POST "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes().bytes_body("*/*")),
        route!(PUT "/{db}/_design/{ddoc}/_rewrite" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes().bytes_body("*/*")),
        route!(PUT "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes().bytes_body("*/*")),
        route!(DELETE "/{db}/_design/{ddoc}/_rewrite" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes()),
        route!(DELETE "/{db}/_design/{ddoc}/_rewrite/{rest*}" Member rewrite::rewrite,
            "Handles the request that the design document's rewrites name.", returns_bytes()),
    ]
}

fn document_routes() -> Vec<Endpoint> {
    vec![
        route!(GET "/{db}/{doc}" Member document::get, "Reads a document.",
            returns("Document").or_returns("multipart/related")
                .parameters(&[PAST, SHOW, REVISION, OPEN_REVISIONS, TAG])),
        route!(PUT "/{db}/{doc}" Member document::put, "Writes a document.",
            returns("WriteResult").status(201).body("Document").bytes_body("multipart/related")
                .parameters(&[WRITE, WAIT])),
        route!(DELETE "/{db}/{doc}" Member document::delete, "Deletes a document.",
            returns("WriteResult").parameters(&[WRITE, WAIT])),
        route!(COPY "/{db}/{doc}" Member document::copy, "Copies a document.",
            returns("WriteResult").status(201).parameters(&[COPY, REVISION])),
        route!(GET "/{db}/_design/{ddoc}" Member document::get, "Reads a design document.",
            returns("Document").or_returns("multipart/related").parameters(&[SHOW, REVISION, OPEN_REVISIONS, TAG])),
        route!(PUT "/{db}/_design/{ddoc}" DatabaseAdmin document::put, "Writes a design document.",
            returns("WriteResult").status(201).body("Document").bytes_body("multipart/related")
                .parameters(&[WRITE, WAIT])),
        route!(DELETE "/{db}/_design/{ddoc}" DatabaseAdmin document::delete, "Deletes a design document.",
            returns("WriteResult").parameters(&[WRITE, WAIT])),
        route!(COPY "/{db}/_design/{ddoc}" Member document::copy, "Copies a design document.",
            returns("WriteResult").status(201).parameters(&[COPY, REVISION])),
        route!(GET "/{db}/_local/{local*}" Member document::get_local, "Reads a local document.", returns("Document")),
        route!(PUT "/{db}/_local/{local*}" Member document::put, "Writes a local document.",
            returns("WriteResult").status(201).body("Document")),
        route!(COPY "/{db}/_local/{local*}" Member document::copy_local, "Copies a local document.",
            returns("WriteResult").status(201).parameters(&[COPY])),
        route!(DELETE "/{db}/_local/{local*}" Member document::delete_local, "Deletes a local document.",
            returns("WriteResult")),
        route!(GET "/{db}/{doc}/{file*}" Member attachment::get, "Reads an attachment, or a range of it.",
            returns_bytes().parameters(&[PAST, REVISION, TAG, BYTES])),
        route!(PUT "/{db}/{doc}/{file*}" Member attachment::put, "Adds or replaces an attachment.",
            returns("WriteResult").status(201).bytes_body("*/*").parameters(&[WRITE])),
        route!(DELETE "/{db}/{doc}/{file*}" Member attachment::delete, "Deletes an attachment.",
            returns("WriteResult").parameters(&[WRITE])),
        route!(GET "/{db}/_design/{ddoc}/{file*}" Member attachment::get, "Reads an attachment of a design document.",
            returns_bytes().parameters(&[REVISION, TAG, BYTES])),
        route!(PUT "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::put,
            "Adds or replaces an attachment of a design document.",
            returns("WriteResult").status(201).bytes_body("*/*").parameters(&[WRITE])),
        route!(DELETE "/{db}/_design/{ddoc}/{file*}" DatabaseAdmin attachment::delete,
            "Deletes an attachment of a design document.", returns("WriteResult").parameters(&[WRITE])),
    ]
}

/// CouchDB routes that are not supported. Without these rows, the paths would match document routes.
fn unsupported_routes() -> Vec<Endpoint> {
    vec![
        route!(POST "/{db}/_purge" DatabaseAdmin unsupported::purge, "Not supported: revisions can't be purged.",
            not_supported()),
        route!(GET "/{db}/_purged_infos" Member unsupported::purge, "Not supported: revisions can't be purged.",
            not_supported()),
        route!(GET "/{db}/_purged_infos_limit" Member unsupported::purge, "Not supported: revisions can't be purged.",
            not_supported()),
        route!(PUT "/{db}/_purged_infos_limit" DatabaseAdmin unsupported::purge,
            "Not supported: revisions can't be purged.", not_supported()),
        route!(POST "/{db}/_sync_shards" DatabaseAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(GET "/_reshard/{rest*}" ServerAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(POST "/_reshard/{rest*}" ServerAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(PUT "/_reshard/{rest*}" ServerAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(DELETE "/_reshard/{rest*}" ServerAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(GET "/_reshard" ServerAdmin unsupported::shards, "Not supported: databases have no shards.",
            not_supported()),
        route!(GET "/{db}/_design/{ddoc}/_search/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(POST "/{db}/_design/{ddoc}/_search/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(GET "/{db}/_design/{ddoc}/_nouveau/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(POST "/{db}/_design/{ddoc}/_nouveau/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(GET "/{db}/_design/{ddoc}/_search_info/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(GET "/{db}/_design/{ddoc}/_nouveau_info/{index}" Member unsupported::search,
            "Not supported: full-text search.", not_supported()),
        route!(POST "/{db}/_search_cleanup" DatabaseAdmin unsupported::search, "Not supported: full-text search.",
            not_supported()),
        route!(POST "/{db}/_nouveau_cleanup" DatabaseAdmin unsupported::search, "Not supported: full-text search.",
            not_supported()),
        route!(POST "/_search_analyze" ServerAdmin unsupported::search, "Not supported: full-text search.",
            not_supported()),
        route!(POST "/_nouveau_analyze" ServerAdmin unsupported::search, "Not supported: full-text search.",
            not_supported()),
        route!(POST "/_cluster_setup" ServerAdmin unsupported::cluster, "Not supported: clustering.", not_supported()),
        route!(POST "/{db}/_temp_view" Member unsupported::temp_view, "Returns 410: CouchDB 3 removed temporary views.",
            returns("Error").status(410)),
    ]
}
