//! The server over HTTP, on a loopback port: what design documents do, and who may do what.

mod client;
mod filters;
mod protocol;
mod replication;
mod validations;
mod views;
