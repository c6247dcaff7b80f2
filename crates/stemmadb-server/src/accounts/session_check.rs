//! Periodic checks that a client may still use a route. Feeds last for days: revoking a token, changing a password, removing a user or one of
//! its roles, and changing the database's security end them too.

use std::sync::Arc;
use std::time::Duration;

use super::authenticator::Authenticator;
use super::authorize::authorize;
use super::identity::Claim;
use crate::auth::Route;
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::Parameters;

/// How often it is looked at, and so how long a feed goes on at most.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// What somebody has shown at the beginning, and what it was for.
pub(crate) struct SessionCheck {
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) claim: Claim,
    pub(crate) route: &'static Route,
    pub(crate) parameters: Parameters,
}

impl SessionCheck {
    /// Does what they began, until it is over.
    ///
    /// # Errors
    /// 403 as soon as it holds no more.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            done = work => Ok(done),
            () = self.lost() => Err(Self::refusal()),
        }
    }

    /// What is told whoever may not go on.
    pub(crate) fn refusal() -> Failure {
        Failure::forbidden("You are not allowed to access this db any more.")
    }

    /// Waits until it holds no more.
    async fn lost(&self) {
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            if !self.holds().await {
                return;
            }
        }
    }

    async fn holds(&self) -> bool {
        let SessionCheck { authenticator, directory, claim, route, parameters } = self;
        match authenticator.claimed(directory, claim).await {
            Ok(Some(user)) => authorize(directory, route, parameters, &user).await.is_ok(),
            Ok(None) => false,
            // What can't be read now, for want of a disk, is looked at again.
            Err(_) => true,
        }
    }
}
