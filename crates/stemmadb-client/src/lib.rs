//! A client of Stemma servers with the interface of the embedded database.
//!
//! A [`Client`] connects by the wire protocol, over TCP, TLS, a Unix socket, a WebSocket or QUIC. [`Client::database`]
//! returns a [`RemoteDatabase`] with the names, arguments, results and error kinds of [`stemmadb::Database`].
//! [`AnyDatabase`] is either, for programs that should not care.
//!
//! ```no_run
//! use serde_json::json;
//! use stemmadb::field;
//! use stemmadb_client::Client;
//!
//! # fn main() -> stemmadb::Result<()> {
//! let client = Client::connect("stemma://ada:secret@localhost:5985")?;
//! let db = client.database("library");
//! db.upsert("solaris", &json!({"title": "Solaris", "year": 1961}))?;
//! for book in db.find(field("year").ge(1960)).sort("year").documents()? {
//!     println!("{}", book.to_json()?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `tokio`, the module `asynchronous` has the same operations as futures and streams.
//!
//! Every call has a timeout. A lost connection is opened again: reads are repeated, and so are writes, with a key by
//! which the server applies them once. A call uses a connection alone, so the calling thread itself waits for the
//! answer; several threads use several connections of a pool.

mod answer_wait;
mod any;
#[cfg(feature = "tokio")]
pub mod asynchronous;
mod batch;
pub mod bindings;
mod byte_stream;
mod collections;
mod connection;
mod convert;
mod database;
mod declarations;
mod files;
mod find;
mod history;
mod keys;
mod options;
mod pending;
mod pool;
#[cfg(all(unix, feature = "quic"))]
mod quic;
mod stream;
mod transaction;
mod transport;
mod url;
mod views;
mod websocket;

pub use any::{
    AnyDatabase, AnyFile, AnyFiles, AnyFind, AnyGroupBy, AnyHistory, AnyIndexes, AnyPathSubscription, AnyRows,
    AnySchemas, AnySubscription, AnyTopicSubscription, AnyView, AnyViewQuery, AnyViews, AnyWatch,
};
pub use batch::{Batch, BatchResults};
pub use database::{RemoteChanges, RemoteDatabase, RemotePast, Transact};
pub use declarations::{RemoteIndexes, RemoteSchemas};
pub use files::{RemoteFile, RemoteFiles};
pub use find::{RemoteFind, RemoteGroupBy, RemoteRows};
pub use history::RemoteHistory;
pub use keys::RemoteKeys;
pub use options::{ClientOptions, TlsTrust};
pub use pending::{Pending, RemoteRowKeys};
pub use pool::Client;
pub use stemmadb_wire::{Credentials, Encoding};
pub use stream::{RemotePathSubscription, RemoteSubscription, RemoteTopicSubscription, RemoteWatch};
pub use transaction::RemoteAttempt;
pub use views::{RemoteView, RemoteViewQuery, RemoteViews};
