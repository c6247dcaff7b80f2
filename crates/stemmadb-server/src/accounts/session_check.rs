//! Periodic checks that a client may still use a route. Feeds last for days; they end when a token is revoked, a
//! password is changed, a user or one of its roles is removed, or the database's security changes.

use std::sync::Arc;
use std::time::Duration;

use super::authenticator::Authenticator;
use super::identity::AuthProof;
use crate::auth::{Restriction, Route};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::Parameters;

/// The interval of checks, which is also the longest time that a feed outlives a revocation.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The proof that a request was authenticated with, and the route that it uses.
pub(crate) struct SessionCheck {
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) proof: AuthProof,
    pub(crate) route: &'static Route,
    pub(crate) parameters: Parameters,
    /// The restriction that the request applies.
    pub(crate) restriction: Option<Restriction>,
}

impl SessionCheck {
    /// Runs `work` while access is allowed.
    ///
    /// # Errors
    /// 403 as soon as access is no longer allowed.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            done = work => Ok(done),
            () = self.revoked() => Err(Self::refusal()),
        }
    }

    /// The error for a client whose access was revoked.
    pub(crate) fn refusal() -> Failure {
        Failure::forbidden("You are not allowed to access this db any more.")
    }

    /// Waits until access is no longer allowed.
    async fn revoked(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if !self.is_still_allowed().await {
                return;
            }
        }
    }

    async fn is_still_allowed(&self) -> bool {
        let SessionCheck { authenticator, directory, proof, route, parameters, restriction } = self;
        match authenticator.reverify(directory, proof).await {
            Ok(Some(user)) => {
                // A request applies the restriction that it began with.
                let authorized = authenticator.authorize(directory, route, parameters, &user).await;
                authorized.is_ok_and(|current| current == *restriction)
            }
            Ok(None) => false,
            // A failure to check, such as a disk error, does not end the feed; the check is repeated.
            Err(_) => true,
        }
    }
}
