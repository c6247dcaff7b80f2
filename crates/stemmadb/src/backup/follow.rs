//! Continuous backups of an open database: what was written is shipped to a target at intervals.
//!
//! Each shipment is a backup. Those that a later one makes superfluous are deleted, so that about one remains for each
//! segment that compaction has removed. The segments that were removed since the last shipment are kept until they are
//! shipped: every sequence can then be restored.
//!
//! Invariants: nothing is read from or written to the target while nothing is written to the database, and nothing is
//! listed there while the same segment is written to. A follower that finds the backup of another writer stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::rehearse::{RestoreCheck, ScheduledChecks};
use super::ship::Shipper;
use super::target::Target;
use crate::engine::Store;
use crate::log::LogPosition;
use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex};
use crate::{Error, ErrorKind, Result};

/// The longest time between two attempts while the target fails.
const RETRY_MAX: Duration = Duration::from_mins(5);

/// Options of a [`Follower`].
#[derive(Clone)]
pub struct FollowOptions {
    interval: Duration,
    keep: Option<usize>,
    held_bytes_max: u64,
    /// How often a restore is checked, and where.
    checks: Option<(Duration, PathBuf)>,
    observer: Option<Observer>,
}

type Observer = Arc<dyn Fn(&FollowStatus) + Send + Sync>;

impl Default for FollowOptions {
    fn default() -> Self {
        let interval = Duration::from_secs(10);
        FollowOptions { interval, keep: None, held_bytes_max: 1 << 30, checks: None, observer: None }
    }
}

impl FollowOptions {
    /// The default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how often changes are shipped: 10 seconds by default. At most what was written in this time is lost with
    /// the disk of the database.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Keeps the newest `count` backups, at least one. By default those are kept that are needed to restore any
    /// sequence.
    #[must_use]
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = Some(count.max(1));
        self
    }

    /// Sets how many bytes of segments that compaction has removed are kept while the target fails: 1 GiB by default.
    /// Beyond that they are given up, and sequences in them can't be restored.
    #[must_use]
    pub fn held_bytes(mut self, byte_count: u64) -> Self {
        self.held_bytes_max = byte_count;
        self
    }

    /// Restores the newest backup at this interval into a directory below `directory`, checks it as
    /// [`check_restore`](super::check_restore) does, and removes it. The first check is made after the first interval,
    /// on a thread of its own; [`FollowStatus::check`] has the result.
    #[must_use]
    pub fn check(mut self, interval: Duration, directory: impl AsRef<Path>) -> Self {
        self.checks = Some((interval, directory.as_ref().to_owned()));
        self
    }

    /// Calls `observe` after each shipment, each check and each failure, on the thread that does it.
    #[must_use]
    pub fn on_status(mut self, observe: impl Fn(&FollowStatus) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observe));
        self
    }
}

impl std::fmt::Debug for FollowOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FollowOptions").field("interval", &self.interval).field("keep", &self.keep).finish()
    }
}

/// How far a [`Follower`] has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FollowStatus {
    /// Where the backups are.
    pub target: String,
    /// The number of the newest backup; 0 before the first one.
    pub backup: u64,
    /// The newest sequence in the target.
    pub sequence: Sequence,
    /// Shipments since the follower was started.
    pub shipment_count: u64,
    /// At most this old is the oldest change that the target lacks; zero if it lacks none.
    pub lag: Duration,
    /// Why the last attempt failed, if it did.
    pub error: Option<String>,
    /// How many attempts have failed since the last one that succeeded.
    pub failure_count: u32,
    /// Sequences that the target lacks.
    pub lag_sequences: u64,
    /// The result of the last check of a restore.
    pub check: Option<RestoreCheck>,
    /// Whether the follower goes on. It ends when it is stopped, when the database is closed, and when another writer
    /// takes over the target.
    pub is_running: bool,
}

/// A running continuous backup, started by [`Maintenance::follow`](crate::handles::Maintenance::follow). Dropping it
/// ends it without a last shipment.
pub struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Ends with the follower.
    _checks: Option<ScheduledChecks>,
}

/// What a follower shares with its threads and its database.
pub(crate) struct Shared {
    store: Arc<Store>,
    target: Arc<dyn Target>,
    options: FollowOptions,
    state: Mutex<State>,
    /// Signaled when the follower is to stop.
    stopped: Condvar,
}

struct State {
    status: FollowStatus,
    /// Everything before this position is in the target.
    shipped_end: LogPosition,
    /// When the target lacked nothing.
    complete_at: Instant,
    stop: Option<Stop>,
}

/// How a follower is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    AfterShipment,
    Now,
}

impl Follower {
    pub(crate) fn start(store: &Arc<Store>, target: Arc<dyn Target>, options: FollowOptions) -> Result<Self> {
        let status = FollowStatus { is_running: true, ..FollowStatus::default() };
        let state = State { status, shipped_end: LogPosition::START, complete_at: Instant::now(), stop: None };
        let shared = Arc::new(Shared {
            store: store.clone(),
            target,
            options,
            state: Mutex::new(state),
            stopped: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("stemma-follow".to_owned());
        let running = shared.clone();
        let thread = thread.spawn(move || running.run()).map_err(Error::no_thread)?;
        let mut follower = Follower { shared, thread: Some(thread), _checks: None };
        if let Some((interval, directory)) = &follower.shared.options.checks {
            // A check that is running when the follower ends keeps nothing of it.
            let checked = Arc::downgrade(&follower.shared);
            let note = move |check| _ = checked.upgrade().map(|shared| shared.note_check(check));
            let begun = Arc::downgrade(&follower.shared);
            let has_backup = move || begun.upgrade().is_some_and(|shared| shared.status().backup > 0);
            let target = follower.shared.target.clone();
            let opened = Arc::downgrade(&follower.shared);
            let keys = move || opened.upgrade().map_or_else(Vec::new, |shared| shared.store.user_keys());
            follower._checks =
                Some(ScheduledChecks::start(target, *interval, directory.clone(), keys, has_backup, note)?);
        }
        Ok(follower)
    }

    /// What it shares with its database.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How far it has come. Costs next to nothing.
    pub fn status(&self) -> FollowStatus {
        self.shared.status()
    }

    /// Ships what the target lacks, and ends.
    ///
    /// # Errors
    /// The error of the last attempt, if it failed.
    pub fn stop(mut self) -> Result<FollowStatus> {
        self.end(Stop::AfterShipment);
        let status = self.shared.status();
        match &status.error {
            Some(error) => Err(Error::unavailable(format!("the last shipment failed: {error}"))),
            None => Ok(status),
        }
    }

    fn end(&mut self, stop: Stop) {
        self.shared.state.lock().stop.get_or_insert(stop);
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            self.shared.fail(&Error::internal("the follower's thread panicked"), true);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end(Stop::Now);
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn status(&self) -> FollowStatus {
        let state = self.state.lock();
        let is_complete = state.status.shipment_count > 0 && self.store.parts.log.end() == state.shipped_end;
        let lag = if is_complete { Duration::ZERO } else { state.complete_at.elapsed() };
        let lag_sequences = self.store.parts.publisher.published().0.saturating_sub(state.status.sequence.0);
        FollowStatus { lag, lag_sequences, target: self.target.describe(), ..state.status.clone() }
    }

    fn note_check(&self, check: RestoreCheck) {
        self.state.lock().status.check = Some(check);
        self.observe();
    }

    fn run(&self) {
        let mut shipper = Shipper::new(&*self.target);
        if let Some(keep) = self.options.keep {
            shipper = shipper.keep(keep);
        }
        let mut delay = Duration::ZERO;
        loop {
            let stop = self.wait(delay);
            if stop == Some(Stop::Now) {
                break;
            }
            match self.ship_if_changed(&mut shipper) {
                Ok(()) => delay = self.options.interval,
                Err(error) => {
                    // Another writer, another database, a closed database: trying again does not help.
                    let is_final = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::Closed);
                    self.fail(&error, is_final);
                    if is_final {
                        return;
                    }
                    shipper.give_up_segments_beyond(self.options.held_bytes_max);
                    let shortest = self.options.interval.max(Duration::from_millis(10));
                    delay = (delay * 2).clamp(shortest, RETRY_MAX.max(shortest));
                }
            }
            if stop.is_some() {
                break;
            }
        }
        self.state.lock().status.is_running = false;
    }

    /// Waits for `delay`, or until the follower is to stop.
    fn wait(&self, delay: Duration) -> Option<Stop> {
        let deadline = Instant::now() + delay;
        let mut state = self.state.lock();
        while state.stop.is_none() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            self.stopped.wait_for(&mut state, rest);
        }
        state.stop
    }

    fn ship_if_changed(&self, shipper: &mut Shipper<'_>) -> Result<()> {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            if state.status.shipment_count > 0 && self.store.parts.log.end() == state.shipped_end {
                state.complete_at = now;
                return Ok(());
            }
        }
        let shipment = shipper.ship_from(&self.store)?;
        let report = shipment.report;
        {
            let mut state = self.state.lock();
            state.shipped_end = shipment.end;
            state.complete_at = now;
            let status = &mut state.status;
            (status.backup, status.sequence) = (report.number, report.sequence);
            status.shipment_count += 1;
            (status.error, status.failure_count) = (None, 0);
        }
        match report.cleanup_error {
            _ if report.lost_count > 0 => self.fail(&lost(&*self.target, report.lost_count), false),
            Some(error) => self.fail(&error.within("superfluous files were not deleted"), false),
            None => self.observe(),
        }
        Ok(())
    }

    fn fail(&self, error: &Error, is_final: bool) {
        {
            let mut state = self.state.lock();
            state.status.error = Some(error.message().to_owned());
            state.status.failure_count += 1;
            state.status.is_running &= !is_final;
        }
        self.observe();
    }

    fn observe(&self) {
        if let Some(observer) = &self.options.observer {
            observer(&self.status());
        }
    }
}

fn lost(target: &dyn Target, count: u64) -> Error {
    Error::unavailable(format!("{} has lost {count} files of the last backup; they were put again", target.describe()))
}
