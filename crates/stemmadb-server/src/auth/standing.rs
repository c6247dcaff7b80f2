//! May somebody go on with what they began? Feeds last for days: a token that is taken back, another password, a user who is gone or has fewer
//! roles, a database that is others' now end them, too.

use std::sync::Arc;
use std::time::Duration;

use super::{Claim, permit};
use crate::error::{Failure, Result};
use crate::http::{Parameters, State};
use crate::routes::Route;

/// How often it is looked at, and so how long a feed goes on at most.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// What somebody has shown at the beginning, and what it was for.
pub(crate) struct Standing {
    pub(crate) state: Arc<State>,
    pub(crate) claim: Claim,
    pub(crate) route: &'static Route,
    pub(crate) parameters: Parameters,
}

impl Standing {
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
        let Standing { state, claim, route, parameters } = self;
        match state.auth.claimed(&state.directory, claim).await {
            Ok(Some(user)) => permit(&state.directory, route, parameters, &user).await.is_ok(),
            Ok(None) => false,
            // What can't be read now, for want of a disk, is looked at again.
            Err(_) => true,
        }
    }
}
