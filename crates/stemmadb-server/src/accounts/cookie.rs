//! Session cookies: a name, when it was given, and a MAC of both, made with the server's secret and what the user's password is kept as.
//! So a session ends when it is over, when the password changes, and when the user is gone.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The cookie's name, as in CouchDB.
pub(super) const NAME: &str = "AuthSession";

/// One that was given so many seconds after now is taken all the same: a clock may be corrected.
const SLACK_SECONDS: u64 = 60;

/// A cookie as it was sent, not verified yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionCookie {
    pub(super) name: String,
    given: u64,
    mac: Vec<u8>,
}

fn mac(secret: &[u8], mark: &str, name: &str, given: u64) -> Hmac<Sha256> {
    let mut key = secret.to_vec();
    key.extend_from_slice(mark.as_bytes());
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("an HMAC takes keys of any length");
    mac.update(format!("{name}:{given:X}").as_bytes());
    mac
}

/// The value of a cookie that is given now, in seconds since 1970.
pub(super) fn make(secret: &[u8], mark: &str, name: &str, given: u64) -> String {
    let mut text = format!("{name}:{given:X}:").into_bytes();
    text.extend_from_slice(&mac(secret, mark, name, given).finalize().into_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(text)
}

impl SessionCookie {
    /// What a cookie's value claims.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(value.trim_end_matches('=')).ok()?;
        let mut parts = decoded.splitn(3, |byte| *byte == b':');
        let name = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let given = std::str::from_utf8(parts.next()?).ok()?;
        let given = u64::from_str_radix(given, 16).ok()?;
        Some(SessionCookie { name, given, mac: parts.next()?.to_vec() })
    }

    /// Whether it is true and not over now, in seconds since 1970; then, whether it is time for another.
    pub(super) fn verify(&self, secret: &[u8], mark: &str, now: u64, timeout: Duration) -> Option<bool> {
        mac(secret, mark, &self.name, self.given).verify_slice(&self.mac).ok()?;
        let age = (now + SLACK_SECONDS).checked_sub(self.given)?.saturating_sub(SLACK_SECONDS);
        (age < timeout.as_secs()).then_some(age * 10 >= timeout.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    const NOW: u64 = 1_000_000_000;

    #[test]
    fn a_cookie_is_true_until_it_is_over() {
        let verify = |given, secret: &[u8], mark| {
            SessionCookie::parse(&make(b"secret", "mark", "ann", given)).unwrap().verify(secret, mark, NOW, HOUR)
        };
        assert_eq!(verify(NOW, b"secret", "mark"), Some(false));
        assert_eq!(verify(NOW - 1800, b"secret", "mark"), Some(true));
        assert_eq!(verify(NOW - 3599, b"secret", "mark"), Some(true));
        assert_eq!(verify(NOW - 3600, b"secret", "mark"), None, "it is over");
        assert_eq!(verify(NOW + 60, b"secret", "mark"), Some(false), "a clock was corrected");
        assert_eq!(verify(NOW + 61, b"secret", "mark"), None, "of the future");
        assert_eq!(verify(u64::MAX, b"secret", "mark"), None, "of the future");
        assert_eq!(verify(NOW, b"other", "mark"), None);
        assert_eq!(verify(NOW, b"secret", "another password"), None);
    }

    #[test]
    fn a_cookie_that_was_tampered_with_is_none() {
        let text = BASE64_URL_SAFE_NO_PAD.decode(make(b"secret", "mark", "ann", NOW)).unwrap();
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            let claimed = SessionCookie::parse(&BASE64_URL_SAFE_NO_PAD.encode(changed));
            let verified = claimed.and_then(|claimed| claimed.verify(b"secret", "mark", NOW, HOUR));
            assert_eq!(verified, None, "byte {at}");
        }
        for value in ["", "x", "YW5u", "YW5uOjY1", "YW5uOjY1Og", "!"] {
            let verified = SessionCookie::parse(value).and_then(|claimed| claimed.verify(b"secret", "mark", NOW, HOUR));
            assert_eq!(verified, None, "{value}");
        }
    }
}
