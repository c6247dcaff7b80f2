//! The file `KEYS`: the database keys, encrypted with the user's key.
//!
//! Integers are big-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `stemmkey` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | what the user supplies: 0 a key, 1 a passphrase |
//! | 16 | 16 | random number, from which the wrapping key is derived with what the user supplies |
//! | 32 | 4, 4, 4 | memory in KiB, passes and lanes of Argon2id; zeros for a key |
//! | 44 | 12 | nonce, random |
//! | 56 | 4 | length of what follows, without the checksum |
//! | 60 | | encrypted keys, tag (16) |
//! | | 4 | CRC32C of all bytes above |
//!
//! The keys: number of the key that is written with (0: none), flags (1: files that are not encrypted are accepted),
//! number of keys, 4 bytes each; per key its number (4) and the key (32); last the key of names (32).
//!
//! The checksum tells damage from a wrong key.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::data_key::{DataKey, Secret, derive_secret};
use super::key_source::{KeyDerivation, fill_random, wrong_key};
use super::{EncryptionKey, KEY_FILE, Place, TAG_BYTES};
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"stemmkey";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 60;
const FLAG_ACCEPTS_PLAIN: u32 = 1;

/// The key that the database keys are encrypted with.
#[derive(Clone)]
pub(super) struct Wrapping {
    derivation: KeyDerivation,
    salt: [u8; 16],
    secret: Secret,
}

impl Wrapping {
    /// That of a new file.
    pub(super) fn new(key: &EncryptionKey) -> Result<Self> {
        let mut salt = [0; 16];
        fill_random(&mut salt)?;
        Self::derive(key, KeyDerivation::of(key), salt)
    }

    fn derive(key: &EncryptionKey, derivation: KeyDerivation, salt: [u8; 16]) -> Result<Self> {
        let supplied = key.secret(derivation, &salt)?;
        Ok(Wrapping { derivation, salt, secret: derive_secret(&supplied, &salt, b"stemma keys") })
    }
}

/// The decrypted contents of the file.
#[derive(Clone)]
pub(super) struct Keys {
    /// The number of the key that is written with; none while encryption is removed.
    pub(super) active: Option<u32>,
    /// Whether files that are not encrypted are accepted: while the database is being encrypted or decrypted.
    pub(super) accepts_plain: bool,
    pub(super) keys: BTreeMap<u32, Secret>,
    pub(super) names: Secret,
}

impl Keys {
    fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Grown once, so that no copy is left in memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(12 + 36 * self.keys.len() + 32 + TAG_BYTES));
        let flags = if self.accepts_plain { FLAG_ACCEPTS_PLAIN } else { 0 };
        for number in [self.active.unwrap_or(0), flags, self.keys.len() as u32] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        for (number, key) in &self.keys {
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.extend_from_slice(&**key);
        }
        bytes.extend_from_slice(&*self.names);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at_checked(count)?;
            bytes = rest;
            Some(taken)
        };
        let word = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
        let secret = |bytes: &[u8]| Some(Secret::new(bytes.try_into().ok()?));
        let (active, flags, count) = (word(take(4)?)?, word(take(4)?)?, word(take(4)?)?);
        let mut keys = BTreeMap::new();
        for _ in 0..count {
            let number = word(take(4)?)?;
            keys.insert(number, secret(take(32)?)?);
        }
        let names = secret(take(32)?)?;
        let active = Some(active).filter(|&active| active != 0);
        let is_known = active.is_none_or(|active| keys.contains_key(&active));
        let accepts_plain = flags & FLAG_ACCEPTS_PLAIN != 0;
        (bytes.is_empty() && is_known).then_some(Keys { active, accepts_plain, keys, names })
    }
}

/// The bytes of the file.
pub(super) fn encode(keys: &Keys, wrapping: &Wrapping) -> Result<Vec<u8>> {
    let mut nonce = [0; 12];
    fill_random(&mut nonce)?;
    let (kind, parameters) = match wrapping.derivation {
        KeyDerivation::Key => (0, [0; 3]),
        KeyDerivation::Argon2id { memory_kib, passes, lanes } => (1, [memory_kib, passes, lanes]),
    };
    let mut sealed = keys.encode();
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&u32::to_be_bytes(kind));
    bytes.extend_from_slice(&wrapping.salt);
    parameters.iter().for_each(|parameter| bytes.extend_from_slice(&parameter.to_be_bytes()));
    bytes.extend_from_slice(&nonce);
    bytes.extend_from_slice(&((sealed.len() + TAG_BYTES) as u32).to_be_bytes());
    // A key of its own for each writing, so that the nonce is part of the key.
    let key = DataKey::new(&derive_secret(&wrapping.secret, &nonce, b"stemma wrapped keys"));
    let tag = key.seal(Place { kind: 0, position: 0 }, &bytes, &mut sealed);
    bytes.extend_from_slice(&sealed);
    bytes.extend_from_slice(&tag);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_be_bytes());
    Ok(bytes)
}

/// Decrypts the file.
///
/// # Errors
/// `WrongKey` if the key is another one; `Corrupt` if the file is damaged; those of reading the key.
pub(super) fn decode(bytes: &[u8], key: &EncryptionKey) -> Result<(Keys, Wrapping)> {
    let damaged = || {
        Error::corrupt(format!("{KEY_FILE} is damaged"))
            .with_hint("put the file back: every backup has it; without it, nothing can be read")
    };
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if bytes.len() < HEADER_BYTES + TAG_BYTES + 4 || &bytes[..8] != MAGIC {
        return Err(damaged());
    }
    let end = bytes.len() - 4;
    if word(end) != crc32c::crc32c(&bytes[..end]) || word(56) as usize != end - HEADER_BYTES {
        return Err(damaged());
    }
    if word(8) != VERSION {
        return Err(Error::unavailable(format!("{KEY_FILE} has version {}", word(8)))
            .with_hint("use a newer version of stemma"));
    }
    let derivation = match word(12) {
        0 => KeyDerivation::Key,
        1 => KeyDerivation::Argon2id { memory_kib: word(32), passes: word(36), lanes: word(40) },
        _ => return Err(damaged()),
    };
    let salt = bytes[16..32].try_into().map_err(|_| damaged())?;
    let wrapping = Wrapping::derive(key, derivation, salt)?;
    let mut sealed = Zeroizing::new(bytes[HEADER_BYTES..end - TAG_BYTES].to_vec());
    let tag = bytes[end - TAG_BYTES..end].try_into().map_err(|_| damaged())?;
    let key = DataKey::new(&derive_secret(&wrapping.secret, &bytes[44..56], b"stemma wrapped keys"));
    if !key.open(Place { kind: 0, position: 0 }, &bytes[..HEADER_BYTES], tag, &mut sealed) {
        return Err(wrong_key("the key is not that of the database")
            .with_hint("give the key or passphrase that the database was encrypted with, or last rekeyed to"));
    }
    Ok((Keys::decode(&sealed).ok_or_else(damaged)?, wrapping))
}
