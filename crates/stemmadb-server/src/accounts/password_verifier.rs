//! Password verification, with a short-lived cache of verified passwords and a limit on concurrent hashing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::lockout::Lockout;
use super::users::HighestCosts;
use crate::auth::Credential;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::blocking;

/// How long a verified password is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The maximum number of remembered passwords.
const REMEMBERED_MAX: usize = 1024;
/// The number of concurrent verifications. Others wait, so that processors stay free for other requests.
const VERIFICATIONS_MAX: usize = 2;
/// The maximum number of waiting verifications.
const WAITING_MAX: usize = 256;

/// Verifies passwords.
pub(super) struct PasswordVerifier {
    /// The key of the hashes in `verified`, unique to this process.
    key: [u8; 32],
    verified: Mutex<HashMap<[u8; 32], Instant>>,
    working: Semaphore,
    waiting: Semaphore,
    lockout: Lockout,
    highest_costs: Arc<Mutex<HighestCosts>>,
}

impl PasswordVerifier {
    pub(super) fn new(lockout: Lockout) -> Self {
        let mut key = [0; 32];
        key[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(Uuid::new_v4().as_bytes());
        let (verified, working, waiting) =
            (Mutex::default(), Semaphore::new(VERIFICATIONS_MAX), Semaphore::new(WAITING_MAX));
        PasswordVerifier { key, verified, working, waiting, lockout, highest_costs: Arc::default() }
    }

    /// Verifies `password` against the `credential` of `name`, and returns the credential's fingerprint if it is
    /// correct. `None` as credential: there is no such user, which takes as long to reject. `users` opens the database
    /// of users, if there is one; a remembered password does not need it.
    ///
    /// # Errors
    /// 429 after too many wrong passwords; 503 if too many verifications are waiting.
    pub(super) async fn verify(
        &self,
        address: IpAddr,
        name: &str,
        password: &str,
        credential: Option<Credential>,
        users: impl Future<Output = Result<Option<Arc<ServedDatabase>>>>,
    ) -> Result<Option<String>> {
        self.check_lockout(address, name)?;
        let fingerprint = credential.as_ref().map(Credential::fingerprint);
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [name, password, fingerprint.as_deref().unwrap_or_default()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let hash = *hasher.finalize().as_bytes();
        if self.verified.lock().get(&hash).is_some_and(|since| since.elapsed() < REMEMBERED_FOR) {
            return Ok(fingerprint);
        }
        let busy = || {
            Failure::new(
                hyper::StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable",
                "Too many are logging in; try again.",
            )
        };
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let _working = self.working.acquire().await.map_err(|_| busy())?;
        // Attempts that waited together with this one may have failed since.
        self.check_lockout(address, name)?;
        let password = password.to_owned();
        let (highest_costs, users) = (self.highest_costs.clone(), users.await?);
        let is_right = blocking(move || {
            let is_right = credential.as_ref().is_some_and(|credential| credential.matches(&password));
            if !is_right {
                let costs = HighestCosts::now(&highest_costs, users)?;
                costs.spend_rest(credential.as_ref(), &password);
            }
            Ok(is_right)
        });
        let is_right = is_right.await?;
        if is_right {
            self.lockout.succeed(address, name);
            self.remember(hash);
        } else {
            self.lockout.fail(address, name, Instant::now());
        }
        Ok(fingerprint.filter(|_| is_right))
    }

    fn check_lockout(&self, address: IpAddr, name: &str) -> Result<()> {
        match self.lockout.wait(address, name, Instant::now()) {
            None => Ok(()),
            Some(wait) => Err(Failure::too_many("Too many wrong passwords; wait a while.", wait)),
        }
    }

    fn remember(&self, hash: [u8; 32]) {
        let mut verified = self.verified.lock();
        if verified.len() >= REMEMBERED_MAX {
            verified.retain(|_, since| since.elapsed() < REMEMBERED_FOR);
        }
        if verified.len() >= REMEMBERED_MAX {
            verified.clear();
        }
        verified.insert(hash, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::password::Costs;
    use crate::auth::password::tests::{credential_of, work_of};

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn verifier() -> PasswordVerifier {
        PasswordVerifier::new(Lockout::new(usize::MAX, Duration::ZERO))
    }

    async fn is_accepted(
        verifier: &PasswordVerifier,
        name: &str,
        password: &str,
        credential: Option<&Credential>,
    ) -> bool {
        let users = std::future::ready(Ok(None));
        verifier.verify(ADDRESS, name, password, credential.cloned(), users).await.unwrap().is_some()
    }

    /// Counts the hashing work instead of measuring time: it must be equal for existing and unknown names.
    #[tokio::test]
    async fn unknown_name_costs_as_much_as_a_user() {
        let verifier = verifier();
        let credential = Credential::new("right for ann").unwrap();
        for _ in 0..2 {
            assert!(!is_accepted(&verifier, "ann", "wrong for ann", Some(&credential)).await);
            assert!(!is_accepted(&verifier, "nobody", "wrong for nobody", None).await);
        }
        assert_eq!(work_of("wrong for ann"), work_of("wrong for nobody"));
        let passes = |password| work_of(password).values().sum::<u32>();
        let once = passes("wrong for ann") / 2;
        assert!(once > 0, "nothing was hashed");
        // Only a correct password is cached, and only for its credential.
        for _ in 0..2 {
            assert!(is_accepted(&verifier, "ann", "right for ann", Some(&credential)).await);
        }
        assert_eq!(passes("right for ann"), 2 * once, "when it was set, and once since");
        assert!(!is_accepted(&verifier, "nobody", "right for ann", None).await);
        assert_eq!(passes("right for ann"), 3 * once);
    }

    /// Users imported from CouchDB are verified by its schemes, each with its own number of iterations. A server that
    /// did only that work would reveal by its response time which names exist.
    #[tokio::test]
    async fn users_of_couchdb_cost_as_much_as_others_and_unknown_names() {
        let verifier = verifier();
        let users = [
            ("old", Some(credential_of("sha", 10, 20))),
            ("long", Some(credential_of("sha", 10, 40))),
            ("new", Some(credential_of("sha256", 60, 32))),
            ("newest", Some(credential_of("sha256", 90, 32))),
            ("ours", Some(Credential::new("another of ours").unwrap())),
            ("nobody", None),
        ];
        let mut costs = Costs::default();
        users.iter().filter_map(|(_, credential)| credential.as_ref()).for_each(|credential| costs.include(credential));
        *verifier.highest_costs.lock() = HighestCosts::with_costs(costs);
        let mut works = Vec::new();
        for (name, credential) in &users {
            let wrong = format!("wrong for {name} among those of CouchDB");
            assert!(!is_accepted(&verifier, name, &wrong, credential.as_ref()).await);
            works.push((name, work_of(&wrong)));
        }
        for (name, work) in &works {
            assert_eq!(*work, works[0].1, "{name} does not cost the same as {}", works[0].0);
        }
        assert_eq!((works[0].1["sha1"], works[0].1["sha256"]), (20, 90), "the highest costs of each scheme");
    }
}
