//! Encryption at rest: keys, and the ciphers of files.
//!
//! A database's file `KEYS` has its *database keys*, encrypted with a key that the user supplies ([`EncryptionKey`]).
//! From a database key and a random number, a *data key* is derived for each file, or for each part of one. Data keys
//! encrypt with AES-256-GCM. So a user's key is replaced by writing one small file, and no two files share a data key.
//!
//! See `docs/guide/encryption.md` for use, and `docs/decisions/0031-encryption.md` for why no nonce repeats.
//!
//! Invariants:
//! - A data key encrypts at most once with one nonce: what is encrypted has a place, its nonce follows from the place,
//!   and nothing is written twice there with the same random number.
//! - Nothing that was read is used before it is authenticated.
//!
//! Builds without the `encryption` feature have no ciphers: an encrypted database can't be opened.

#[cfg(feature = "encryption")]
mod data_key;
#[cfg(feature = "encryption")]
mod key_file;
#[cfg(feature = "encryption")]
mod key_source;
#[cfg(feature = "encryption")]
mod keyring;
#[cfg(not(feature = "encryption"))]
mod unavailable;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "encryption")]
pub(crate) use data_key::DataKey;
#[cfg(feature = "encryption")]
pub(crate) use keyring::Keyring;
#[cfg(not(feature = "encryption"))]
pub(crate) use unavailable::{DataKey, Keyring};

use crate::{Error, ErrorKind, Result};

/// Length of an authentication tag, in bytes.
pub(crate) const TAG_BYTES: usize = 16;

/// Length of the random number that a data key is derived with, in bytes.
pub(crate) const SALT_BYTES: usize = 16;

/// The name of the file with the database keys.
pub(crate) const KEY_FILE: &str = "KEYS";

/// What a data key is for. Keys of different purposes have nothing in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Log,
    Run,
    RunList,
    History,
    Content,
}

impl Purpose {
    #[cfg(feature = "encryption")]
    fn label(self) -> &'static [u8] {
        match self {
            Purpose::Log => b"stemma log",
            Purpose::Run => b"stemma run",
            Purpose::RunList => b"stemma run list",
            Purpose::History => b"stemma history",
            Purpose::Content => b"stemma content",
        }
    }
}

/// Where something is that is encrypted: its kind, and its position among those of its kind. It is the nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) kind: u8,
    pub(crate) position: u64,
}

/// The key that a database is encrypted with, or where it comes from.
///
/// A key has 256 bits. A key file, like a variable of the environment, has it as 64 hexadecimal digits;
/// `openssl rand -hex 32` makes one. A passphrase is turned into a key by Argon2id, which takes about a tenth of a
/// second and 64 MiB at each opening.
///
/// Whoever loses the key loses the database: there is no other way to read it.
///
/// ```
/// use stemmadb::encryption::EncryptionKey;
/// use stemmadb::{Database, ErrorKind, Options};
/// # fn main() -> stemmadb::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("stemma-doc-encryption-{}", std::process::id()));
/// # std::fs::remove_dir_all(&directory).ok();
/// # std::fs::create_dir_all(&directory).unwrap();
/// # let (key_file, path) = (directory.join("library.key"), directory.join("library.stemma"));
/// std::fs::write(&key_file, EncryptionKey::generate()?).unwrap();
///
/// let options = Options::new().encryption(EncryptionKey::from_file(&key_file));
/// let db = Database::open_with(&path, options)?;
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// drop(db);
/// assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::KeyRequired);
/// # std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EncryptionKey(Source);

#[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "only the feature reads keys"))]
#[derive(Clone)]
enum Source {
    File(PathBuf),
    Variable(String),
    Passphrase(Arc<Text>),
    Callback(Arc<Callback>),
}

type Callback = dyn Fn() -> Result<[u8; 32]> + Send + Sync;

#[cfg(feature = "encryption")]
type Text = zeroize::Zeroizing<String>;
#[cfg(not(feature = "encryption"))]
type Text = String;

impl EncryptionKey {
    /// The key in this file: 64 hexadecimal digits, or 32 bytes. It is read whenever a database is opened with it.
    pub fn from_file(path: impl AsRef<Path>) -> Self {
        EncryptionKey(Source::File(path.as_ref().to_owned()))
    }

    /// The key in this variable of the environment: 64 hexadecimal digits.
    pub fn from_variable(name: impl Into<String>) -> Self {
        EncryptionKey(Source::Variable(name.into()))
    }

    /// A key that is derived from a passphrase.
    ///
    /// # Errors
    /// `Invalid` if it is empty.
    pub fn from_passphrase(passphrase: impl Into<String>) -> Result<Self> {
        #[cfg_attr(not(feature = "encryption"), allow(clippy::useless_conversion, reason = "it is a plain string"))]
        let passphrase: Text = passphrase.into().into();
        if passphrase.is_empty() {
            return Err(Error::invalid("the passphrase is empty").with_hint("several random words make a good one"));
        }
        Ok(EncryptionKey(Source::Passphrase(Arc::new(passphrase))))
    }

    /// The key that a function returns, for example from a key management service. It is called whenever a database is
    /// opened with it.
    ///
    /// ```
    /// use stemmadb::encryption::EncryptionKey;
    /// # fn ask_the_vault() -> [u8; 32] { [7; 32] }
    /// let key = EncryptionKey::from_callback(|| Ok(ask_the_vault()));
    /// ```
    pub fn from_callback(callback: impl Fn() -> Result<[u8; 32]> + Send + Sync + 'static) -> Self {
        EncryptionKey(Source::Callback(Arc::new(callback)))
    }

    /// A new random key as the contents of a key file: 64 hexadecimal digits and a line end.
    ///
    /// # Errors
    /// `Unavailable` if the operating system has no random numbers, or in builds without the feature `encryption`.
    pub fn generate() -> Result<String> {
        #[cfg(feature = "encryption")]
        return key_source::generate();
        #[cfg(not(feature = "encryption"))]
        return Err(not_built());
    }
}

/// Shows where a key comes from, never the key.
impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::File(path) => write!(f, "EncryptionKey from {}", path.display()),
            Source::Variable(name) => write!(f, "EncryptionKey from ${name}"),
            Source::Passphrase(_) => f.write_str("EncryptionKey from a passphrase"),
            Source::Callback(_) => f.write_str("EncryptionKey from a callback"),
        }
    }
}

#[cfg(not(feature = "encryption"))]
fn not_built() -> Error {
    Error::unavailable("this build of Stemma has no encryption")
        .with_hint("build it with the cargo feature `encryption`")
}

/// The error for an encrypted database that is opened without a key.
pub(crate) fn key_required() -> Error {
    Error::new(ErrorKind::KeyRequired, "the database is encrypted: its key is needed").with_hint(
        "give it with `--key-file FILE` or $STEMMA_KEY_FILE, with $STEMMA_KEY, or with `--passphrase`; \
         in a program, with `Options::encryption`",
    )
}

/// The error for a file that is not encrypted, in a database that is.
pub(crate) fn not_encrypted(name: impl fmt::Display) -> Error {
    Error::corrupt(format!("{name} is not encrypted, but the database is"))
        .with_hint("the file was replaced by another one: restore it, or the database, from a backup")
}

/// The error for encrypted files without the file that has their keys.
pub(crate) fn keys_missing(name: impl fmt::Display) -> Error {
    Error::corrupt(format!("{name} is encrypted, but the file {KEY_FILE} is missing"))
        .with_hint(format!("put {KEY_FILE} back: every backup has it; without it, nothing can be read"))
}

#[cfg(all(test, feature = "encryption"))]
mod tests;
