//! Wrong passwords cost time: after a few of one name from one address, that name has to wait there, twice as long each time.
//!
//! Who is there and who is not makes no difference. Sessions and tokens are not looked at here, so nobody is locked out of those. What is
//! remembered is bounded: beyond that, the address and name that failed longest ago are forgotten.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::http::client_network;

/// How many addresses and names are remembered.
const REMEMBERED_MAX: usize = 8192;
/// The first wait.
const WAIT: Duration = Duration::from_secs(1);

/// What identifies an address and a name: a hash, of the same size for all names.
type Key = [u8; 32];

pub(super) struct Lockout {
    /// Wrong passwords that cost nothing.
    tries: usize,
    wait_max: Duration,
    failed: Mutex<HashMap<Key, Failed>>,
}

#[derive(Clone, Copy)]
struct Failed {
    count: usize,
    last: Instant,
}

impl Lockout {
    pub(super) fn new(tries: usize, wait_max: Duration) -> Self {
        Lockout { tries, wait_max, failed: Mutex::default() }
    }

    /// How long this name still has to wait at this address.
    pub(super) fn wait(&self, address: IpAddr, name: &str, now: Instant) -> Option<Duration> {
        let failed = *self.failed.lock().get(&key(address, name))?;
        let wait = self.wait_after(failed.count)?;
        wait.checked_sub(now.saturating_duration_since(failed.last)).filter(|left| !left.is_zero())
    }

    /// Notes a wrong password.
    pub(super) fn fail(&self, address: IpAddr, name: &str, now: Instant) {
        let mut failed = self.failed.lock();
        let key = key(address, name);
        if failed.len() >= REMEMBERED_MAX && !failed.contains_key(&key) {
            self.forget(&mut failed, now);
        }
        let entry = failed.entry(key).or_insert(Failed { count: 0, last: now });
        // Who has let twice the longest wait pass begins anew.
        if now.saturating_duration_since(entry.last) > self.wait_max * 2 {
            entry.count = 0;
        }
        *entry = Failed { count: entry.count + 1, last: now };
    }

    /// Notes that the password was right.
    pub(super) fn succeed(&self, address: IpAddr, name: &str) {
        self.failed.lock().remove(&key(address, name));
    }

    /// How long is waited after so many wrong passwords.
    fn wait_after(&self, count: usize) -> Option<Duration> {
        let doublings = u32::try_from(count.checked_sub(self.tries)?).unwrap_or(u32::MAX).min(20);
        Some((WAIT * 2_u32.pow(doublings)).min(self.wait_max))
    }

    /// Makes room: all that are over, else the one that failed longest ago.
    fn forget(&self, failed: &mut HashMap<Key, Failed>, now: Instant) {
        failed.retain(|_, failed| now.saturating_duration_since(failed.last) <= self.wait_max * 2);
        if failed.len() >= REMEMBERED_MAX {
            let oldest = failed.iter().min_by_key(|(_, failed)| failed.last).map(|(key, _)| *key);
            oldest.map(|key| failed.remove(&key));
        }
    }
}

fn key(address: IpAddr, name: &str) -> Key {
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

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_wrong_password_doubles_the_wait_up_to_a_bound() {
        let lockout = Lockout::new(3, SECOND * 60);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..12 {
            assert_eq!(lockout.wait(HERE, "ann", now), None);
            lockout.fail(HERE, "ann", now);
            let wait = lockout.wait(HERE, "ann", now).unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait;
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        lockout.fail(HERE, "ann", now);
        assert_eq!(lockout.wait(HERE, "ann", now + SECOND * 59), Some(SECOND));
        for (address, name) in [(HERE, "eve"), (IpAddr::from([127, 0, 0, 2]), "ann")] {
            assert_eq!(lockout.wait(address, name, now), None, "others don't wait");
        }
        lockout.succeed(HERE, "ann");
        assert_eq!(lockout.wait(HERE, "ann", now), None);
    }

    #[test]
    fn it_is_forgotten_after_a_while() {
        let lockout = Lockout::new(1, SECOND * 60);
        let start = Instant::now();
        for _ in 0..10 {
            lockout.fail(HERE, "ann", start);
        }
        let later = start + SECOND * 121;
        lockout.fail(HERE, "ann", later);
        assert_eq!(lockout.wait(HERE, "ann", later), Some(SECOND));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let lockout = Lockout::new(1, SECOND * 60);
        let start = Instant::now();
        lockout.fail(HERE, "first", start);
        for at in 0..REMEMBERED_MAX {
            lockout.fail(HERE, &format!("name {at}"), start + SECOND);
        }
        assert_eq!(lockout.failed.lock().len(), REMEMBERED_MAX);
        assert_eq!(lockout.wait(HERE, "first", start + SECOND / 2), None, "the one longest ago is forgotten");
        assert!(lockout.wait(HERE, "name 0", start + SECOND).is_some());
        lockout.fail(HERE, "another", start + SECOND * 200);
        assert_eq!(lockout.failed.lock().len(), 1, "those that are over are forgotten");
    }
}
