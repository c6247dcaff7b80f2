//! Request handlers, one module per group of routes: each handler parses its parameters, calls the library and prints
//! the response.

pub(crate) mod aggregate;
pub(crate) mod attachment;
pub(crate) mod bulk;
pub(crate) mod bulk_get;
pub(crate) mod changes;
pub(crate) mod dashboard;
pub(crate) mod database;
pub(crate) mod document;
mod function_response;
pub(crate) mod introspection;
pub(crate) mod keys;
pub(crate) mod list;
pub(crate) mod listing;
pub(crate) mod local_docs;
pub(crate) mod mango;
pub(crate) mod mango_index;
mod multipart;
pub(crate) mod node;
pub(crate) mod node_config;
pub(crate) mod partition;
pub(crate) mod patch;
pub(crate) mod prepared;
pub(crate) mod replicate;
pub(crate) mod rewrite;
mod row_parameters;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod token;
pub(crate) mod transact;
pub(crate) mod unsupported;
pub(crate) mod update;
pub(crate) mod updates;
pub(crate) mod view;
mod view_query;
pub(crate) mod watch;
