//! Is the password right? Verified passwords are remembered for a short while, and few are verified at once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::lockout::Lockout;
use super::password::Credential;
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
pub(super) struct Logins {
    /// Of this process only.
    key: [u8; 32],
    known: Mutex<HashMap<[u8; 32], Instant>>,
    working: Semaphore,
    waiting: Semaphore,
    lockout: Lockout,
}

impl Logins {
    pub(super) fn new(lockout: Lockout) -> Self {
        let mut key = [0; 32];
        key[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(Uuid::new_v4().as_bytes());
        let (known, working, waiting) = (Mutex::default(), Semaphore::new(AT_ONCE), Semaphore::new(WAITING_MAX));
        Logins { key, known, working, waiting, lockout }
    }

    /// Whether `password` is that of `name`, who has `credential`; none: there is no such user, which takes as long to find out.
    ///
    /// # Errors
    /// 429 if there were too many wrong ones; 503 if very many are logging in.
    pub(super) async fn is_right(
        &self,
        address: IpAddr,
        name: &str,
        password: &str,
        credential: Option<Credential>,
    ) -> Result<bool> {
        self.check_lockout(address, name)?;
        let exists = credential.is_some();
        let credential = credential.unwrap_or_else(Credential::nobody);
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [name, password, &credential.mark()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let hash = *hasher.finalize().as_bytes();
        if self.known.lock().get(&hash).is_some_and(|since| since.elapsed() < REMEMBERED) {
            return Ok(true);
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
        let is_right = blocking(move || Ok(credential.is(&password))).await? && exists;
        if is_right {
            self.lockout.succeed(address, name);
            self.remember(hash);
        } else {
            self.lockout.fail(address, name, Instant::now());
        }
        Ok(is_right)
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
    use super::super::password::tests::hashes_of;
    use super::*;

    /// By what is done, not by the clock: as many hashes, of the same cost, whoever is named.
    #[tokio::test]
    async fn a_name_that_is_nobodys_costs_as_much_as_a_users() {
        let logins = Logins::new(Lockout::new(usize::MAX, Duration::ZERO));
        let address = IpAddr::from([127, 0, 0, 1]);
        let credential = Credential::new("right for ann").unwrap();
        let ask =
            async |name, password, credential| logins.is_right(address, name, password, credential).await.unwrap();
        for _ in 0..2 {
            assert!(!ask("ann", "wrong for ann", Some(credential.clone())).await);
            assert!(!ask("nobody", "wrong for nobody", None).await);
        }
        assert_eq!(hashes_of("wrong for ann"), hashes_of("wrong for nobody"));
        assert_eq!(hashes_of("wrong for ann").len(), 2, "a wrong one is never remembered");
        // Only what was right is not hashed again, and only with the credential that it was right for.
        for _ in 0..2 {
            assert!(ask("ann", "right for ann", Some(credential.clone())).await);
        }
        assert_eq!(hashes_of("right for ann").len(), 2, "when it was set, and once since");
        assert!(!ask("nobody", "right for ann", None).await);
        assert_eq!(hashes_of("right for ann").len(), 3);
    }
}
