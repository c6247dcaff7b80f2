//! A continuous replication on a thread of its own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::follow::{Nudge, ReplicationEvent};
use super::local::position_sequence;
use super::{Peer, Replication, ReplicationStats};
use crate::query::Cancellation;
use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex};
use crate::value::Value;
use crate::{Error, Result};

/// A continuous replication that runs on its own thread until it is stopped or dropped: it replicates while the other
/// side can be reached, and continues from its checkpoint when it is back.
///
/// For both directions, start two. Memory: about two megabytes of documents.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use stemmadb::Database;
/// # use stemmadb::replication::BackgroundReplication;
/// # fn main() -> stemmadb::Result<()> {
/// let (here, there) = (Database::in_memory(), Database::in_memory());
/// let (source, target) = (Arc::new(here.clone()), Arc::new(there.clone()));
/// let push = BackgroundReplication::start(source, target, |replication| replication)?;
/// here.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// let mut pushed = there.subscribe(stemmadb::Sequence::ZERO);
/// assert!(pushed.next_within(Duration::from_secs(30))?.is_some());
/// push.stop();
/// # Ok(())
/// # }
/// ```
pub struct BackgroundReplication {
    shared: Arc<Shared>,
    cancellation: Cancellation,
    nudge: Arc<Nudge>,
    thread: Option<JoinHandle<()>>,
}

/// The state and totals of a [`BackgroundReplication`].
#[derive(Debug, Clone)]
pub struct ReplicationStatus {
    /// What it does now.
    pub state: ReplicationState,
    /// The totals since it started.
    pub stats: ReplicationStats,
    /// The source position up to which the target has everything durably, as far as it is known since it started.
    pub confirmed_position: Option<Value>,
}

/// What a [`BackgroundReplication`] does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ReplicationState {
    /// It copies changes, or connects.
    Running,
    /// The target had everything when this was last checked. It waits for changes.
    CaughtUp,
    /// The last attempt failed; it will be repeated.
    Waiting {
        /// Why it failed.
        error: Arc<Error>,
        /// When it is repeated, counted from the failure.
        retry_after: Duration,
    },
    /// It ended with a failure that repetition does not solve.
    Failed(Arc<Error>),
    /// It was stopped.
    Stopped,
}

struct Shared {
    status: Mutex<ReplicationStatus>,
    changed: Condvar,
}

impl Shared {
    fn set(&self, state: ReplicationState, stats: Option<&ReplicationStats>) {
        let mut status = self.status.lock();
        if let (ReplicationState::CaughtUp, Some(stats)) = (&state, stats) {
            status.confirmed_position = Some(stats.source_position.clone());
        }
        status.state = state;
        if let Some(stats) = stats {
            status.stats = stats.clone();
        }
        self.changed.notify_all();
    }
}

/// Records that the replication ended, even if its thread panics.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Arc::new(Error::internal("the replication panicked"));
            self.0.set(ReplicationState::Failed(error), None);
        }
    }
}

impl BackgroundReplication {
    /// Starts a replication from `source` to `target`. `configure` sets its options: what is replicated, and when it is
    /// tried again.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread for it.
    pub fn start(
        source: Arc<dyn Peer>,
        target: Arc<dyn Peer>,
        configure: impl for<'a> FnOnce(Replication<'a>) -> Replication<'a> + Send + 'static,
    ) -> Result<Self> {
        let (state, stats) = (ReplicationState::Running, ReplicationStats::default());
        let status = ReplicationStatus { state, stats, confirmed_position: None };
        let shared = Arc::new(Shared { status: Mutex::new(status), changed: Condvar::new() });
        let (cancellation, nudge) = (Cancellation::new(), Arc::new(Nudge::default()));
        let (running, cancelled, nudged) = (shared.clone(), cancellation.clone(), nudge.clone());
        let thread = std::thread::Builder::new().name("stemma-replicate".to_owned());
        let thread = thread.spawn(move || {
            let guard = EndGuard(running);
            let shared = &guard.0;
            let mut replication = configure(Replication::new(&*source, &*target)).cancelled_by(&cancelled);
            replication.nudge = Some(nudged);
            let ended = replication.follow(|event| match event {
                ReplicationEvent::Progress(stats) => shared.set(ReplicationState::Running, Some(stats)),
                ReplicationEvent::CaughtUp(stats) => shared.set(ReplicationState::CaughtUp, Some(stats)),
                ReplicationEvent::Failed { error, retry_after } => {
                    let error = Arc::new(error.duplicate());
                    shared.set(ReplicationState::Waiting { error, retry_after }, None);
                }
            });
            match ended {
                Ok(stats) => shared.set(ReplicationState::Stopped, Some(&stats)),
                Err(error) => shared.set(ReplicationState::Failed(Arc::new(error)), None),
            }
        });
        let thread = Some(thread.map_err(Error::no_thread)?);
        Ok(BackgroundReplication { shared, cancellation, nudge, thread })
    }

    /// Returns what it does and the totals so far.
    pub fn status(&self) -> ReplicationStatus {
        self.shared.status.lock().clone()
    }

    /// Waits until its status fulfills a condition, at most for `timeout`; returns whether it does.
    pub fn wait_until(&self, timeout: Duration, mut condition: impl FnMut(&ReplicationStatus) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut status = self.shared.status.lock();
        loop {
            if condition(&status) {
                return true;
            }
            if self.shared.changed.wait_until(&mut status, deadline).timed_out() {
                return condition(&status);
            }
        }
    }

    /// Waits until the target has everything up to a sequence of the source durably, at most for `timeout`; returns
    /// whether it does. For a write that other copies must have before the program goes on.
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use stemmadb::Database;
    /// # use stemmadb::replication::BackgroundReplication;
    /// # fn main() -> stemmadb::Result<()> {
    /// let (here, there) = (Database::in_memory(), Database::in_memory());
    /// let push = BackgroundReplication::start(Arc::new(here.clone()), Arc::new(there.clone()), |push| push)?;
    /// here.insert("solaris", &serde_json::json!({"year": 1961}))?;
    /// assert!(push.wait_for(here.get("solaris")?.unwrap().sequence(), Duration::from_secs(30)));
    /// assert!(there.get("solaris")?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_for(&self, sequence: Sequence, timeout: Duration) -> bool {
        self.wait_until(timeout, |status| {
            let confirmed = status.confirmed_position.as_ref().and_then(|position| position_sequence(position).ok());
            confirmed.is_some_and(|confirmed| confirmed >= sequence)
        })
    }

    /// Tries again now, if it waits after a failure. For a program that learns that the network is back.
    pub fn retry_now(&self) {
        self.nudge.send();
    }

    /// Stops it, waits until its thread has ended, and returns its last status. Progress since the last checkpoint is
    /// repeated by the next replication.
    pub fn stop(mut self) -> ReplicationStatus {
        self.end();
        self.status()
    }

    fn end(&mut self) {
        self.cancellation.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic is recorded in the status.
            thread.join().ok();
        }
    }
}

impl Drop for BackgroundReplication {
    fn drop(&mut self) {
        self.end();
    }
}
