//! Lockout after wrong passwords: after a few of them for one name from one address, that name has to wait there, twice
//! as long each time.
//!
//! Names without a user are treated alike. Sessions and tokens are not affected. The number of remembered pairs is
//! bounded; beyond it, the address and name that failed longest ago are forgotten.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::http::client_network;

/// The maximum number of remembered pairs of address and name.
const REMEMBERED_MAX: usize = 8192;
/// The first wait.
const WAIT: Duration = Duration::from_secs(1);

/// The hash of an address and a name; the same size for all names.
type LockoutKey = [u8; 32];

pub(super) struct Lockout {
    /// The number of wrong passwords before the first wait.
    tries: usize,
    wait_max: Duration,
    failed: Mutex<HashMap<LockoutKey, FailedLogins>>,
}

#[derive(Clone, Copy)]
struct FailedLogins {
    count: usize,
    last: Instant,
}

impl Lockout {
    pub(super) fn new(tries: usize, wait_max: Duration) -> Self {
        Lockout { tries, wait_max, failed: Mutex::default() }
    }

    /// Returns how long this name must still wait at this address.
    pub(super) fn wait(&self, address: IpAddr, name: &str, now: Instant) -> Option<Duration> {
        let failed = *self.failed.lock().get(&key(address, name))?;
        let wait = self.wait_after(failed.count)?;
        wait.checked_sub(now.saturating_duration_since(failed.last)).filter(|left| !left.is_zero())
    }

    /// Records a wrong password.
    pub(super) fn fail(&self, address: IpAddr, name: &str, now: Instant) {
        let mut failed = self.failed.lock();
        let key = key(address, name);
        if failed.len() >= REMEMBERED_MAX && !failed.contains_key(&key) {
            self.evict(&mut failed, now);
        }
        let entry = failed.entry(key).or_insert(FailedLogins { count: 0, last: now });
        // After twice the longest wait the count starts over.
        if now.saturating_duration_since(entry.last) > self.wait_max * 2 {
            entry.count = 0;
        }
        *entry = FailedLogins { count: entry.count + 1, last: now };
    }

    /// Records a correct password.
    pub(super) fn succeed(&self, address: IpAddr, name: &str) {
        self.failed.lock().remove(&key(address, name));
    }

    /// The wait after `count` wrong passwords.
    fn wait_after(&self, count: usize) -> Option<Duration> {
        let doublings = u32::try_from(count.checked_sub(self.tries)?).unwrap_or(u32::MAX).min(20);
        Some((WAIT * 2_u32.pow(doublings)).min(self.wait_max))
    }

    /// Frees at least one entry: removes all that have expired, or else the one that failed longest ago.
    fn evict(&self, failed: &mut HashMap<LockoutKey, FailedLogins>, now: Instant) {
        failed.retain(|_, failed| now.saturating_duration_since(failed.last) <= self.wait_max * 2);
        if failed.len() >= REMEMBERED_MAX {
            let oldest = failed.iter().min_by_key(|(_, failed)| failed.last).map(|(key, _)| *key);
            oldest.map(|key| failed.remove(&key));
        }
    }
}

fn key(address: IpAddr, name: &str) -> LockoutKey {
    let mut hasher = blake3::Hasher::new();
    match client_network(address) {
        IpAddr::V4(address) => hasher.update(&address.octets()),
        IpAddr::V6(address) => hasher.update(&address.octets()),
    };
    hasher.update(name.as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_wrong_password_doubles_the_wait_up_to_a_bound() {
        let lockout = Lockout::new(3, SECOND * 60);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert_eq!(lockout.wait(ADDRESS, "ann", now), None);
            lockout.fail(ADDRESS, "ann", now);
            let wait = lockout.wait(ADDRESS, "ann", now).unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait;
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        lockout.fail(ADDRESS, "ann", now);
        assert_eq!(lockout.wait(ADDRESS, "ann", now + SECOND * 59), Some(SECOND));
        for (address, name) in [(ADDRESS, "eve"), (IpAddr::from([127, 0, 0, 2]), "ann")] {
            assert_eq!(lockout.wait(address, name, now), None, "others don't wait");
        }
        lockout.succeed(ADDRESS, "ann");
        assert_eq!(lockout.wait(ADDRESS, "ann", now), None);
    }

    #[test]
    fn failures_expire() {
        let lockout = Lockout::new(1, SECOND * 60);
        let start = Instant::now();
        for _ in 0..10 {
            lockout.fail(ADDRESS, "ann", start);
        }
        let later = start + SECOND * 121;
        lockout.fail(ADDRESS, "ann", later);
        assert_eq!(lockout.wait(ADDRESS, "ann", later), Some(SECOND));
    }

    #[test]
    fn number_of_entries_is_bounded() {
        let lockout = Lockout::new(1, SECOND * 60);
        let start = Instant::now();
        lockout.fail(ADDRESS, "first", start);
        for at in 0..REMEMBERED_MAX {
            lockout.fail(ADDRESS, &format!("name {at}"), start + SECOND);
        }
        assert_eq!(lockout.failed.lock().len(), REMEMBERED_MAX);
        assert_eq!(lockout.wait(ADDRESS, "first", start + SECOND / 2), None, "the oldest entry is evicted");
        assert!(lockout.wait(ADDRESS, "name 0", start + SECOND).is_some());
        lockout.fail(ADDRESS, "another", start + SECOND * 200);
        assert_eq!(lockout.failed.lock().len(), 1, "expired entries are removed");
    }
}
