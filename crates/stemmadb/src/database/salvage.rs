//! What is left of a database that is damaged.

use std::path::Path;
use std::sync::Arc;

use super::Database;
use crate::Result;
use crate::engine::{self, SalvageReport, Salvaged, directory};

impl Database {
    /// Shows everything that can still be read of the closed database at `path`, past whatever damage there is to it,
    /// to `visit`: every record of the log whose checksum is right, then the content of files. Nothing is changed, and
    /// what is derived from the log is not looked at. [`Edit::Foreign`](crate::Edit::Foreign) puts a revision into
    /// another database, as it is.
    ///
    /// Costs two or three reads of the log, and memory for one segment of it and some tens of bytes for each revision.
    ///
    /// # Errors
    /// `NotFound` or `Invalid` if there is no database; `Locked` if another process writes it; `Unavailable` if its
    /// directory can't be read; whatever `visit` returns. Damage is no error: it is in the report.
    pub fn salvage(path: impl AsRef<Path>, mut visit: impl FnMut(Salvaged) -> Result<()>) -> Result<SalvageReport> {
        let (vfs, _lock) = directory::lock_to_read(path.as_ref())?;
        engine::salvage(Arc::new(vfs), &mut visit)
    }
}
