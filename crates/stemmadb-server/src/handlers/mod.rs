//! What does each route do? One module a topic; each handler reads its parameters, asks the library, and prints what it says.

pub(crate) mod aggregate;
pub(crate) mod attachment;
pub(crate) mod bulk;
pub(crate) mod bulk_get;
pub(crate) mod changes;
pub(crate) mod dashboard;
pub(crate) mod database;
pub(crate) mod document;
pub(crate) mod insight;
pub(crate) mod listing;
pub(crate) mod local_docs;
pub(crate) mod mango;
mod multipart;
pub(crate) mod node;
pub(crate) mod node_config;
pub(crate) mod prepared;
pub(crate) mod refused;
pub(crate) mod replicate;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod token;
pub(crate) mod transact;
pub(crate) mod update;
pub(crate) mod updates;
pub(crate) mod view;
pub(crate) mod watch;
