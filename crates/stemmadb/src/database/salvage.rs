//! Salvage of a damaged database: [`salvage_database`].

use std::path::Path;
use std::sync::Arc;

use crate::Result;
use crate::cipher::EncryptionKey;
use crate::engine::{self, SalvageReport, Salvaged, directory, key_file};
use crate::options::Options;

/// Reads everything that is still readable in the closed, damaged database at `path`, and passes it to `visit`: every
/// log record whose checksum is right, then the content of files.
///
/// Changes nothing, and ignores what is derived from the log, except names of fields whose records are damaged.
/// [`Edit::Foreign`](crate::Edit::Foreign) writes a salvaged revision to another database unchanged. Costs two or three
/// reads of the log, and memory for one segment and some tens of bytes per revision.
///
/// # Errors
/// `KeyRequired` if it is encrypted; `NotFound` or `Invalid` if there is no database; `Locked` if another process
/// writes it; `Unavailable` if its directory can't be read; errors of `visit`. Damage is not an error: it is listed in
/// the report.
pub fn salvage_database(path: impl AsRef<Path>, visit: impl FnMut(Salvaged) -> Result<()>) -> Result<SalvageReport> {
    salvage(path.as_ref(), Options::new().encryption.as_ref(), visit)
}

/// Same as [`salvage_database`], of a database that is encrypted with this key.
///
/// Its key file must be intact. Records are found if the key authenticates them, and if the frame of any other record
/// that was written while the database was open once is intact.
///
/// # Errors
/// `WrongKey` if the database has another key; `Corrupt` if its key file is damaged or missing; otherwise those of
/// [`salvage_database`].
pub fn salvage_encrypted_database(
    path: impl AsRef<Path>,
    key: &EncryptionKey,
    visit: impl FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    salvage(path.as_ref(), Some(key), visit)
}

fn salvage(
    path: &Path,
    key: Option<&EncryptionKey>,
    mut visit: impl FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let (vfs, _lock) = directory::lock_to_read(path)?;
    engine::salvage(key_file::unlock(Arc::new(vfs), key, true)?, &mut visit)
}
