//! The database keys of an open database.

use std::collections::BTreeMap;
use std::fmt;

use ring::hmac;

use super::data_key::{DataKey, Secret, derive_secret};
use super::key_file::{self, Keys, Wrapping};
use super::key_source::fill_random;
use super::{EncryptionKey, KEY_FILE, Purpose, SALT_BYTES};
use crate::sync::RwLock;
use crate::{Error, Result};

/// The keys that a database's files are encrypted with. New files use the *active* one.
pub(crate) struct Keyring(RwLock<State>);

#[derive(Clone)]
struct State {
    keys: Keys,
    /// Keys that were removed: snapshots may still read files that are deleted.
    removed: BTreeMap<u32, Secret>,
    wrapping: Wrapping,
    #[cfg(test)]
    example_salt: Option<[u8; SALT_BYTES]>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring")
    }
}

fn new_secret() -> Result<Secret> {
    let mut secret = Secret::default();
    fill_random(&mut *secret)?;
    Ok(secret)
}

impl Keyring {
    /// The keys of a new database.
    pub(crate) fn new(key: &EncryptionKey) -> Result<Self> {
        let keys = BTreeMap::from([(1, new_secret()?)]);
        let keys = Keys { active: Some(1), accepts_plain: false, keys, names: new_secret()? };
        Ok(Self::of(keys, Wrapping::new(key)?))
    }

    /// The keys in the bytes of a key file.
    ///
    /// # Errors
    /// `WrongKey` if they are encrypted with another key; `Corrupt` if the bytes are damaged; those of reading the key.
    pub(crate) fn decode(bytes: &[u8], key: &EncryptionKey) -> Result<Self> {
        let (keys, wrapping) = key_file::decode(bytes, key)?;
        Ok(Self::of(keys, wrapping))
    }

    fn of(keys: Keys, wrapping: Wrapping) -> Self {
        Keyring(RwLock::new(State {
            keys,
            removed: BTreeMap::new(),
            wrapping,
            #[cfg(test)]
            example_salt: None,
        }))
    }

    /// Takes over the keys of a newer key file, which another process has written.
    ///
    /// # Errors
    /// Those of [`Keyring::decode`].
    pub(crate) fn reload(&self, bytes: &[u8], key: &EncryptionKey) -> Result<()> {
        let (newer, newer_wrapping) = key_file::decode(bytes, key)?;
        let State { keys, removed, wrapping, .. } = &mut *self.0.write();
        removed.append(&mut keys.keys);
        (*keys, *wrapping) = (newer, newer_wrapping);
        Ok(())
    }

    /// The bytes of a key file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let state = self.0.read();
        key_file::encode(&state.keys, &state.wrapping)
    }

    /// The keys of a copy of the database that goes its own way: with another key for what it writes, so that what is
    /// written by the two can't be exchanged.
    pub(crate) fn of_copy(&self) -> Result<Self> {
        let keyring = Keyring(RwLock::new(self.0.read().clone()));
        if keyring.active().is_some() {
            keyring.add_key()?;
        }
        Ok(keyring)
    }

    /// The number of the key that is written with; none while encryption is removed.
    pub(crate) fn active(&self) -> Option<u32> {
        self.0.read().keys.active
    }

    /// Whether files that are not encrypted are accepted.
    pub(crate) fn accepts_plain(&self) -> bool {
        self.0.read().keys.accepts_plain
    }

    /// The numbers of all keys.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.0.read().keys.keys.keys().copied().collect()
    }

    /// Has the file written with another user's key from now on.
    pub(crate) fn rewrap(&self, key: &EncryptionKey) -> Result<()> {
        let wrapping = Wrapping::new(key)?;
        self.0.write().wrapping = wrapping;
        Ok(())
    }

    /// Adds a key, with which everything is written from now on.
    pub(crate) fn add_key(&self) -> Result<()> {
        let secret = new_secret()?;
        let keys = &mut self.0.write().keys;
        let number = keys.keys.last_key_value().map_or(1, |(last, _)| last + 1);
        keys.keys.insert(number, secret);
        keys.active = Some(number);
        Ok(())
    }

    /// Removes all keys but the active one, after nothing uses them any more.
    pub(crate) fn keep_only_active(&self) {
        let State { keys, removed, .. } = &mut *self.0.write();
        let active = keys.active;
        removed.extend(keys.keys.extract_if(.., |number, _| Some(*number) != active));
    }

    /// Sets whether files that are not encrypted are accepted.
    pub(crate) fn set_accepts_plain(&self, accepts_plain: bool) {
        self.0.write().keys.accepts_plain = accepts_plain;
    }

    /// Has everything written without encryption from now on.
    pub(crate) fn deactivate(&self) {
        let keys = &mut self.0.write().keys;
        (keys.active, keys.accepts_plain) = (None, true);
    }

    /// Fixed keys and random numbers, for the examples in docs/format.md.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        let keys = BTreeMap::from([(1, Secret::new([0x11; 32]))]);
        let keys = Keys { active: Some(1), accepts_plain: false, keys, names: Secret::new([0x22; 32]) };
        let keyring = Self::of(keys, Wrapping::new(&EncryptionKey::from_callback(|| Ok([0; 32]))).expect("a key"));
        keyring.0.write().example_salt = Some(std::array::from_fn(|at| at as u8));
        keyring
    }

    /// A random number, for data keys.
    pub(crate) fn new_salt(&self) -> Result<[u8; SALT_BYTES]> {
        #[cfg(test)]
        if let Some(salt) = self.0.read().example_salt {
            return Ok(salt);
        }
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)?;
        Ok(salt)
    }

    /// The data key of what was encrypted with database key `key`, for these numbers, with this random number.
    ///
    /// # Errors
    /// `Corrupt` if the database has no such key.
    pub(crate) fn data_key(
        &self,
        key: u32,
        purpose: Purpose,
        numbers: [u64; 2],
        salt: &[u8; SALT_BYTES],
    ) -> Result<DataKey> {
        let state = self.0.read();
        match state.keys.keys.get(&key).or_else(|| state.removed.get(&key)) {
            Some(secret) => Ok(DataKey::derive(secret, purpose, numbers, salt)),
            None => Err(Error::corrupt(format!("a file was encrypted with key {key}, which {KEY_FILE} lacks"))
                .with_hint("one of the two files is from another database, or older")),
        }
    }

    /// Encrypts a digest, so that it can be a name: the same digest always gets the same name.
    pub(crate) fn seal_name(&self, digest: &[u8; 32]) -> [u8; 32] {
        self.permute(digest, [0, 1, 2, 3])
    }

    /// The digest that has this name.
    pub(crate) fn open_name(&self, name: &[u8; 32]) -> [u8; 32] {
        self.permute(name, [3, 2, 1, 0])
    }

    /// A Feistel network of four rounds, whose functions are HMACs: a permutation that can't be told from a random one.
    /// The halves are exchanged after it, so that the same network with its rounds in opposite order is the inverse.
    fn permute(&self, block: &[u8; 32], rounds: [u8; 4]) -> [u8; 32] {
        let state = self.0.read();
        let (mut left, mut right) = ([0; 16], [0; 16]);
        left.copy_from_slice(&block[..16]);
        right.copy_from_slice(&block[16..]);
        for round in rounds {
            let secret = derive_secret(&state.keys.names, &[round], b"stemma names");
            let mixed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &*secret), &right);
            left.iter_mut().zip(mixed.as_ref()).for_each(|(byte, mixed)| *byte ^= mixed);
            std::mem::swap(&mut left, &mut right);
        }
        let mut permuted = [0; 32];
        permuted[..16].copy_from_slice(&right);
        permuted[16..].copy_from_slice(&left);
        permuted
    }
}
