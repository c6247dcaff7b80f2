//! Reading keys from where the user keeps them.

use argon2::{Algorithm, Argon2, Params, Version};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use super::data_key::Secret;
use super::{EncryptionKey, Source};
use crate::{Error, ErrorKind, Result};

/// How the key that encrypts the database keys is made of what the user supplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyDerivation {
    /// The user supplies 256 bits.
    Key,
    /// By Argon2id, from a passphrase.
    Argon2id { memory_kib: u32, passes: u32, lanes: u32 },
}

/// More is damage, or an attempt to exhaust memory.
const MEMORY_KIB_MAX: u32 = 4 << 20;
const PASSES_MAX: u32 = 1000;

impl KeyDerivation {
    /// That of new key files.
    pub(super) fn of(key: &EncryptionKey) -> Self {
        match &key.0 {
            Source::Passphrase(_) => KeyDerivation::Argon2id { memory_kib: 64 << 10, passes: 3, lanes: 1 },
            Source::File(_) | Source::Variable(_) | Source::Callback(_) => KeyDerivation::Key,
        }
    }
}

/// Fills `bytes` with random numbers.
pub(super) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| Error::unavailable("the operating system has no random numbers"))
}

pub(super) fn generate() -> Result<String> {
    let mut key = Secret::default();
    fill_random(&mut *key)?;
    let mut text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    Ok(text)
}

impl EncryptionKey {
    /// The secret that follows from the key in this way.
    ///
    /// # Errors
    /// `WrongKey` if the key is not of this kind; `Invalid` if it is none; `Unavailable` if it can't be read.
    pub(super) fn secret(&self, derivation: KeyDerivation, salt: &[u8; 16]) -> Result<Secret> {
        match (&self.0, derivation) {
            (Source::Passphrase(passphrase), KeyDerivation::Argon2id { memory_kib, passes, lanes }) => {
                let is_possible = memory_kib <= MEMORY_KIB_MAX && passes <= PASSES_MAX;
                let params = Params::new(memory_kib, passes, lanes, Some(32)).ok().filter(|_| is_possible);
                let params = params.ok_or_else(|| Error::corrupt("the file KEYS has impossible parameters"))?;
                let mut secret = Secret::default();
                Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                    .hash_password_into(passphrase.as_bytes(), salt, &mut *secret)
                    .map_err(|error| Error::unavailable(format!("Argon2id failed: {error}")))?;
                Ok(secret)
            }
            (Source::Passphrase(_), KeyDerivation::Key) => {
                Err(wrong_key("the database has a key, not a passphrase").with_hint("give the key file"))
            }
            (_, KeyDerivation::Argon2id { .. }) => {
                Err(wrong_key("the database has a passphrase, not a key").with_hint("give the passphrase"))
            }
            (Source::File(path), KeyDerivation::Key) => {
                let shown = path.display();
                let read = std::fs::read(path).map(Zeroizing::new);
                let read = read.map_err(|error| Error::io(format_args!("read the key file {shown}"), error))?;
                parse(&read).ok_or_else(|| no_key(format!("the file {shown}")))
            }
            (Source::Variable(name), KeyDerivation::Key) => {
                let read = std::env::var(name).map(Zeroizing::new);
                let read = read.map_err(|_| no_key(format!("the variable {name}")))?;
                parse(read.as_bytes()).ok_or_else(|| no_key(format!("the variable {name}")))
            }
            (Source::Callback(callback), KeyDerivation::Key) => callback().map(Zeroizing::new),
        }
    }
}

/// The key in a file or a variable: 64 hexadecimal digits, or 32 bytes.
fn parse(bytes: &[u8]) -> Option<Secret> {
    let mut key = Secret::default();
    if let Ok(raw) = <&[u8; 32]>::try_from(bytes) {
        key.copy_from_slice(raw);
        return Some(key);
    }
    let text = str::from_utf8(bytes).ok()?.trim();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

fn no_key(place: String) -> Error {
    Error::invalid(format!("{place} has no key: 64 hexadecimal digits"))
        .with_hint("`openssl rand -hex 32` makes one for a new database")
}

pub(super) fn wrong_key(message: &str) -> Error {
    Error::new(ErrorKind::WrongKey, message)
}
