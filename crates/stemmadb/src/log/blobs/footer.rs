//! Footer of a blob's file: the length of the content, and what its chunks are verified by.
//!
//! ```text
//! version 1  CRC32C of each 64 KiB, u32 each │ length u64 │ CRC32C of all that │ "blob" │ 1
//! version 2  tag of each 64 KiB, 16 bytes each │ random number (16) │ number of the database key u32
//!            │ tag of all that, length and digest (16) │ length u64 │ CRC32C of all that │ "blob" │ 2
//! ```
//!
//! Integers are big-endian. In version 2, the content is encrypted. The name of the file is the encrypted digest.

use std::io;

use super::{CHUNK_BYTES, Digest};
use crate::Result;
use crate::cipher::{DataKey, KEY_FILE, Place, Purpose, SALT_BYTES, TAG_BYTES};
use crate::vfs::{Vfs, VfsFile, read_exact_at};

const MAGIC: &[u8; 4] = b"blob";
const VERSION: u32 = 1;
const ENCRYPTED_VERSION: u32 = 2;
/// Length, checksum, magic, version.
pub(super) const FOOTER_BYTES: usize = 8 + 4 + 4 + 4;
/// What precedes the footer in version 2.
const CIPHER_BYTES: usize = SALT_BYTES + 4 + TAG_BYTES;
/// Kinds of places in a file.
const CHUNK: u8 = 1;
const END: u8 = 2;

/// How a file is encrypted.
pub(super) struct BlobCipher {
    key: DataKey,
    /// The number of the database key.
    key_number: u32,
    salt: [u8; SALT_BYTES],
}

impl BlobCipher {
    /// For a new file; none if new files are not encrypted.
    pub(super) fn for_new_file(vfs: &dyn Vfs) -> Result<Option<Self>> {
        let Some(keyring) = vfs.keyring() else { return Ok(None) };
        let Some(key_number) = keyring.active() else { return Ok(None) };
        let salt = keyring.new_salt()?;
        let key = keyring.data_key(key_number, Purpose::Content, [0, 0], &salt)?;
        Ok(Some(BlobCipher { key, key_number, salt }))
    }
}

/// What the chunks of a file are verified by.
pub(super) enum Sums {
    /// CRC32C of each.
    Checksums(Vec<u8>),
    /// The tag of each, and how they are encrypted.
    Tags(Vec<u8>, Box<BlobCipher>),
}

impl Sums {
    pub(super) fn new(cipher: Option<BlobCipher>) -> Self {
        match cipher {
            Some(cipher) => Sums::Tags(Vec::new(), Box::new(cipher)),
            None => Sums::Checksums(Vec::new()),
        }
    }

    /// The number of the database key; 0 if the file is not encrypted.
    pub(super) fn key_number(&self) -> u32 {
        match self {
            Sums::Checksums(_) => 0,
            Sums::Tags(_, cipher) => cipher.key_number,
        }
    }

    /// Adds the next chunk, and encrypts it if the file is encrypted.
    pub(super) fn add(&mut self, chunk: &mut [u8]) {
        match self {
            Sums::Checksums(sums) => sums.extend_from_slice(&crc32c::crc32c(chunk).to_be_bytes()),
            Sums::Tags(tags, cipher) => {
                let position = (tags.len() / TAG_BYTES) as u64;
                tags.extend_from_slice(&cipher.key.seal(Place { kind: CHUNK, position }, &[], chunk));
            }
        }
    }

    /// Whether a chunk that was read is what was written; decrypts it if the file is encrypted.
    pub(super) fn verify(&self, index: usize, chunk: &mut [u8]) -> bool {
        match self {
            Sums::Checksums(sums) => sums.get(4 * index..4 * index + 4) == Some(&crc32c::crc32c(chunk).to_be_bytes()),
            Sums::Tags(tags, cipher) => {
                let tag = tags.get(TAG_BYTES * index..).and_then(|rest| rest.first_chunk());
                let place = Place { kind: CHUNK, position: index as u64 };
                tag.is_some_and(|tag| cipher.key.open(place, &[], tag, chunk))
            }
        }
    }

    /// The end of the file, which follows the content.
    pub(super) fn encode(&self, length: u64, digest: &Digest) -> Vec<u8> {
        let (mut end, version) = match self {
            Sums::Checksums(sums) => (sums.clone(), VERSION),
            Sums::Tags(tags, cipher) => {
                let mut end = tags.clone();
                end.extend_from_slice(&cipher.salt);
                end.extend_from_slice(&cipher.key_number.to_be_bytes());
                let context = context(&end, length, digest);
                end.extend_from_slice(&cipher.key.seal(Place { kind: END, position: 0 }, &context, &mut []));
                (end, ENCRYPTED_VERSION)
            }
        };
        end.extend_from_slice(&length.to_be_bytes());
        end.extend_from_slice(&crc32c::crc32c(&end).to_be_bytes());
        end.extend_from_slice(MAGIC);
        end.extend_from_slice(&version.to_be_bytes());
        end
    }
}

/// What the tag at the end of an encrypted file covers.
fn context(end: &[u8], length: u64, digest: &Digest) -> Vec<u8> {
    [end, &length.to_be_bytes(), digest.as_bytes()].concat()
}

/// Whether a file is encrypted, according to its last bytes.
pub(super) fn is_encrypted(file: &dyn VfsFile) -> io::Result<bool> {
    let mut version = [0; 4];
    let at = file.len()?.checked_sub(4).ok_or_else(wrong)?;
    read_exact_at(file, &mut version, at)?;
    Ok(u32::from_be_bytes(version) == ENCRYPTED_VERSION)
}

/// Reads the end of the file of the content with this digest: the content's length, and what its chunks are verified
/// by.
pub(super) fn read(vfs: &dyn Vfs, file: &dyn VfsFile, digest: &Digest) -> io::Result<(u64, Sums)> {
    let footer_at = file.len()?.checked_sub(FOOTER_BYTES as u64).ok_or_else(wrong)?;
    let mut footer = [0; FOOTER_BYTES];
    read_exact_at(file, &mut footer, footer_at)?;
    let (length, rest) = footer.split_at(8);
    let length = u64::from_be_bytes(length.try_into().map_err(|_| wrong())?);
    let is_encrypted = rest[8..] == ENCRYPTED_VERSION.to_be_bytes();
    if &rest[4..8] != MAGIC || !is_encrypted && rest[8..] != VERSION.to_be_bytes() {
        return Err(wrong());
    }
    let (sum_bytes, cipher_bytes) = if is_encrypted { (TAG_BYTES as u64, CIPHER_BYTES as u64) } else { (4, 0) };
    let sums_bytes = length.div_ceil(CHUNK_BYTES as u64).checked_mul(sum_bytes).ok_or_else(wrong)?;
    let end_bytes = sums_bytes.checked_add(cipher_bytes).ok_or_else(wrong)?;
    if length.checked_add(end_bytes) != Some(footer_at) {
        return Err(wrong());
    }
    let mut end = vec![0; end_bytes as usize];
    read_exact_at(file, &mut end, length)?;
    end.extend_from_slice(&footer[..8]);
    if crc32c::crc32c(&end).to_be_bytes() != rest[..4] {
        return Err(wrong());
    }
    end.truncate(end_bytes as usize);
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let keyring = match (vfs.keyring(), is_encrypted) {
        (None, true) => return Err(refused(&format!("it is encrypted, but {KEY_FILE} is missing"))),
        (Some(keyring), false) if !keyring.accepts_plain() => {
            return Err(refused("it is not encrypted, but the database is"));
        }
        (_, false) => return Ok((length, Sums::Checksums(end))),
        (Some(keyring), true) => keyring,
    };
    let tag_at = end.len() - TAG_BYTES;
    let tag: [u8; TAG_BYTES] = end[tag_at..].try_into().map_err(|_| wrong())?;
    let (salt, key_number) = end[sums_bytes as usize..tag_at].split_at(SALT_BYTES);
    let (salt, key_number) = (salt.try_into().map_err(|_| wrong())?, key_number.try_into().map_err(|_| wrong())?);
    let key_number = u32::from_be_bytes(key_number);
    let key = keyring.data_key(key_number, Purpose::Content, [0, 0], &salt);
    let key = key.map_err(|error| refused(error.message()))?;
    if !key.open(Place { kind: END, position: 0 }, &context(&end[..tag_at], length, digest), &tag, &mut []) {
        return Err(refused("its end is not what was written, or is that of another content"));
    }
    end.truncate(sums_bytes as usize);
    Ok((length, Sums::Tags(end, Box::new(BlobCipher { key, key_number, salt }))))
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its footer is not one of a blob")
}
