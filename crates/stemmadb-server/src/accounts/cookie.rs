//! Session cookies: a name, the time of issue, and a MAC of both, keyed with the server's secret and the stored hash of
//! the user's password. A session therefore ends when it times out, when the password changes, and when the user is
//! removed.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The cookie's name, as in CouchDB.
pub(super) const NAME: &str = "AuthSession";

/// A cookie issued at most this many seconds in the future is accepted, since the clock may have been corrected.
const SLACK_SECONDS: u64 = 60;

/// A parsed cookie that is not verified yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionCookie {
    pub(super) name: String,
    issued: u64,
    mac: Vec<u8>,
}

fn mac(secret: &[u8], fingerprint: &str, name: &str, issued: u64) -> Hmac<Sha256> {
    let mut key = secret.to_vec();
    key.extend_from_slice(fingerprint.as_bytes());
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("an HMAC takes keys of any length");
    mac.update(format!("{name}:{issued:X}").as_bytes());
    mac
}

/// A MAC of a text that is no cookie.
pub(super) fn seal(secret: &[u8], text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("an HMAC takes keys of any length");
    // No cookie's text begins like this.
    mac.update(b"::sealed:");
    mac.update(text.as_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
}

/// The value of a cookie issued at `issued`, in seconds since 1970.
pub(super) fn make(secret: &[u8], fingerprint: &str, name: &str, issued: u64) -> String {
    let mut text = format!("{name}:{issued:X}:").into_bytes();
    text.extend_from_slice(&mac(secret, fingerprint, name, issued).finalize().into_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(text)
}

impl SessionCookie {
    /// Parses a cookie's value.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(value.trim_end_matches('=')).ok()?;
        let mut parts = decoded.splitn(3, |byte| *byte == b':');
        let name = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let issued = std::str::from_utf8(parts.next()?).ok()?;
        let issued = u64::from_str_radix(issued, 16).ok()?;
        Some(SessionCookie { name, issued, mac: parts.next()?.to_vec() })
    }

    /// Verifies the cookie at `now`, in seconds since 1970. Returns `None` if it is invalid or expired, otherwise
    /// whether it is to be renewed.
    pub(super) fn verify(&self, secret: &[u8], fingerprint: &str, now: u64, timeout: Duration) -> Option<bool> {
        mac(secret, fingerprint, &self.name, self.issued).verify_slice(&self.mac).ok()?;
        let age = (now + SLACK_SECONDS).checked_sub(self.issued)?.saturating_sub(SLACK_SECONDS);
        (age < timeout.as_secs()).then_some(age * 10 >= timeout.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    const NOW: u64 = 1_000_000_000;

    #[test]
    fn cookie_is_valid_until_its_timeout() {
        let verify = |issued, secret: &[u8], fingerprint| {
            SessionCookie::parse(&make(b"secret", "fingerprint", "ann", issued)).unwrap().verify(
                secret,
                fingerprint,
                NOW,
                HOUR,
            )
        };
        assert_eq!(verify(NOW, b"secret", "fingerprint"), Some(false));
        assert_eq!(verify(NOW - 1800, b"secret", "fingerprint"), Some(true));
        assert_eq!(verify(NOW - 3599, b"secret", "fingerprint"), Some(true));
        assert_eq!(verify(NOW - 3600, b"secret", "fingerprint"), None, "expired");
        assert_eq!(verify(NOW + 60, b"secret", "fingerprint"), Some(false), "the clock was corrected");
        assert_eq!(verify(NOW + 61, b"secret", "fingerprint"), None, "in the future");
        assert_eq!(verify(u64::MAX, b"secret", "fingerprint"), None, "in the future");
        assert_eq!(verify(NOW, b"other", "fingerprint"), None);
        assert_eq!(verify(NOW, b"secret", "another password"), None);
    }

    #[test]
    fn modified_cookie_is_rejected() {
        let text = BASE64_URL_SAFE_NO_PAD.decode(make(b"secret", "fingerprint", "ann", NOW)).unwrap();
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            let claimed = SessionCookie::parse(&BASE64_URL_SAFE_NO_PAD.encode(changed));
            let verified = claimed.and_then(|claimed| claimed.verify(b"secret", "fingerprint", NOW, HOUR));
            assert_eq!(verified, None, "byte {at}");
        }
        for value in ["", "x", "YW5u", "YW5uOjY1", "YW5uOjY1Og", "!"] {
            let verified =
                SessionCookie::parse(value).and_then(|claimed| claimed.verify(b"secret", "fingerprint", NOW, HOUR));
            assert_eq!(verified, None, "{value}");
        }
    }
}
