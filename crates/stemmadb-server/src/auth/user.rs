//! Users, their roles, and the names of the database and documents that store them.

use serde::Serialize;

/// The database of users.
pub(crate) const USERS_DATABASE: &str = "_users";
/// The prefix of the ids of users' documents.
pub(crate) const USER_ID_PREFIX: &str = "org.couchdb.user:";

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct User {
    /// `None` for an anonymous request.
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
    /// The authentication method.
    #[serde(skip)]
    pub(crate) how: Option<&'static str>,
}

/// The role that may read metrics. A user's document can't grant it.
pub(crate) const METRICS_ROLE: &str = "_metrics";
/// The role of server administrators.
pub(crate) const ADMIN_ROLE: &str = "_admin";

impl User {
    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }

    /// Runs writes, with the user as their author.
    pub(crate) fn writing<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.name {
            Some(name) => stemmadb::past::writing_as(name, write),
            None => write(),
        }
    }
}
