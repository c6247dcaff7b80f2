//! Password hashing and verification.
//!
//! New passwords are hashed with Argon2id. CouchDB's hashes (PBKDF2 with SHA-1 or SHA-256) are verified too, so that
//! users can be imported. A user's document determines the cost of its verification, so the accepted costs are limited.

use argon2::{Algorithm, Argon2, Params, Version};
use sha1::Sha1;
use sha2::Sha256;
use stemmadb::{Object, Value};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::error::{Failure, Result};

/// The maximum length of a password. Longer ones would only cost time.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;

/// OWASP's first recommendation: 19 MiB, two passes.
const MEMORY_KIB: u32 = 19_456;
const PASSES: u32 = 2;
const MEMORY_KIB_MAX: u32 = 256 << 10;
const PASSES_MAX: u32 = 16;
/// CouchDB's default is 600,000.
const ITERATIONS_MAX: u32 = 2_000_000;
const KEY_BYTES: usize = 32;

/// A password hash with its scheme and salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    scheme: Scheme,
    salt: String,
    derived: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Argon2id { memory_kib: u32, passes: u32 },
    Pbkdf2Sha1 { iterations: u32 },
    Pbkdf2Sha256 { iterations: u32 },
}

impl Credential {
    /// Hashes a new password. Takes some tens of milliseconds.
    ///
    /// # Errors
    /// 400 if it is too long.
    pub(crate) fn new(password: &str) -> Result<Self> {
        if password.len() > PASSWORD_BYTES_MAX {
            let reason = format!("a password has at most {PASSWORD_BYTES_MAX} bytes");
            return Err(Failure::bad_request(reason));
        }
        let scheme = Scheme::Argon2id { memory_kib: MEMORY_KIB, passes: PASSES };
        let salt = Uuid::new_v4().simple().to_string();
        let derived = scheme.derive(password, &salt, KEY_BYTES);
        let derived = derived.ok_or_else(|| Failure::internal("a password could not be hashed"))?;
        Ok(Credential { scheme, salt, derived })
    }

    /// Reads the credential of a user's document. `None` if there is none, or it is malformed or too costly.
    pub(crate) fn from_user(user: &Value) -> Option<Self> {
        let text = |name: &str| user.get(name).and_then(Value::as_str);
        let number = |name: &str| user.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        let scheme = match (text("password_scheme")?, text("pbkdf2_prf").unwrap_or("sha")) {
            ("argon2id", _) => Scheme::Argon2id { memory_kib: number("memory_kib")?, passes: number("passes")? },
            ("pbkdf2", "sha256") => Scheme::Pbkdf2Sha256 { iterations: number("iterations")? },
            ("pbkdf2", "sha") => Scheme::Pbkdf2Sha1 { iterations: number("iterations")? },
            _ => return None,
        };
        let derived = from_hex(text("derived_key")?)?;
        let is_accepted = scheme.is_bounded() && (16..=64).contains(&derived.len());
        is_accepted.then(|| Credential { scheme, salt: text("salt").unwrap_or_default().to_owned(), derived })
    }

    /// Writes it into a user's document.
    pub(crate) fn put(&self, user: &mut Object) {
        for name in ["iterations", "pbkdf2_prf", "memory_kib", "passes"] {
            user.remove(name);
        }
        match self.scheme {
            Scheme::Argon2id { memory_kib, passes } => {
                user.insert("password_scheme", "argon2id");
                user.insert("memory_kib", memory_kib);
                user.insert("passes", passes);
            }
            Scheme::Pbkdf2Sha1 { iterations } | Scheme::Pbkdf2Sha256 { iterations } => {
                let prf = if matches!(self.scheme, Scheme::Pbkdf2Sha1 { .. }) { "sha" } else { "sha256" };
                user.insert("password_scheme", "pbkdf2");
                user.insert("pbkdf2_prf", prf);
                user.insert("iterations", iterations);
            }
        }
        user.insert("salt", self.salt.as_str());
        user.insert("derived_key", to_hex(&self.derived));
    }

    /// Whether this is the password. Takes as long as the scheme is meant to.
    pub(crate) fn matches(&self, password: &str) -> bool {
        let derived =
            self.scheme.derive(password_to_hash(password), &self.salt, self.derived.len()).unwrap_or_default();
        bool::from(derived.ct_eq(&self.derived)) && password.len() <= PASSWORD_BYTES_MAX
    }

    /// A value that changes with the password.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{}{}", self.salt, to_hex(&self.derived))
    }
}

/// The highest cost of verifying a password by each of CouchDB's schemes, in rounds. Argon2id always costs the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    sha1_rounds: u32,
    sha256_rounds: u32,
}

impl Costs {
    /// Includes the cost of another credential.
    pub(crate) fn include(&mut self, credential: &Credential) {
        let other = Costs::for_credential(Some(credential));
        self.sha1_rounds = self.sha1_rounds.max(other.sha1_rounds);
        self.sha256_rounds = self.sha256_rounds.max(other.sha256_rounds);
    }

    /// The cost of verifying a credential.
    fn for_credential(credential: Option<&Credential>) -> Self {
        let mut costs = Costs::default();
        let Some(Credential { scheme, derived, .. }) = credential else { return costs };
        // Each block of the derived key takes all iterations.
        let rounds = |iterations: u32, part: usize| iterations.saturating_mul(derived.len().div_ceil(part) as u32);
        match *scheme {
            Scheme::Argon2id { .. } => {}
            Scheme::Pbkdf2Sha1 { iterations } => costs.sha1_rounds = rounds(iterations, 20),
            Scheme::Pbkdf2Sha256 { iterations } => costs.sha256_rounds = rounds(iterations, 32),
        }
        costs
    }

    /// Does the remaining work after a wrong password, so that every wrong password costs the same: for each scheme as
    /// much as the costliest credential of all users, whether or not the named user exists.
    pub(crate) fn spend_rest(self, verified: Option<&Credential>, password: &str) {
        let done = Costs::for_credential(verified);
        let is_argon2 = verified.is_some_and(|verified| matches!(verified.scheme, Scheme::Argon2id { .. }));
        let argon2 = (!is_argon2).then_some(Scheme::Argon2id { memory_kib: MEMORY_KIB, passes: PASSES });
        let sha1 = self.sha1_rounds.saturating_sub(done.sha1_rounds);
        let sha256 = self.sha256_rounds.saturating_sub(done.sha256_rounds);
        let sha1 = (sha1 > 0).then_some(Scheme::Pbkdf2Sha1 { iterations: sha1 });
        let sha256 = (sha256 > 0).then_some(Scheme::Pbkdf2Sha256 { iterations: sha256 });
        let salt = Uuid::new_v4().simple().to_string();
        for scheme in [argon2, sha1, sha256].into_iter().flatten() {
            let byte_count = if matches!(scheme, Scheme::Pbkdf2Sha1 { .. }) { 20 } else { KEY_BYTES };
            std::hint::black_box(scheme.derive(password_to_hash(password), &salt, byte_count));
        }
    }
}

/// The password to hash: empty if it is too long.
fn password_to_hash(password: &str) -> &str {
    if password.len() > PASSWORD_BYTES_MAX { "" } else { password }
}

impl Scheme {
    fn is_bounded(self) -> bool {
        match self {
            Scheme::Argon2id { memory_kib, passes } => {
                (8..=MEMORY_KIB_MAX).contains(&memory_kib) && (1..=PASSES_MAX).contains(&passes)
            }
            Scheme::Pbkdf2Sha1 { iterations } | Scheme::Pbkdf2Sha256 { iterations } => {
                (1..=ITERATIONS_MAX).contains(&iterations)
            }
        }
    }

    fn derive(self, password: &str, salt: &str, byte_count: usize) -> Option<Vec<u8>> {
        #[cfg(test)]
        tests::record_work(password, self, byte_count);
        let mut derived = vec![0; byte_count];
        let (password, salt) = (password.as_bytes(), salt.as_bytes());
        match self {
            Scheme::Argon2id { memory_kib, passes } => {
                let params = Params::new(memory_kib, passes, 1, Some(byte_count)).ok()?;
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
                argon2.hash_password_into(password, salt, &mut derived).ok()?;
            }
            Scheme::Pbkdf2Sha1 { iterations } => {
                pbkdf2::pbkdf2_hmac::<Sha1>(password, salt, iterations, &mut derived);
            }
            Scheme::Pbkdf2Sha256 { iterations } => {
                pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut derived);
            }
        }
        Some(derived)
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? * 16 + digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The hashing in this process: password, scheme, and cost in rounds, or in passes for Argon2id.
    static HASHED: parking_lot::Mutex<Vec<(String, String, u32)>> = parking_lot::Mutex::new(Vec::new());

    pub(super) fn record_work(password: &str, scheme: Scheme, byte_count: usize) {
        let (name, cost) = match scheme {
            Scheme::Argon2id { memory_kib, passes } => (format!("argon2id of {memory_kib} KiB"), passes),
            Scheme::Pbkdf2Sha1 { iterations } => ("sha1".to_owned(), iterations * byte_count.div_ceil(20) as u32),
            Scheme::Pbkdf2Sha256 { iterations } => ("sha256".to_owned(), iterations * byte_count.div_ceil(32) as u32),
        };
        HASHED.lock().push((password.to_owned(), name, cost));
    }

    /// The total cost of hashing `password`, by scheme. No other test may use the same password.
    pub(crate) fn work_of(password: &str) -> std::collections::BTreeMap<String, u32> {
        let mut work = std::collections::BTreeMap::new();
        for (_, name, cost) in HASHED.lock().iter().filter(|(hashed, ..)| hashed == password) {
            *work.entry(name.clone()).or_default() += cost;
        }
        work
    }

    /// A credential in the form that CouchDB and Stemma store.
    pub(crate) fn credential_of(prf: &str, iterations: u32, derived_bytes: usize) -> Credential {
        let derived = "5a".repeat(derived_bytes);
        let text = format!(
            r#"{{"password_scheme": "pbkdf2", "pbkdf2_prf": "{prf}", "iterations": {iterations},
            "salt": "s", "derived_key": "{derived}"}}"#
        );
        Credential::from_user(&user(&text)).unwrap()
    }

    fn user(json: &str) -> Value {
        Value::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn hashed_password_round_trips() {
        let credential = Credential::new("secret").unwrap();
        assert!(credential.matches("secret") && !credential.matches("Secret") && !credential.matches(""));
        let mut object = Object::new();
        credential.put(&mut object);
        let read = Credential::from_user(&object.into()).unwrap();
        assert_eq!(read, credential);
        assert!(Credential::new(&"x".repeat(2000)).is_err());
        assert!(!credential.matches(&"x".repeat(2000)));
    }

    /// The vectors of RFC 6070, and those published for SHA-256, with the salt as text as in CouchDB.
    #[test]
    fn hashes_of_couchdb_are_verified() {
        let sha1 = r#"{"password_scheme": "pbkdf2", "iterations": 2, "salt": "salt",
            "derived_key": "ea6c014dc72d6f8ffd08a0b0e2f7d2cf8ed4a8f1"}"#;
        let published =
            sha1.replace("ea6c014dc72d6f8ffd08a0b0e2f7d2cf8ed4a8f1", "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957");
        assert!(Credential::from_user(&user(&published)).unwrap().matches("password"));
        assert!(!Credential::from_user(&user(sha1)).unwrap().matches("password"));
        let sha256 = r#"{"password_scheme": "pbkdf2", "pbkdf2_prf": "sha256", "iterations": 2, "salt": "salt",
            "derived_key": "ae4d0c95af6b46d32d0adff928f06dd02a303f8ef3c251dfd6e2d85a95474c43"}"#;
        assert!(Credential::from_user(&user(sha256)).unwrap().matches("password"));
    }

    #[test]
    fn costly_or_malformed_hashes_are_rejected() {
        for text in [
            r#"{"password_scheme": "pbkdf2", "iterations": 1000000000, "salt": "s",
                "derived_key": "00000000000000000000000000000000"}"#,
            r#"{"password_scheme": "pbkdf2", "iterations": 10, "salt": "s", "derived_key": ""}"#,
            r#"{"password_scheme": "pbkdf2", "iterations": 10, "salt": "s", "derived_key": "xx"}"#,
            r#"{"password_scheme": "argon2id", "memory_kib": 4000000000, "passes": 1, "salt": "s",
                "derived_key": "00000000000000000000000000000000"}"#,
            r#"{"password_scheme": "plain", "derived_key": "00000000000000000000000000000000"}"#,
            r#"{"password_scheme": "simple", "password_sha": "00"}"#,
        ] {
            assert_eq!(Credential::from_user(&user(text)), None, "{text}");
        }
    }
}
