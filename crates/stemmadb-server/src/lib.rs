//! The HTTP server: serves all databases of a directory over CouchDB's protocol.
//!
//! ```text
//! server      listener, connections, shutdown         routes      route table and matching
//! http        requests, responses, memory budget      handlers    one function per route, by topic
//! directory   catalog of databases, open databases    auth        users, roles, access checks
//! script      JavaScript worker processes             accounts    administrators, tokens, sessions
//! design      design documents: views, validations
//! documents   the protocol's form of documents        changes     the changes feed
//! mango       Mango queries                           replicator  replication jobs
//! watch       live queries                            writes      validation and storage of writes
//! settings    file, environment and flags             app         state shared by requests
//! shipping    continuous backups               triggers    webhooks and trigger functions
//! metrics     request counters                        log         one line per request
//! outbound    HTTP client                             objects     backups in object stores
//! wire        the wire protocol            functions   functions of the program
//! console     the web console          spans       requests for OpenTelemetry
//! federations databases that are read as one     servers     other servers, for shards
//! tiers       documents that move to other databases
//! ```
//!
//! This is the only asynchronous crate of the project. The library blocks, so work that may wait for a flush or reads
//! more than a document runs on the blocking pool ([`http::blocking`]), or on the current thread while the runtime
//! moves its other tasks elsewhere ([`http::reading`]).

mod accounts;
mod app;
mod auth;
mod changes;
mod config;
mod connections;
mod console;
mod design;
mod directory;
mod documents;
mod error;
mod federations;
mod functions;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handlers;
mod http;
mod log;
mod mango;
mod metrics;
mod objects;
mod outbound;
mod replicator;
mod routes;
pub mod script;
mod server;
mod servers;
pub mod settings;
mod shipping;
mod spans;
mod tiers;
mod tls;
mod triggers;
mod virtual_databases;
mod watch;
mod websocket;
mod wire;
mod writes;

pub use auth::Access;
pub use config::{
    Acme, Administrator, ClusterMember, Config, Cors, JwtAlgorithm, JwtKey, Limits, Lockout, ProxySecret, Replicator,
    Tls, Triggers, Wire,
};
pub use directory::raise_descriptor_limit;
pub use documents::{format_rfc3339, format_rfc3339_us};
pub use error::{Failure, Result};
pub use functions::{FunctionContext, FunctionTransaction};
pub use http::BLOCKING_THREADS_MAX;
pub use hyper::Method;
pub use log::{Format, Level, Log, Logging};
pub use objects::{ObjectLog, ObjectTarget, backup_target};
pub use replicator::{peer, request};
pub use routes::{RouteDescription, route_descriptions};
pub use server::{MountedService, ResponseBody, Server, ServerBuilder};

/// The version of CouchDB's protocol that clients are sent, from which they derive the supported features.
pub const PROTOCOL_VERSION: &str = "3.5.0";
