//! Repeated attempts of a replication: after failures that may pass, and for changes that follow.

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use uuid::Uuid;

use super::{Replication, ReplicationStats};
use crate::query::Cancellation;
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result};

/// The timeout of one wait for changes of the source.
const WAIT: Duration = Duration::from_secs(30);

/// When a replication that failed is tried again: after `first`, and then after twice as long each time without
/// progress, up to `max`. Each wait is shortened by a random part, at most half, so that many replicas do not return to
/// a restarted server at the same moment. See [`Replication::follow`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The first wait.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
    /// The most attempts in sequence without progress, in addition to the first.
    pub attempts: u32,
}

impl Default for Retry {
    /// From one second to one minute, without an end.
    fn default() -> Self {
        Retry { first: Duration::from_secs(1), max: Duration::from_secs(60), attempts: u32::MAX }
    }
}

/// What happens during a replication. See [`Replication::follow`] for an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReplicationEvent<'a> {
    /// A page of changes was replicated; the totals since the replication began.
    Progress(&'a ReplicationStats),
    /// The target has everything; the totals since the replication began.
    CaughtUp(&'a ReplicationStats),
    /// An attempt failed and will be repeated.
    Failed {
        /// Why it failed.
        error: &'a Error,
        /// When it is repeated.
        retry_after: Duration,
    },
}

/// Ends the wait before the next attempt early.
#[derive(Default)]
pub(super) struct Nudge(Mutex<Option<Sender<()>>>);

impl Nudge {
    pub(super) fn send(&self) {
        if let Some(sender) = &*self.0.lock() {
            sender.send(()).ok();
        }
    }

    fn receiver(&self) -> (Sender<()>, Receiver<()>) {
        let (sender, receiver) = mpsc::channel();
        *self.0.lock() = Some(sender.clone());
        (sender, receiver)
    }
}

impl ReplicationStats {
    /// The totals of `earlier` attempts and this one.
    fn after(&self, earlier: &ReplicationStats) -> ReplicationStats {
        ReplicationStats {
            checked_count: earlier.checked_count + self.checked_count,
            missing_count: earlier.missing_count + self.missing_count,
            read_count: earlier.read_count + self.read_count,
            written_count: earlier.written_count + self.written_count,
            failed_count: earlier.failed_count + self.failed_count,
            source_position: self.source_position.clone(),
            pending_count: self.pending_count.or(earlier.pending_count),
        }
    }
}

impl Replication<'_> {
    /// Replicates everything that the target lacks now, as [`Replication::run`], and reports events.
    ///
    /// # Errors
    /// Those of [`Replication::run`].
    pub fn run_showing(self, mut on_event: impl FnMut(ReplicationEvent<'_>)) -> Result<ReplicationStats> {
        let retry = self.retry.unwrap_or(Retry { attempts: 0, ..Retry::default() });
        self.drive(false, retry, &mut on_event)
    }

    /// Replicates continuously until it is cancelled; then returns the totals. Blocks. After a failure that may pass,
    /// such as a lost connection, it tries again, as [`Replication::retry`] says.
    ///
    /// ```
    /// # use stemmadb::{Cancellation, Database};
    /// # use stemmadb::replication::{Replication, ReplicationEvent};
    /// # fn main() -> stemmadb::Result<()> {
    /// let (here, there) = (Database::in_memory(), Database::in_memory());
    /// here.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// let cancellation = Cancellation::new();
    /// let done = Replication::new(&here, &there).cancelled_by(&cancellation).follow(|event| match event {
    ///     ReplicationEvent::CaughtUp(_) => cancellation.cancel(),
    ///     ReplicationEvent::Failed { error, retry_after } => eprintln!("{error}; again in {retry_after:?}"),
    ///     _ => {}
    /// })?;
    /// assert_eq!(done.written_count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Failures that repetition does not solve: `Invalid` (such as wrong credentials), `NotFound` (no such database),
    /// `Closed`; and any failure after as many attempts as [`Retry::attempts`] allows.
    pub fn follow(self, mut on_event: impl FnMut(ReplicationEvent<'_>)) -> Result<ReplicationStats> {
        let retry = self.retry.unwrap_or_default();
        self.drive(true, retry, &mut on_event)
    }

    fn drive(
        mut self,
        is_continuous: bool,
        retry: Retry,
        on_event: &mut dyn FnMut(ReplicationEvent<'_>),
    ) -> Result<ReplicationStats> {
        let cancellation = self.cancellation.get_or_insert_default().clone();
        let mut total = ReplicationStats::default();
        let (mut wait, mut attempt_count) = (retry.first, 0);
        loop {
            let before = total.clone();
            let mut has_progress = false;
            let attempted = cancellation.during(|| {
                self.attempt(is_continuous, &mut total, &mut |event| {
                    has_progress |= matches!(event, ReplicationEvent::CaughtUp(_));
                    on_event(event);
                })
            });
            let error = match attempted {
                Ok(()) => return Ok(total),
                Err(_) if is_continuous && cancellation.is_cancelled() => return Ok(total),
                Err(error) => error,
            };
            if has_progress || total.source_position != before.source_position {
                (wait, attempt_count) = (retry.first, 0);
            }
            if cancellation.is_cancelled() || !may_pass(&error) || attempt_count >= retry.attempts {
                return Err(error);
            }
            attempt_count += 1;
            let retry_after = shortened(wait);
            on_event(ReplicationEvent::Failed { error: &error, retry_after });
            self.pause(&cancellation, retry_after);
            wait = (wait * 2).min(retry.max);
        }
    }

    /// Replicates until it has caught up or, if it is continuous, until something fails.
    fn attempt(
        &mut self,
        is_continuous: bool,
        total: &mut ReplicationStats,
        on_event: &mut dyn FnMut(ReplicationEvent<'_>),
    ) -> Result<()> {
        let before = total.clone();
        let mut running = self.clone().begin()?;
        let mut reported = None;
        loop {
            let caught_up = running.catch_up_showing(|stats| {
                *total = stats.after(&before);
                on_event(ReplicationEvent::Progress(total));
            });
            let caught_up = caught_up.map(|_| ());
            *total = running.stats().after(&before);
            if self.since.is_some() {
                // The next attempt continues here instead of starting again.
                self.since = running.position().cloned();
            }
            caught_up?;
            if reported.as_ref() != Some(total) {
                on_event(ReplicationEvent::CaughtUp(total));
                reported = Some(total.clone());
            }
            if !is_continuous {
                return Ok(());
            }
            self.refuse_if_cancelled()?;
            running.wait(WAIT)?;
        }
    }

    /// Waits until the next attempt, unless it is cancelled or nudged.
    fn pause(&self, cancellation: &Cancellation, time: Duration) {
        let (sender, receiver) = self.nudge.as_deref().map_or_else(mpsc::channel, Nudge::receiver);
        let _registered = cancellation.on_cancel(move || {
            sender.send(()).ok();
        });
        receiver.recv_timeout(time).ok();
    }
}

/// Whether a failure may pass without any change of the request.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Conflict | ErrorKind::Locked | ErrorKind::Stopped)
}

/// A wait that is shortened by a random part, at most half.
fn shortened(wait: Duration) -> Duration {
    let random = (Uuid::new_v4().as_u128() % 1000) as u32;
    wait - wait / 2 * random / 1000
}
