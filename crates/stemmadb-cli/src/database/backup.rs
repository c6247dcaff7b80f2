//! Backups, restores and branches.

use std::path::Path;

use stemmadb::backup::{
    self, At, BackupOptions, BackupReport, DirectoryTarget, RestoreOptions, RestoreReport, VerifyReport,
};
use stemmadb::{Object, Value};

use super::{Database, encryption};
use crate::failure::{Failure, Result};
use crate::progress::Progress;

/// A state of a database: that of a backup, one in the past, or the newest.
pub(crate) fn state(backup: Option<u64>, at: Option<&str>) -> Result<At> {
    match (backup, at) {
        (Some(number), _) => Ok(At::Backup(number)),
        (None, Some(at)) => Ok(At::from(at.parse::<stemmadb::past::At>()?)),
        (None, None) => Ok(At::Latest),
    }
}

fn show(progress: &Progress) -> impl FnMut(stemmadb::Progress) + use<'_> {
    |step| progress.set_position_and_length(step.done, step.total)
}

impl Database {
    /// Makes a backup. With `supersedes`, also deletes earlier ones that it makes superfluous.
    pub(crate) fn back_up(
        &self,
        target: &Path,
        keep: Option<usize>,
        supersedes: bool,
        progress: &Progress,
    ) -> Result<BackupReport> {
        let mut options = BackupOptions::new().supersede(supersedes);
        if let Some(keep) = keep {
            options = options.keep(keep);
        }
        let target = DirectoryTarget::create(target)?;
        Ok(self.inner.maintenance().backup_with(&target, &options, show(progress))?)
    }

    /// Creates a branch in `directory`.
    pub(crate) fn branch(&self, directory: &Path, at: At) -> Result<()> {
        Ok(self.inner.maintenance().branch(directory, at)?)
    }
}

/// The backups in a target, one record for each.
pub(crate) fn list_backups(target: &Path) -> Result<Vec<Object>> {
    let backups = backup::list(&open_target(target)?)?;
    let record = |backup: backup::BackupInfo| {
        let fields = [
            ("backup", Value::from(backup.number)),
            ("sequence", Value::from(backup.sequence.get())),
            (
                "made",
                Value::from(stemmadb_server::format_rfc3339(u64::try_from(backup.created_ms / 1000).unwrap_or(0))),
            ),
            ("bytes", Value::from(backup.byte_count)),
            ("files", Value::from(backup.file_count)),
        ];
        fields.into_iter().collect()
    };
    Ok(backups.into_iter().map(record).collect())
}

/// Verifies the backups in a target.
pub(crate) fn verify_backups(target: &Path, progress: &Progress) -> Result<VerifyReport> {
    Ok(backup::verify_with_progress(&open_target(target)?, show(progress))?)
}

/// Restores a database from a target.
pub(crate) fn restore(
    target: &Path,
    directory: &Path,
    at: At,
    force: bool,
    checks: bool,
    progress: &Progress,
) -> Result<RestoreReport> {
    let mut options = RestoreOptions::new().at(at).force(force).check(checks);
    if let Some(key) = encryption::key() {
        options = options.encryption(key.clone());
    }
    Ok(backup::restore_with_progress(&open_target(target)?, directory, options, show(progress))?)
}

fn open_target(target: &Path) -> Result<DirectoryTarget> {
    DirectoryTarget::open(target).map_err(Failure::from)
}
