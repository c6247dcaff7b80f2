//! Encryption of history files.
//!
//! Each block, the index and the header have a tag of their own. The data key follows from the segment's number and a
//! random number in the file.

use super::{CIPHER_BYTES, HEADER, HEADER_BYTES};
use crate::Result;
use crate::cipher::{DataKey, Place, Purpose, SALT_BYTES, keys_missing, not_encrypted};
use crate::log::segment::damaged;
use crate::vfs::Vfs;

/// How a new file is encrypted.
pub(super) struct FileCipher {
    pub(super) key: DataKey,
    /// The number of the database key.
    pub(super) key_number: u32,
    pub(super) salt: [u8; SALT_BYTES],
}

impl FileCipher {
    /// None if new files are not encrypted.
    pub(super) fn for_new_file(vfs: &dyn Vfs, segment: u32) -> Result<Option<Self>> {
        let Some(keyring) = vfs.keyring() else { return Ok(None) };
        let Some(key_number) = keyring.active() else { return Ok(None) };
        let salt = keyring.new_salt()?;
        let key = keyring.data_key(key_number, Purpose::History, [u64::from(segment), 0], &salt)?;
        Ok(Some(FileCipher { key, key_number, salt }))
    }
}

/// The data key of a file with this header, which it verifies; none if the file is not encrypted.
pub(super) fn open_cipher(
    vfs: &dyn Vfs,
    name: &str,
    (segment, key): (u32, u32),
    header: &[u8; HEADER_BYTES],
    cipher_bytes: &[u8; CIPHER_BYTES],
) -> Result<Option<DataKey>> {
    let keyring = match (vfs.keyring(), key != 0) {
        (None, true) => return Err(keys_missing(name)),
        (Some(keyring), false) if !keyring.accepts_plain() => return Err(not_encrypted(name)),
        (_, false) => return Ok(None),
        (Some(keyring), true) => keyring,
    };
    let (salt, tag) = cipher_bytes.split_at(SALT_BYTES);
    let wrong = || damaged(name, 0, "its header is not what was written");
    let (Some(salt), Some(tag)) = (salt.first_chunk(), tag.first_chunk()) else { return Err(wrong()) };
    let data_key = keyring.data_key(key, Purpose::History, [u64::from(segment), 0], salt);
    let data_key = data_key.map_err(|error| damaged(name, 0, error.message()))?;
    match data_key.open(Place { kind: HEADER, position: 0 }, header, tag, &mut []) {
        true => Ok(Some(data_key)),
        false => Err(wrong()),
    }
}
