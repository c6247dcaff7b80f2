//! HTTP tests on a loopback port: protocol, design documents, authentication and authorization, hostile input.

mod auth;
mod client;
mod cves;
mod filters;
mod guide;
mod hostile;
mod introspection;
mod jwt;
mod keys;
mod limits;
mod matrix;
mod node;
mod openapi;
mod patch;
mod protocol;
mod questions;
mod replication;
mod revocation;
mod slow;
mod smuggling;
mod tls;
mod tokens;
mod transact;
mod validations;
mod views;
mod watch;
