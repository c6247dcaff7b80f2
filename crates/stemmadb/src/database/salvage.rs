//! Salvage of a damaged database: [`salvage_database`].

use std::path::Path;
use std::sync::Arc;

use crate::Result;
use crate::engine::{self, SalvageReport, Salvaged, directory};

/// Reads everything that is still readable in the closed, damaged database at `path`, and passes it to `visit`: every
/// log record whose checksum is right, then the content of files.
///
/// Changes nothing, and ignores what is derived from the log, except names of fields whose records are damaged.
/// [`Edit::Foreign`](crate::Edit::Foreign) writes a salvaged revision to another database unchanged. Costs two or three
/// reads of the log, and memory for one segment and some tens of bytes per revision.
///
/// # Errors
/// `NotFound` or `Invalid` if there is no database; `Locked` if another process writes it; `Unavailable` if its
/// directory can't be read; errors of `visit`. Damage is not an error: it is listed in the report.
pub fn salvage_database(
    path: impl AsRef<Path>,
    mut visit: impl FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let (vfs, _lock) = directory::lock_to_read(path.as_ref())?;
    engine::salvage(Arc::new(vfs), &mut visit)
}
