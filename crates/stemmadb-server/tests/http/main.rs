//! HTTP tests on a loopback port: protocol, design documents, authentication and authorization, hostile input.

/// Ends a test that has no meaning if several servers of a cluster are behind each test server: `why` says what belongs
/// to one of them.
macro_rules! needs_one_server {
    ($why:literal) => {
        if std::env::var_os("STEMMA_TEST_CLUSTER").is_some() {
            println!("skipped in a cluster: {}", $why);
            return;
        }
    };
}

mod access_rules;
mod acme;
mod active_tasks;
mod auth;
mod backups;
mod cancellation;
mod client;
mod cluster;
mod conflict_rules;
mod cves;
mod encryption;
mod federation;
mod feeds;
mod filters;
mod find;
#[path = "../support/go.rs"]
mod go;
mod guide;
mod hostile;
mod http2;
mod introspection;
mod jwt;
mod keys;
mod limits;
mod log;
mod matrix;
mod messages;
mod mounted;
mod node;
mod old_revisions;
mod openapi;
mod partitions;
mod past;
mod patch;
mod path_patterns;
mod peers;
mod protocol;
mod questions;
mod rendering;
mod replication;
mod restricted_routes;
mod revocation;
mod roles;
mod signed_requests;
mod slow;
mod smuggling;
mod spread;
mod tiers;
mod tls;
mod tokens;
mod topology;
mod transact;
mod triggers;
mod validations;
mod views;
mod virtual_backups;
mod virtual_database;
mod virtual_partitions;
mod virtual_routes;
mod virtual_rules;
mod virtual_updates;
mod virtual_views;
mod wait_for;
mod watch;
mod wire;
mod wire_virtual;
