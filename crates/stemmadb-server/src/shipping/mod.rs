//! Backups of databases and of virtual databases, made once or continuously.
//!
//! The directory remembers continuous backups, so that they run again after a restart: a follower for each database,
//! which stays open, and a task that repeats the backup of a virtual database. Failures are logged, and shown in the
//! info of the database and in the metrics.

mod manifests;
mod repeated;
mod whole;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stemmadb::backup::{BackupOptions, BackupReport, FollowOptions, FollowStatus, Follower};
use stemmadb::{ErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::directory::{Directory, ServedDatabase};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::objects::backup_target;
use crate::settings::SettingStore;
use crate::virtual_databases::VirtualDatabases;
pub(crate) use manifests::Manifests;
use repeated::RepeatedBackup;
pub(crate) use whole::{WholeBackup, back_up_whole};

/// The kind of the directory's records of continuous backups.
const RECORDS: &str = "backup";

/// How often followers are looked after: those whose database was closed or deleted.
const TENDING_INTERVAL: Duration = Duration::from_secs(5);

/// A continuous backup of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContinuousBackup {
    /// The place of the backups.
    pub(crate) place: PathBuf,
    pub(crate) interval_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keep: Option<usize>,
    /// How often a restore is checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) check_ms: Option<u64>,
}

/// The bytes of a backup.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackupSize {
    /// Written to the target.
    pub(crate) copied: u64,
    /// Of files that were linked instead.
    pub(crate) linked: u64,
    /// All, with what earlier backups had.
    pub(crate) total: u64,
}

impl BackupSize {
    fn add(&mut self, other: &BackupSize) {
        self.copied += other.copied;
        self.linked += other.linked;
        self.total += other.total;
    }
}

impl From<&BackupReport> for BackupSize {
    fn from(report: &BackupReport) -> Self {
        BackupSize { copied: report.copied_bytes, linked: report.linked_bytes, total: report.byte_count }
    }
}

/// Makes a backup of a database. Blocks.
///
/// # Errors
/// 409 if there is another writer to the target; those of the library.
pub(crate) fn back_up(served: &ServedDatabase, place: &Path, options: &BackupOptions) -> Result<BackupReport> {
    let target = backup_target(place, true)?;
    let report = served.database().maintenance().backup_with(&*target, options, |_| ()).map_err(reported)?;
    if let Some(error) = &report.cleanup_error {
        tracing::warn!(target: "stemma::backup", "old files of a backup were not deleted: {error}");
    }
    if report.lost_count > 0 {
        let name = served.name();
        tracing::error!(target: "stemma::backup", "{name}: {} has lost {} files of the last backup; they were put \
            again", target.describe(), report.lost_count);
    }
    Ok(report)
}

/// An error of a target with its message: a conflict is one of writers, and what is not found is a backup.
pub(crate) fn reported(error: stemmadb::Error) -> Failure {
    let message = match error.hint() {
        Some(hint) => format!("{} ({hint})", error.message()),
        None => error.message().to_owned(),
    };
    match error.kind() {
        ErrorKind::Conflict => Failure::new(StatusCode::CONFLICT, "conflict", message),
        ErrorKind::NotFound => Failure::not_found(message),
        _ => error.into(),
    }
}

/// The continuous backups of a server.
pub(crate) struct Shipping {
    directory: Arc<Directory>,
    virtual_databases: Arc<VirtualDatabases>,
    running: Mutex<BTreeMap<String, Running>>,
}

/// A continuous backup that runs.
struct Running {
    backup: ContinuousBackup,
    means: Means,
}

enum Means {
    /// The second keeps the database open.
    Follower(Follower, Arc<ServedDatabase>),
    /// Of a virtual database.
    Repetition(RepeatedBackup),
}

impl Shipping {
    pub(crate) fn new(directory: Arc<Directory>, virtual_databases: Arc<VirtualDatabases>) -> Self {
        Shipping { directory, virtual_databases, running: Mutex::default() }
    }

    /// Starts a continuous backup of a database, in place of another one, and remembers it. Blocks.
    ///
    /// # Errors
    /// 503 if it can't be stored; 400 if the place is not valid; 404 if there is no such database.
    pub(crate) fn start(&self, name: &str, backup: ContinuousBackup, runtime: &Handle) -> Result<()> {
        let served = match self.directory.is_virtual(name) {
            true => None,
            false => Some(runtime.block_on(self.directory.open_database(name))?),
        };
        let mut running = self.running.lock();
        if running.get(name).is_some_and(|other| other.is_running() && other.backup == backup) {
            return Ok(());
        }
        // Two followers of one place would replace each other.
        drop(running.remove(name));
        let means = match served {
            Some(served) => follow(served, &backup)?,
            None => self.repeat(name, &backup, runtime)?,
        };
        let started = Running { backup: backup.clone(), means };
        let record = serde_json::to_value(&backup).map_err(|error| Failure::internal(error.to_string()))?;
        self.directory.put_record(RECORDS, name, &record)?;
        running.insert(name.to_owned(), started);
        Ok(())
    }

    fn repeat(&self, name: &str, backup: &ContinuousBackup, runtime: &Handle) -> Result<Means> {
        // Mistakes in the place are found at once.
        backup_target(&backup.place, true)?;
        let whole = WholeBackup { place: backup.place.clone(), has_tree: true, keep: backup.keep };
        let interval = Duration::from_millis(backup.interval_ms);
        let databases = self.virtual_databases.clone();
        Ok(Means::Repetition(RepeatedBackup::start(databases, name, whole, interval, runtime)))
    }

    /// Ends the continuous backup of a database after a last shipment. Blocks.
    ///
    /// # Errors
    /// 404 if there is none; 503 if that can't be stored.
    pub(crate) fn cancel(&self, name: &str) -> Result<()> {
        let ended = self.running.lock().remove(name);
        let is_recorded = self.directory.records(RECORDS)?.iter().any(|(recorded, _)| recorded == name);
        if ended.is_none() && !is_recorded {
            return Err(Failure::not_found("the database has no continuous backup"));
        }
        self.directory.remove_record(RECORDS, name)?;
        ended.map_or(Ok(()), Running::end)
    }

    /// How far the continuous backup of a database has come, if it has one.
    pub(crate) fn status(&self, name: &str) -> Option<FollowStatus> {
        Some(self.running.lock().get(name)?.status())
    }

    /// How far each has come.
    pub(crate) fn statuses(&self) -> BTreeMap<String, FollowStatus> {
        self.running.lock().iter().map(|(name, running)| (name.clone(), running.status())).collect()
    }

    /// Ends all after a last shipment; those of virtual databases, of which parts may be closed already, at once.
    /// Blocks.
    pub(crate) fn stop(&self) {
        for (name, running) in std::mem::take(&mut *self.running.lock()) {
            if matches!(running.means, Means::Repetition(_)) {
                continue;
            }
            if let Err(failure) = running.end() {
                tracing::error!(target: "stemma::backup", "{name}: {}", failure.reason());
            }
        }
    }

    /// Starts what is remembered and does not run: at the start of the server, after a database was opened again, and
    /// after a target could not be opened. Forgets what belongs to deleted databases. Blocks.
    fn tend(&self, runtime: &Handle) -> Result<()> {
        for (name, record) in self.directory.records(RECORDS)? {
            if !self.directory.exists(&name)? {
                drop(self.running.lock().remove(&name));
                self.directory.remove_record(RECORDS, &name)?;
            } else if let Err(failure) = self.tend_one(&name, record, runtime) {
                tracing::error!(target: "stemma::backup", "{name}: {}", failure.reason());
            }
        }
        Ok(())
    }

    /// Starts the continuous backup of a database, unless it runs, or another server of the cluster is to make it.
    fn tend_one(&self, name: &str, record: Value, runtime: &Handle) -> Result<()> {
        let is_virtual = self.directory.is_virtual(name);
        if is_virtual && runtime.block_on(self.directory.other_owner(name))?.is_some() {
            drop(self.running.lock().remove(name));
            return Ok(());
        }
        if self.running.lock().get(name).is_some_and(Running::is_open) {
            return Ok(());
        }
        let backup: ContinuousBackup = record.deserialize_into()?;
        let means = match is_virtual {
            true => Some(self.repeat(name, &backup, runtime)?),
            false => {
                let served = runtime.block_on(self.directory.open_own_database(name))?;
                served.map(|served| follow(served, &backup)).transpose()?
            }
        };
        let mut running = self.running.lock();
        drop(running.remove(name));
        running.extend(means.map(|means| (name.to_owned(), Running { backup, means })));
        Ok(())
    }
}

/// Keeps the continuous backups running until the server stops.
pub(crate) async fn tend(shipping: Arc<Shipping>, mut stopped: watch::Receiver<bool>) {
    loop {
        let (tended, runtime) = (shipping.clone(), Handle::current());
        if let Err(failure) = blocking(move || tended.tend(&runtime)).await {
            tracing::error!(target: "stemma::backup", "continuous backups: {}", failure.reason());
        }
        if timeout(TENDING_INTERVAL, stopped.wait_for(|stopped| *stopped)).await.is_ok() {
            return;
        }
    }
}

/// Starts a follower of a database.
fn follow(served: Arc<ServedDatabase>, backup: &ContinuousBackup) -> Result<Means> {
    let target = backup_target(&backup.place, true)?;
    let mut options = FollowOptions::new()
        .interval(Duration::from_millis(backup.interval_ms))
        .on_status(log_status(served.name().to_owned()));
    if let Some(keep) = backup.keep {
        options = options.keep(keep);
    }
    if let Some(check_ms) = backup.check_ms {
        options = options.check(Duration::from_millis(check_ms), std::env::temp_dir());
    }
    Ok(Means::Follower(served.database().maintenance().follow(target, options)?, served))
}

impl Running {
    fn status(&self) -> FollowStatus {
        match &self.means {
            Means::Follower(follower, _) => follower.status(),
            Means::Repetition(repeated) => repeated.status(),
        }
    }

    /// Whether what it backs up is still open.
    fn is_open(&self) -> bool {
        match &self.means {
            Means::Follower(_, served) => !served.is_closed(),
            Means::Repetition(_) => true,
        }
    }

    fn is_running(&self) -> bool {
        self.status().is_running && self.is_open()
    }

    /// Ends after a last shipment.
    fn end(self) -> Result<()> {
        let ended = match self.means {
            Means::Follower(follower, _) => follower.stop().map(drop).map_err(|error| error.to_string()),
            Means::Repetition(repeated) => repeated.complete().map_err(|failure| failure.reason().to_owned()),
        };
        ended.map_err(|error| {
            let reason = format!("the continuous backup ended, but {error}");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "backup_failed", reason)
        })
    }
}

/// Logs each failure with the lag, and the first success after failures.
fn log_status(name: String) -> impl Fn(&FollowStatus) + Send + Sync {
    let last = Mutex::new((0, None));
    move |status| {
        let mut last = last.lock();
        let (failure_count, checked) = std::mem::replace(&mut *last, (status.failure_count, status.check.clone()));
        let FollowStatus { backup, lag_sequences, target, .. } = status;
        let lag = status.lag.as_secs();
        if checked != status.check
            && let Some(check) = &status.check
        {
            match &check.error {
                Some(error) => tracing::error!(target: "stemma::backup", "{name}: a backup in {target} could not be \
                    restored: {error}"),
                None => tracing::info!(target: "stemma::backup", "{name}: backup {} in {target} was restored and is \
                    sound", check.backup),
            }
        } else if let Some(error) = &status.error {
            let next = if status.is_running { "it is tried again" } else { "the continuous backup has ended" };
            tracing::error!(target: "stemma::backup", "{name}: {error}; {next}; the backups in {target} lack \
                {lag_sequences} sequences, {lag} s");
        } else if failure_count > 0 {
            tracing::warn!(target: "stemma::backup", "{name}: backup {backup} in {target} succeeded after \
                {failure_count} failures");
        }
    }
}

/// The place of the backups of one database: the directory or prefix `name` within the configured place.
pub(crate) fn place_in(configured: &Path, name: &str) -> PathBuf {
    configured.join(name)
}
