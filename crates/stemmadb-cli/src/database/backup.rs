//! Backups, restores and branches.

use std::path::Path;
use std::sync::Arc;

use stemmadb::backup::{
    self, At, BackupLag, BackupOptions, BackupReport, RestoreOptions, RestoreReport, Shipper, Target, VerifyReport,
};
use stemmadb::{Object, Selector, Value};
use stemmadb_server::backup_target;

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
    /// Makes a backup.
    pub(crate) fn back_up(
        &self,
        target: &Path,
        keep: Option<usize>,
        has_tree: bool,
        progress: &Progress,
    ) -> Result<BackupReport> {
        let mut options = BackupOptions::new().tree(has_tree);
        if let Some(keep) = keep {
            options = options.keep(keep);
        }
        Ok(self.inner.maintenance().backup_with(&*backup_target(target, true)?, &options, show(progress))?)
    }

    /// Makes a backup with what `shipper` knows of its target.
    pub(crate) fn ship(&self, shipper: &mut Shipper<'_>) -> Result<BackupReport> {
        Ok(self.inner.maintenance().ship(shipper)?)
    }

    /// How far the newest backup in a target is behind the database.
    pub(crate) fn backup_lag(&self, target: &Path) -> Result<BackupLag> {
        Ok(self.inner.maintenance().backup_lag(&*open_target(target)?)?)
    }

    /// Restores a state beside the database, and writes it as new revisions; returns how many documents changed.
    pub(crate) fn revert_to_backup(&self, target: &Path, at: At, progress: &Progress) -> Result<u64> {
        let target = open_target(target)?;
        let directory = self.inner.path().unwrap_or(Path::new("."));
        let directory = directory.with_extension(format!("revert-{}", uuid::Uuid::new_v4().simple()));
        let restored = backup::restore_with_progress(&*target, &directory, restore_options(at), show(progress));
        let changed = restored.and_then(|_| {
            let copy = stemmadb::Database::open_with(&directory, encryption::options())?;
            let changed = self.inner.history().revert_to_copy(Selector::everything(), &copy);
            copy.close()?;
            changed
        });
        let removed = match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let changed = changed?;
        removed.map_err(|error| stemmadb::Error::io(format_args!("remove {}", directory.display()), error))?;
        Ok(changed)
    }

    /// Creates a branch in `directory`.
    pub(crate) fn branch(&self, directory: &Path, at: At) -> Result<()> {
        Ok(self.inner.maintenance().branch(directory, at)?)
    }
}

/// The backups in a target, one record for each.
pub(crate) fn list_backups(target: &Path) -> Result<Vec<Object>> {
    let backups = backup::list(&*open_target(target)?)?;
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
    Ok(backup::verify_with_progress(&*open_target(target)?, show(progress))?)
}

/// Restores the newest backup to a temporary directory and checks it there.
pub(crate) fn check_restore(target: &dyn Target) -> Result<RestoreReport> {
    Ok(backup::check_restore(target, std::env::temp_dir(), encryption::key())?)
}

/// Options of a restore, with the key if one was given.
fn restore_options(at: At) -> RestoreOptions {
    let options = RestoreOptions::new().at(at);
    match encryption::key() {
        Some(key) => options.encryption(key.clone()),
        None => options,
    }
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
    let options = restore_options(at).force(force).check(checks);
    Ok(backup::restore_with_progress(&*open_target(target)?, directory, options, show(progress))?)
}

/// A place for backups, for reading.
fn open_target(target: &Path) -> Result<Arc<dyn Target>> {
    backup_target(target, false).map_err(Failure::from)
}
