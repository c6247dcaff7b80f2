//! Databases of CouchDB-compatible servers as replication peers: a program with a Stemma database synchronizes it with
//! a Stemma server, CouchDB, or any server of CouchDB's protocol. Start at [`HttpPeer`].
//!
//! All calls block. In an asynchronous program, make them where blocking is allowed, such as
//! `tokio::task::spawn_blocking`.
//!
//! ```text
//! options     construction of peers       peer       requests of the replication protocol
//! url         URLs with credentials       network    connections over TCP and TLS
//! runtime     waiting for futures         foundation errors, bodies, memory: shared with the server
//! signature   signed requests
//! ```

mod changed;
#[doc(hidden)]
pub mod foundation;
#[doc(hidden)]
pub mod network;
mod options;
mod peer;
#[doc(hidden)]
pub mod runtime;
#[doc(hidden)]
pub mod signature;
#[doc(hidden)]
pub mod url;
mod verified_content;

pub use options::HttpOptions;
pub use peer::HttpPeer;
#[doc(hidden)]
pub use peer::PeerLimits;
#[doc(hidden)]
pub use peer::library_error;
pub use signature::SigningKey;
