//! Checks of restores: the newest backup is restored to a temporary directory and checked, at intervals.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::destination::Destination;
use super::restore::{RestoreOptions, RestoreReport, restore_to};
use super::target::Target;
use crate::cipher::EncryptionKey;
use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex};
use crate::{Error, ErrorKind, Result};

/// The result of a check of a restore, as by [`check_restore`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreCheck {
    /// The backup that was restored; 0 if it failed.
    pub backup: u64,
    /// The newest sequence of the restored database.
    pub sequence: Sequence,
    /// When the check ended.
    pub time: SystemTime,
    /// Why the backup could not be restored, or what is wrong with the restored database.
    pub error: Option<String>,
}

/// Restores the newest backup to a directory of its own below `directory`, checks the restored database, and removes
/// it.
///
/// This is the proof that a backup can be restored. It needs as much space as the database, and costs copying,
/// rebuilding the tree, and a check. What an interrupted check leaves is removed by the next one of the same target.
/// `key` is that of an encrypted database.
///
/// # Errors
/// Those of [`restore`](super::restore()).
pub fn check_restore(
    target: &dyn Target,
    directory: impl AsRef<Path>,
    key: Option<&EncryptionKey>,
) -> Result<RestoreReport> {
    let destination = Destination::on_disk(&directory.as_ref().join(directory_name(target)))?;
    // An interrupted check may have left a part of a database.
    destination.remove_filled()?;
    let mut options = RestoreOptions::new();
    if let Some(key) = key {
        options = options.encryption(key.clone());
    }
    let report = restore_to(target, &destination, &options, &mut |_| ())?;
    destination.remove_filled()?;
    Ok(report)
}

/// The name of the directory in which restores of a target are checked. The target may be described by a relative path.
pub(super) fn directory_name(target: &dyn Target) -> String {
    let working_directory = std::env::current_dir().unwrap_or_default();
    let place = format!("{} {}", working_directory.display(), target.describe());
    format!("stemma-check-{}", &blake3::hash(place.as_bytes()).to_hex()[..16])
}

/// A thread that checks restores at intervals. Dropping it ends the thread, after a check that is running.
pub(super) struct ScheduledChecks {
    stop: Arc<Stop>,
}

#[derive(Default)]
struct Stop {
    is_stopped: Mutex<bool>,
    signal: Condvar,
}

impl ScheduledChecks {
    /// Calls `note` with the result of each check. Nothing is checked while `is_due` says no. `keys` are those that the
    /// backup may have, newest first.
    pub(super) fn start(
        target: Arc<dyn Target>,
        interval: Duration,
        directory: PathBuf,
        keys: impl Fn() -> Vec<EncryptionKey> + Send + 'static,
        is_due: impl Fn() -> bool + Send + 'static,
        note: impl Fn(RestoreCheck) + Send + 'static,
    ) -> Result<Self> {
        let stop: Arc<Stop> = Arc::default();
        let stopping = stop.clone();
        let run = move || {
            while stopping.wait(interval) {
                if !is_due() {
                    continue;
                }
                let mut known = keys();
                let mut check = checked(&*target, &directory, &known);
                // A key that was replaced meanwhile may be that of the backup.
                while check.error.is_some() && keys().len() > known.len() {
                    known = keys();
                    check = checked(&*target, &directory, &known);
                }
                note(check);
            }
        };
        std::thread::Builder::new().name("stemma-check".to_owned()).spawn(run).map_err(Error::no_thread)?;
        Ok(ScheduledChecks { stop })
    }
}

fn checked(target: &dyn Target, directory: &Path, keys: &[EncryptionKey]) -> RestoreCheck {
    let mut outcome = check_restore(target, directory, keys.first());
    // The newest backup may have been made before the key was replaced.
    for key in keys.iter().skip(1) {
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::WrongKey) {
            outcome = check_restore(target, directory, Some(key));
        }
    }
    let time = SystemTime::now();
    match outcome {
        Ok(report) => RestoreCheck { backup: report.backup, sequence: report.sequence, time, error: None },
        Err(error) => {
            RestoreCheck { backup: 0, sequence: Sequence::ZERO, time, error: Some(error.message().to_owned()) }
        }
    }
}

impl Stop {
    /// Waits; returns false once it is stopped.
    fn wait(&self, interval: Duration) -> bool {
        let deadline = Instant::now() + interval;
        let mut is_stopped = self.is_stopped.lock();
        while !*is_stopped {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            self.signal.wait_for(&mut is_stopped, rest);
        }
        false
    }
}

impl Drop for ScheduledChecks {
    fn drop(&mut self) {
        *self.stop.is_stopped.lock() = true;
        self.stop.signal.notify_all();
    }
}
