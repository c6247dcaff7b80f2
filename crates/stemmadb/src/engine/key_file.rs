//! The file with the keys of an encrypted database: reading and replacing it.
//!
//! Invariants: the file exists before anything is encrypted with its keys, and as long as anything is. It is replaced
//! at once, by a flushed file that is renamed.

use std::io;
use std::sync::Arc;

use crate::cipher::{EncryptionKey, KEY_FILE, Keyring, key_required};
use crate::log::has_segments;
use crate::vfs::{KeyedVfs, Vfs, create_anew, read_exact_at};
use crate::{Error, Result};

/// A key file that is being written.
const UNFINISHED: &str = "KEYS.new";

/// A longer file is damaged.
const BYTES_MAX: u64 = 1 << 20;

/// The bytes of the key file in the database directory `vfs`; none if there is none.
pub(crate) fn read(vfs: &dyn Vfs) -> Result<Option<Vec<u8>>> {
    let file = match vfs.open(KEY_FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format_args!("open {KEY_FILE}"), error)),
    };
    let read = file.len().and_then(|length| {
        let mut bytes = vec![0; length.min(BYTES_MAX) as usize];
        read_exact_at(&*file, &mut bytes, 0).map(|()| bytes)
    });
    read.map(Some).map_err(|error| Error::io(format_args!("read {KEY_FILE}"), error))
}

/// Replaces the key file, durably.
pub(crate) fn write(vfs: &dyn Vfs, bytes: &[u8]) -> Result<()> {
    let written = create_anew(vfs, UNFINISHED).and_then(|file| {
        file.write_at(bytes, 0)?;
        file.sync_data()?;
        vfs.rename(UNFINISHED, KEY_FILE)?;
        vfs.sync_dir("")
    });
    written.map_err(|error| Error::io(format_args!("write {KEY_FILE}"), error))
}

/// Removes the key file, durably, after the last encrypted file.
pub(crate) fn remove(vfs: &dyn Vfs) -> Result<()> {
    let removed = vfs.remove(KEY_FILE).and_then(|()| vfs.sync_dir(""));
    removed.map_err(|error| Error::io(format_args!("remove {KEY_FILE}"), error))
}

/// The keys in the bytes of a key file.
///
/// # Errors
/// `KeyRequired` without a key; `WrongKey` if they are encrypted with another one; `Corrupt` if the bytes are damaged.
pub(crate) fn open(bytes: &[u8], key: Option<&EncryptionKey>) -> Result<Arc<Keyring>> {
    let key = key.ok_or_else(key_required)?;
    Ok(Arc::new(Keyring::decode(bytes, key)?))
}

/// The files of the database directory `vfs`, together with its keys if it is encrypted. A new database gets keys if a
/// key is given.
///
/// # Errors
/// Those of [`open`]; `Invalid` if a key is given and the database is not encrypted.
pub(crate) fn unlock(vfs: Arc<dyn Vfs>, key: Option<&EncryptionKey>, read_only: bool) -> Result<Arc<dyn Vfs>> {
    let keyring = match (read(&*vfs)?, key) {
        (None, None) => return Ok(vfs),
        (Some(bytes), key) => open(&bytes, key)?,
        (None, Some(_)) if read_only || has_segments(&*vfs)? => {
            return Err(Error::invalid("the database is not encrypted, but a key was given")
                .with_hint("open it without a key, or encrypt it: `stemma encrypt DATABASE`"));
        }
        (None, Some(key)) => {
            let keyring = Keyring::new(key)?;
            write(&*vfs, &keyring.encode()?)?;
            Arc::new(keyring)
        }
    };
    Ok(Arc::new(KeyedVfs::new(vfs, keyring)))
}

/// Gives the database in `vfs` keys, as the first step of encrypting it. Does nothing if that was begun before.
///
/// # Errors
/// `Invalid` if it is encrypted already; `WrongKey` if it was begun with another key.
pub(crate) fn begin_encryption(vfs: &dyn Vfs, key: &EncryptionKey) -> Result<()> {
    let keyring = match read(vfs)? {
        Some(bytes) => {
            let keyring = open(&bytes, Some(key))?;
            match (keyring.active(), keyring.accepts_plain()) {
                (Some(_), true) => return Ok(()),
                (Some(_), false) => {
                    return Err(Error::invalid("the database is encrypted already")
                        .with_hint("`stemma rekey DATABASE` replaces its key"));
                }
                // It was being decrypted.
                (None, _) => keyring.add_key()?,
            }
            keyring
        }
        None => {
            let keyring = Keyring::new(key)?;
            keyring.set_accepts_plain(true);
            Arc::new(keyring)
        }
    };
    write(vfs, &keyring.encode()?)
}

/// Has the database in `vfs` written without encryption, as the first step of decrypting it.
///
/// # Errors
/// `Invalid` if it is not encrypted; `WrongKey` if it has another key.
pub(crate) fn begin_decryption(vfs: &dyn Vfs, key: &EncryptionKey) -> Result<()> {
    let bytes = read(vfs)?.ok_or_else(|| Error::invalid("the database is not encrypted"))?;
    let keyring = open(&bytes, Some(key))?;
    keyring.deactivate();
    write(vfs, &keyring.encode()?)
}
