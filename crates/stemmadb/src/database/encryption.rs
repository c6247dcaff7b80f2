//! Encrypting and decrypting databases that exist: [`encrypt`], [`decrypt`].

use std::path::Path;

use super::Database;
use crate::Result;
use crate::cipher::EncryptionKey;
use crate::engine::directory;
use crate::options::{Options, Progress};

/// Encrypts the closed database at `path`: every file is written again, encrypted, and the old one deleted.
///
/// If it is interrupted, the database can be used with the key; calling it again completes it. The old bytes may
/// remain in free blocks of the disk, and backups made before stay as they are. Costs reading and writing the database
/// once, and space for its tree and for one segment of the log.
///
/// ```
/// use stemmadb::encryption::{EncryptionKey, decrypt, encrypt};
/// use stemmadb::{Database, Options};
/// # fn main() -> stemmadb::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("stemma-doc-encrypt-{}", std::process::id()));
/// # std::fs::remove_dir_all(&directory).ok();
/// # let path = directory.join("library.stemma");
/// # if std::env::var_os("STEMMA_TEST_KEY").is_some() { return Ok(()); }
/// let db = Database::open(&path)?;
/// db.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// db.close()?;
///
/// let key = EncryptionKey::from_passphrase("correct horse battery staple")?;
/// encrypt(&path, &key, |_| ())?;
/// let db = Database::open_with(&path, Options::new().encryption(key.clone()))?;
/// assert!(db.get("solaris")?.is_some());
/// db.close()?;
/// decrypt(&path, &key, |_| ())?;
/// # std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `NotFound` or `Invalid` if there is no database, or it is encrypted already; `Locked` if it is open; `WrongKey` if
/// an interrupted call had another key; `Corrupt` if stored bytes are damaged; `Unavailable` if files can't be written.
pub fn encrypt(path: impl AsRef<Path>, key: &EncryptionKey, progress: impl FnMut(Progress)) -> Result<()> {
    directory::begin_encryption(path.as_ref(), key)?;
    change(path.as_ref(), key, progress, true)
}

/// Decrypts the closed database at `path`: every file is written again without encryption. The opposite of [`encrypt`],
/// which has an example.
///
/// # Errors
/// `Invalid` if it is not encrypted; otherwise those of [`encrypt`].
pub fn decrypt(path: impl AsRef<Path>, key: &EncryptionKey, progress: impl FnMut(Progress)) -> Result<()> {
    directory::begin_decryption(path.as_ref(), key)?;
    change(path.as_ref(), key, progress, false)
}

fn change(path: &Path, key: &EncryptionKey, mut progress: impl FnMut(Progress), encrypts: bool) -> Result<()> {
    let database = Database::open_with(path, Options::new().create(false).encryption(key.clone()))?;
    let changed = match encrypts {
        true => database.store().complete_encryption(&mut progress),
        false => database.store().complete_decryption(&mut progress),
    };
    let closed = database.close();
    changed.and(closed)
}
