//! Users, their roles, and the names of the database and documents that store them.

use hyper::header::HeaderName;
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

/// The header by which a server of a cluster asks another one for itself.
pub(crate) const SERVER_SEAL: HeaderName = HeaderName::from_static("x-stemma-server");
/// The beginning of a token of the wire protocol that is the value of [`SERVER_SEAL`].
pub(crate) const SERVER_TOKEN: &str = "server:";
/// [`User::how`] of another server of the cluster.
const SERVER_METHOD: &str = "server";

impl User {
    /// Another server of the cluster, which has the rights of an administrator.
    pub(crate) fn cluster_server() -> Self {
        User { name: Some("_server".to_owned()), roles: vec![ADMIN_ROLE.to_owned()], how: Some(SERVER_METHOD) }
    }

    pub(crate) fn is_cluster_server(&self) -> bool {
        self.how == Some(SERVER_METHOD)
    }

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
