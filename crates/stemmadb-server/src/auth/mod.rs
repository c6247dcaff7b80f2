//! Primitives of authentication and authorization: users, roles, database security, passwords, and the checks of hosts
//! and origins.
//!
//! Nothing here reads a database; `accounts` applies these to stored users, tokens and sessions.

mod access;
mod access_rule;
mod origin;
pub(crate) mod password;
mod security;
mod user;

pub use access::Access;
pub(crate) use access::Route;
pub(crate) use access_rule::{Restriction, check_restricted_route, narrowed, readable, refused, write_refused};
pub(crate) use origin::{
    PREFLIGHT, check_host, check_origin, check_page, cors_headers, is_script_request, refuse_if_open,
};
pub(crate) use password::Credential;
pub(crate) use security::Security;
pub(crate) use user::{ADMIN_ROLE, METRICS_ROLE, SERVER_SEAL, SERVER_TOKEN, USER_ID_PREFIX, USERS_DATABASE, User};
