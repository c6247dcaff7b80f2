//! Continuous backups of databases: a follower for each, which the directory remembers, so that it runs again after a
//! restart.
//!
//! A database with a continuous backup stays open. Failures are logged, and shown in its info and in the metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use stemmadb::backup::{FollowOptions, FollowStatus, Follower};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::directory::{Directory, ServedDatabase};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::objects::backup_target;
use crate::settings::SettingStore;

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

/// The continuous backups of a server.
pub(crate) struct Shipping {
    directory: Arc<Directory>,
    running: Mutex<BTreeMap<String, Running>>,
}

struct Running {
    follower: Follower,
    backup: ContinuousBackup,
    /// Keeps the database open.
    served: Arc<ServedDatabase>,
}

impl Shipping {
    pub(crate) fn new(directory: Arc<Directory>) -> Self {
        Shipping { directory, running: Mutex::default() }
    }

    /// Starts a continuous backup, in place of another one of the database, and remembers it. Blocks.
    ///
    /// # Errors
    /// 503 if it can't be stored; 400 if the place is not valid.
    pub(crate) fn start(&self, served: Arc<ServedDatabase>, backup: ContinuousBackup) -> Result<()> {
        let name = served.name().to_owned();
        let mut running = self.running.lock();
        if running.get(&name).is_some_and(|other| other.is_running() && other.backup == backup) {
            return Ok(());
        }
        // Two followers of one place would replace each other.
        drop(running.remove(&name));
        let started = Running::start(served, &backup)?;
        let record = serde_json::to_value(&backup).map_err(|error| Failure::internal(error.to_string()))?;
        self.directory.put_record(RECORDS, &name, &record)?;
        running.insert(name, started);
        Ok(())
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
        Some(self.running.lock().get(name)?.follower.status())
    }

    /// How far each has come.
    pub(crate) fn statuses(&self) -> BTreeMap<String, FollowStatus> {
        self.running.lock().iter().map(|(name, running)| (name.clone(), running.follower.status())).collect()
    }

    /// Ends all after a last shipment, until `deadline` has passed for those that have not begun it. Blocks.
    pub(crate) fn stop(&self) {
        for (name, running) in std::mem::take(&mut *self.running.lock()) {
            if let Err(failure) = running.end() {
                tracing::error!(target: "stemma::backup", "{name}: {}", failure.reason());
            }
        }
    }

    /// Starts what is remembered and does not run: at the start of the server, after a database was opened again, and
    /// after a target could not be opened. Forgets what belongs to deleted databases. Blocks.
    fn tend(&self, runtime: &Handle) -> Result<()> {
        for (name, record) in self.directory.records(RECORDS)? {
            if self.running.lock().get(&name).is_some_and(|running| !running.served.is_closed()) {
                continue;
            }
            if !self.directory.exists(&name)? {
                drop(self.running.lock().remove(&name));
                self.directory.remove_record(RECORDS, &name)?;
                continue;
            }
            let started = record.deserialize_into::<ContinuousBackup>().map_err(Failure::from).and_then(|backup| {
                let served = runtime.block_on(self.directory.open_own_database(&name))?;
                served.map(|served| Running::start(served, &backup)).transpose()
            });
            match started {
                Ok(Some(started)) => drop(self.running.lock().insert(name, started)),
                // Another server of the cluster has it.
                Ok(None) => drop(self.running.lock().remove(&name)),
                Err(failure) => tracing::error!(target: "stemma::backup", "{name}: {}", failure.reason()),
            }
        }
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

impl Running {
    fn start(served: Arc<ServedDatabase>, backup: &ContinuousBackup) -> Result<Self> {
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
        let follower = served.database().maintenance().follow(target, options)?;
        Ok(Running { follower, backup: backup.clone(), served })
    }

    fn is_running(&self) -> bool {
        self.follower.status().is_running && !self.served.is_closed()
    }

    fn end(self) -> Result<()> {
        match self.follower.stop() {
            Ok(_) => Ok(()),
            Err(error) => {
                let reason = format!("the continuous backup ended, but {error}");
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "backup_failed", reason))
            }
        }
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
