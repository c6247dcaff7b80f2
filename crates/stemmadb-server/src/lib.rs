//! Stemma over HTTP: every database in a directory, for the clients that CouchDB has.
//!
//! ```text
//! server      listen, connections, timeouts, the end      routes      the table of all routes, and their matching
//! http        a request and an answer as handlers see them  handlers    what each route does, by topic
//! directory   which databases there are, and where        auth        who is it, and may they?
//! script      the functions of design documents, in    design      what design documents say: views, validations …
//!             JavaScript
//! documents   documents as the protocol has them      changes     the feed as clients read it
//! mango       queries as clients write them           replicator  the server as a replicator
//! watch       live queries
//! settings    how the server is set: file, environment, flags
//! metrics     what is counted                         log         a line for each request
//! ```
//!
//! The only asynchronous crate of the project: the library blocks, so whatever may wait for a flush or reads more than a document runs on
//! the blocking pool ([`http::blocking`]), or here while the thread's other work goes elsewhere ([`http::reading`]).

mod accounts;
mod app;
mod auth;
mod changes;
mod config;
mod connections;
mod design;
mod directory;
mod documents;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handlers;
mod http;
mod log;
mod mango;
mod metrics;
mod replicator;
mod routes;
pub mod script;
mod server;
pub mod settings;
mod tls;
mod watch;
mod writes;

pub use auth::Access;
pub use config::{Administrator, Config, Cors, JwtAlgorithm, JwtKey, Limits, Lockout, Replicator, Tls};
pub use error::{Failure, Result};
pub use log::{Format, Level, Log, Logging};
pub use replicator::peer;
pub use routes::{Described, described};
pub use server::Server;

/// The version of the protocol that clients are told: they ask it to know what a server can do.
pub const PROTOCOL_VERSION: &str = "3.5.0";
