//! Stored accounts (administrators, users, API tokens, sessions), and the authentication and authorization of requests
//! with them.

mod administrators;
mod authenticator;
mod authorize;
mod clock;
mod cookie;
mod identity;
mod jwt;
mod lockout;
mod password_verifier;
mod proxy;
mod roles;
mod session_check;
mod signatures;
mod token;
mod users;

pub(crate) use authenticator::Authenticator;
pub(crate) use identity::{AuthProof, Identity};
pub(crate) use roles::Role;
pub(crate) use session_check::SessionCheck;
pub(crate) use token::TokenRequest;
