//! The key of encrypted databases, and encrypting, decrypting and rekeying.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stemmadb::Options;
use stemmadb::encryption::{self, EncryptionKey};

use super::{Database, open_failure};
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// The key that databases are opened with by this process, and its file.
static KEY: OnceLock<(EncryptionKey, Option<PathBuf>)> = OnceLock::new();

/// Where a key is.
pub(crate) enum KeySource {
    File(String),
    /// A variable of the environment with the key itself.
    Variable(String),
    Passphrase(String),
}

impl KeySource {
    fn key(self) -> Result<EncryptionKey> {
        Ok(match self {
            KeySource::File(path) => EncryptionKey::from_file(path),
            KeySource::Variable(name) => EncryptionKey::from_variable(name),
            KeySource::Passphrase(text) => EncryptionKey::from_passphrase(text)?,
        })
    }
}

/// Has databases opened with this key from now on.
pub(crate) fn use_key(source: KeySource) -> Result<()> {
    let file = match &source {
        KeySource::File(path) => Some(PathBuf::from(path)),
        _ => None,
    };
    // A second key can't be given.
    KEY.set((source.key()?, file)).ok();
    Ok(())
}

/// The file with the key, for a server that opens databases.
///
/// # Errors
/// `Usage` if there is a key, but not in a file.
pub(crate) fn key_file() -> Result<Option<PathBuf>> {
    match KEY.get() {
        None => Ok(None),
        Some((_, Some(file))) => Ok(Some(file.clone())),
        Some((_, None)) => Err(Failure::usage("a server reads its key from a file").with_hint("use --key-file FILE")),
    }
}

/// Options with the key, if one was given.
pub(super) fn options() -> Options {
    match key() {
        Some(key) => Options::new().encryption(key.clone()),
        None => Options::new(),
    }
}

pub(super) fn key() -> Option<&'static EncryptionKey> {
    KEY.get().map(|(key, _)| key)
}

fn required_key() -> Result<&'static EncryptionKey> {
    key().ok_or_else(|| {
        Failure::usage("a key is needed")
            .with_hint("give one with --key-file FILE or --passphrase; see `stemma encrypt --help`")
    })
}

/// Encrypts the closed database at `path`.
pub(crate) fn encrypt(path: &Path, progress: &Progress) -> Result<()> {
    let show = |step: stemmadb::Progress| progress.set_position_and_length(step.done, step.total);
    encryption::encrypt(path, required_key()?, show).map_err(open_failure)
}

/// Decrypts the closed database at `path`.
pub(crate) fn decrypt(path: &Path, progress: &Progress) -> Result<()> {
    let show = |step: stemmadb::Progress| progress.set_position_and_length(step.done, step.total);
    encryption::decrypt(path, required_key()?, show).map_err(open_failure)
}

impl Database {
    /// Has the database opened with another key from now on.
    pub(crate) fn rekey(&self, new: KeySource) -> Result<()> {
        Ok(self.inner.maintenance().rekey(&new.key()?)?)
    }

    /// Encrypts everything again.
    pub(crate) fn reencrypt(&self, progress: &Progress) -> Result<()> {
        let show = |step: stemmadb::Progress| progress.set_position_and_length(step.done, step.total);
        Ok(self.inner.maintenance().reencrypt(show)?)
    }
}
