//! Users: their names and roles, and the names of the database that they are stored in.

use serde::Serialize;

/// The database of users.
pub(crate) const USERS_DATABASE: &str = "_users";
/// The prefix of the ids of users' documents.
pub(crate) const USER_ID_PREFIX: &str = "org.couchdb.user:";

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct User {
    /// None: nobody said.
    pub(crate) name: Option<String>,
    pub(crate) roles: Vec<String>,
    /// How they said who they are.
    #[serde(skip)]
    pub(crate) how: Option<&'static str>,
}

/// The role of those who may look at numbers; a user's document can't give it.
pub(crate) const METRICS_ROLE: &str = "_metrics";
/// The role of those who may do everything.
pub(crate) const ADMIN_ROLE: &str = "_admin";

impl User {
    pub(crate) fn is_server_admin(&self) -> bool {
        self.roles.iter().any(|role| role == ADMIN_ROLE)
    }
}
