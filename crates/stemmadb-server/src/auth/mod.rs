//! Who is it, and may they?

mod security;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::http::request::Parts;
use serde::Serialize;
use subtle::ConstantTimeEq;

use crate::config::Administrator;
use crate::error::{Failure, Result};

pub(crate) use security::Security;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Anybody.
    Anonymous,
    /// Whoever said who they are.
    User,
    /// Members of the database, which are all where none are named; and its administrators.
    Member,
    /// Administrators of the database, and of the server.
    DatabaseAdmin,
    /// Administrators of the server.
    ServerAdmin,
}

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct User {
    /// None: nobody said.
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
}

/// The role of those who may do everything.
pub(crate) const ADMIN_ROLE: &str = "_admin";

impl User {
    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }
}

/// Tells who makes a request.
#[derive(Debug)]
pub(crate) struct Auth {
    administrator: Administrator,
}

impl Auth {
    pub(crate) fn new(administrator: Administrator) -> Self {
        Auth { administrator }
    }

    /// Who makes this request.
    ///
    /// # Errors
    /// 401 if they say who they are, and it is not so.
    pub(crate) fn authenticate(&self, parts: &Parts) -> Result<User> {
        let Some(header) = parts.headers.get(hyper::header::AUTHORIZATION) else { return Ok(User::default()) };
        let wrong = || Failure::unauthorized("Name or password is incorrect.");
        let text = header.to_str().map_err(|_| wrong())?;
        let encoded = text.strip_prefix("Basic ").ok_or_else(wrong)?;
        let decoded = BASE64_STANDARD.decode(encoded.trim()).map_err(|_| wrong())?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
        let (name, password) = decoded.split_once(':').ok_or_else(wrong)?;
        let known = &self.administrator;
        let is_right =
            name.as_bytes().ct_eq(known.name.as_bytes()) & password.as_bytes().ct_eq(known.password.as_bytes());
        match bool::from(is_right) {
            true => Ok(User { name: Some(name.to_owned()), roles: vec![ADMIN_ROLE.to_owned()] }),
            false => Err(wrong()),
        }
    }
}

/// Whether `user` may use a route; `security` is that of the database it is about, if it is about one.
///
/// # Errors
/// 401 if they did not say who they are, 403 if they did and may not.
pub(crate) fn authorize(user: &User, access: Access, security: Option<&Security>) -> Result<()> {
    if user.is_server_admin() {
        return Ok(());
    }
    let is_allowed = match access {
        Access::Anonymous => true,
        Access::User => user.name.is_some(),
        Access::Member => security.is_some_and(|security| security.is_member(user)),
        Access::DatabaseAdmin => security.is_some_and(|security| security.is_admin(user)),
        Access::ServerAdmin => false,
    };
    match (is_allowed, &user.name, access) {
        (true, _, _) => Ok(()),
        (false, None, Access::ServerAdmin) => Err(Failure::unauthorized("You are not a server admin.")),
        (false, None, _) => Err(Failure::unauthorized("You are not authorized to access this db.")),
        (false, Some(_), Access::ServerAdmin) => Err(Failure::forbidden("You are not a server admin.")),
        (false, Some(_), _) => Err(Failure::forbidden("You are not allowed to access this db.")),
    }
}
