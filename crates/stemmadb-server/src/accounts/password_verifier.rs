//! Is the password right? Verified passwords are remembered for a short while, and few are verified at once.

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
use crate::directory::Served;
use crate::error::{Failure, Result};
use crate::http::blocking;

/// How long a verified password is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many are.
const REMEMBERED_MAX: usize = 1024;
/// How many are verified at once: the rest waits, and other requests have the rest of the processors.
const AT_ONCE: usize = 2;
/// How many wait at most.
const WAITING_MAX: usize = 256;

/// Verifies passwords.
pub(super) struct PasswordVerifier {
    /// Of this process only.
    key: [u8; 32],
    known: Mutex<HashMap<[u8; 32], Instant>>,
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
        let (known, working, waiting) = (Mutex::default(), Semaphore::new(AT_ONCE), Semaphore::new(WAITING_MAX));
        PasswordVerifier { key, known, working, waiting, lockout, highest_costs: Arc::default() }
    }

    /// The mark of `credential`, that of `name`, if `password` is right for it; none: there is no such user, which takes as long to find out.
    /// `users` opens the database of users, if there is one; what was right lately needs it not.
    ///
    /// # Errors
    /// 429 if there were too many wrong ones; 503 if very many are logging in.
    pub(super) async fn verify(
        &self,
        address: IpAddr,
        name: &str,
        password: &str,
        credential: Option<Credential>,
        users: impl Future<Output = Result<Option<Arc<Served>>>>,
    ) -> Result<Option<String>> {
        self.check_lockout(address, name)?;
        let mark = credential.as_ref().map(Credential::mark);
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [name, password, mark.as_deref().unwrap_or_default()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let hash = *hasher.finalize().as_bytes();
        if self.known.lock().get(&hash).is_some_and(|since| since.elapsed() < REMEMBERED) {
            return Ok(mark);
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
        // Those who waited with this one may have been wrong.
        self.check_lockout(address, name)?;
        let password = password.to_owned();
        let (highest_costs, users) = (self.highest_costs.clone(), users.await?);
        let is_right = blocking(move || {
            let is_right = credential.as_ref().is_some_and(|credential| credential.is(&password));
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
        Ok(mark.filter(|_| is_right))
    }

    fn check_lockout(&self, address: IpAddr, name: &str) -> Result<()> {
        match self.lockout.wait(address, name, Instant::now()) {
            None => Ok(()),
            Some(wait) => Err(Failure::too_many("Too many wrong passwords; wait a while.", wait)),
        }
    }

    fn remember(&self, hash: [u8; 32]) {
        let mut known = self.known.lock();
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, since| since.elapsed() < REMEMBERED);
        }
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(hash, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::password::Costs;
    use crate::auth::password::tests::{credential_of, work_of};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn verifier() -> PasswordVerifier {
        PasswordVerifier::new(Lockout::new(usize::MAX, Duration::ZERO))
    }

    async fn ask(verifier: &PasswordVerifier, name: &str, password: &str, credential: Option<&Credential>) -> bool {
        let users = std::future::ready(Ok(None));
        verifier.verify(HERE, name, password, credential.cloned(), users).await.unwrap().is_some()
    }

    /// By what is done, not by the clock: as much work, whoever is named.
    #[tokio::test]
    async fn a_name_that_is_nobodys_costs_as_much_as_a_users() {
        let verifier = verifier();
        let credential = Credential::new("right for ann").unwrap();
        for _ in 0..2 {
            assert!(!ask(&verifier, "ann", "wrong for ann", Some(&credential)).await);
            assert!(!ask(&verifier, "nobody", "wrong for nobody", None).await);
        }
        assert_eq!(work_of("wrong for ann"), work_of("wrong for nobody"));
        let passes = |password| work_of(password).values().sum::<u32>();
        let once = passes("wrong for ann") / 2;
        assert!(once > 0, "nothing was hashed");
        // Only what was right is not hashed again, and only with the credential that it was right for.
        for _ in 0..2 {
            assert!(ask(&verifier, "ann", "right for ann", Some(&credential)).await);
        }
        assert_eq!(passes("right for ann"), 2 * once, "when it was set, and once since");
        assert!(!ask(&verifier, "nobody", "right for ann", None).await);
        assert_eq!(passes("right for ann"), 3 * once);
    }

    /// Users who were brought from CouchDB are verified by its schemes, each with iterations of their own: a server that did only that told by its
    /// time who is one of them, and who is nobody.
    #[tokio::test]
    async fn users_of_couchdb_cost_as_much_as_others_and_nobody() {
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
        users.iter().filter_map(|(_, credential)| credential.as_ref()).for_each(|credential| costs.note(credential));
        *verifier.highest_costs.lock() = HighestCosts::of(costs);
        let mut works = Vec::new();
        for (name, credential) in &users {
            let wrong = format!("wrong for {name} among those of CouchDB");
            assert!(!ask(&verifier, name, &wrong, credential.as_ref()).await);
            works.push((name, work_of(&wrong)));
        }
        for (name, work) in &works {
            assert_eq!(*work, works[0].1, "{name} costs something else than {}", works[0].0);
        }
        assert_eq!((works[0].1["sha1"], works[0].1["sha256"]), (20, 90), "as much as the highest_costs of each");
    }
}
