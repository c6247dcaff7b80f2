//! Backups of a virtual database that are repeated as long as something changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stemmadb::backup::FollowStatus;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::whole::{WholeBackup, back_up_whole};
use crate::error::{Failure, Result};
use crate::http::blocking;
use crate::virtual_databases::VirtualDatabases;

/// The longest wait after failures, unless the interval is longer.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// A task that backs up a virtual database again and again. It is aborted when this is dropped.
pub(super) struct RepeatedBackup {
    task: JoinHandle<Result<()>>,
    completing: watch::Sender<bool>,
    status: Arc<Mutex<FollowStatus>>,
    runtime: Handle,
}

impl RepeatedBackup {
    pub(super) fn start(
        databases: Arc<VirtualDatabases>,
        name: &str,
        backup: WholeBackup,
        interval: Duration,
        runtime: &Handle,
    ) -> Self {
        let mut status = FollowStatus::default();
        (status.target, status.is_running) = (backup.place.display().to_string(), true);
        let status = Arc::new(Mutex::new(status));
        let (completing, completes) = watch::channel(false);
        let (name, status_of_task) = (name.to_owned(), status.clone());
        let repeater = Repeater { databases, name, backup, status: status_of_task, covered: None };
        let task = runtime.spawn(repeater.run(interval, completes));
        RepeatedBackup { task, completing, status, runtime: runtime.clone() }
    }

    pub(super) fn status(&self) -> FollowStatus {
        self.status.lock().clone()
    }

    /// Ends after one more backup, if something has changed. Blocks.
    ///
    /// # Errors
    /// Those of that backup.
    pub(super) fn complete(mut self) -> Result<()> {
        self.completing.send_replace(true);
        let completed = self.runtime.block_on(&mut self.task);
        completed.map_err(|error| Failure::internal(format!("a backup has failed: {error}")))?
    }
}

impl Drop for RepeatedBackup {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Repeater {
    databases: Arc<VirtualDatabases>,
    name: String,
    backup: WholeBackup,
    status: Arc<Mutex<FollowStatus>>,
    /// The state that the newest backup has at least.
    covered: Option<String>,
}

impl Repeater {
    async fn run(mut self, interval: Duration, mut completes: watch::Receiver<bool>) -> Result<()> {
        let mut complete_at = Instant::now();
        loop {
            let begun = Instant::now();
            let tried = self.try_once().await;
            if tried.is_ok() {
                complete_at = begun;
            }
            let failure_count = self.note(&tried, complete_at);
            if *completes.borrow() {
                return tried;
            }
            let wait = interval.saturating_mul(1 << failure_count.min(8)).min(RETRY_MAX.max(interval));
            // Without an answer in time, or without anybody who could ask for the end, it goes on.
            timeout(wait, completes.wait_for(|completes| *completes)).await.ok();
        }
    }

    /// Makes a backup, unless the newest one has everything.
    async fn try_once(&mut self) -> Result<()> {
        let open = self.databases.open(&self.name).await?;
        let newest = blocking(move || Ok(open.newest_state())).await?;
        if self.covered.as_ref() != Some(&newest) {
            let (number, _) = back_up_whole(&self.databases, &self.name, &self.backup).await?;
            self.status.lock().backup = number;
            self.covered = Some(newest);
        }
        Ok(())
    }

    /// Shows and logs what an attempt came to; returns how many have failed since the last success. At `complete_at`,
    /// the newest backup had everything.
    fn note(&self, tried: &Result<()>, complete_at: Instant) -> u32 {
        let mut status = self.status.lock();
        let failed_before = status.failure_count;
        match tried {
            Ok(()) => {
                if failed_before > 0 {
                    tracing::warn!(target: "stemma::backup", "{}: backup {} in {} succeeded after {failed_before} \
                        failures", self.name, status.backup, status.target);
                }
                (status.failure_count, status.error, status.lag) = (0, None, Duration::ZERO);
            }
            Err(failure) => {
                tracing::error!(target: "stemma::backup", "{}: {}; it is tried again", self.name, failure.reason());
                status.failure_count += 1;
                (status.error, status.lag) = (Some(failure.reason().to_owned()), complete_at.elapsed());
            }
        }
        status.failure_count
    }
}
