//! Triggers: functions of the program that are called after commits, for each matching change.
//!
//! A trigger has a thread, follows the changes feed, and stores its position in a `_local` document. Writers never wait
//! for it, and it misses no document: after a restart it continues at its position.
//!
//! Invariants: a name runs once in a database; the stored position is never later than a change that was not handled.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::changes::{Change, Subscription};
use crate::database::Database;
use crate::query::{Cancellation, Selector};
use crate::replicate::Retry;
use crate::revision::Sequence;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::value::{Object, Value};
use crate::{Error, Result};

/// The error of a trigger's function.
pub type TriggerError = Box<dyn std::error::Error + Send + Sync>;

type DeadLetter = Box<dyn FnMut(&Change, &TriggerError) + Send>;

/// Options of a trigger. See [`Database::trigger`] for an example.
pub struct TriggerOptions {
    selector: Option<Selector>,
    paths: Vec<String>,
    since: Option<Sequence>,
    retry: Retry,
    dead_letter: Option<DeadLetter>,
}

impl Default for TriggerOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl TriggerOptions {
    /// Returns the options of a trigger for all changes from now on, whose failures are retried without end.
    pub fn new() -> Self {
        TriggerOptions { selector: None, paths: Vec::new(), since: None, retry: Retry::default(), dead_letter: None }
    }

    /// Only documents whose winning revision matches the selector.
    #[must_use]
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = Some(selector);
        self
    }

    /// Only documents with a value at a matching path; see [`Changes::paths`](crate::Changes::paths).
    #[must_use]
    pub fn paths<P: Into<String>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        self.paths = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Where a trigger begins that has no position yet. Default: at the newest sequence.
    #[must_use]
    pub fn since(mut self, sequence: Sequence) -> Self {
        self.since = Some(sequence);
        self
    }

    /// When and how often a failed call is repeated; each wait is shortened randomly, by up to a half. Default: after a
    /// second and up to a minute, without end.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Calls `dead_letter` for a change whose last attempt failed, and goes on with the next change. Without it, such a
    /// change is skipped.
    #[must_use]
    pub fn dead_letter(mut self, dead_letter: impl FnMut(&Change, &TriggerError) + Send + 'static) -> Self {
        self.dead_letter = Some(Box::new(dead_letter));
        self
    }
}

/// A running trigger. Dropping it stops it, after the call that is running; its position is kept.
pub struct Trigger {
    cancellation: Cancellation,
    failure: Arc<Mutex<Option<Error>>>,
    position: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// The name of a trigger while it runs. Dropping it frees the name.
struct RunningName {
    names: Arc<Mutex<BTreeSet<String>>>,
    name: String,
}

impl RunningName {
    fn take(database: &Database, name: &str) -> Result<Self> {
        let names = database.trigger_names().clone();
        if !names.lock().insert(name.to_owned()) {
            return Err(Error::conflict(format!("a trigger named {name:?} is running"))
                .with_hint("stop it first, or choose another name: a name is a position in the feed"));
        }
        Ok(RunningName { names, name: name.to_owned() })
    }
}

impl Drop for RunningName {
    fn drop(&mut self) {
        self.names.lock().remove(&self.name);
    }
}

impl Trigger {
    /// Why the trigger ended by itself, if it did: the database was closed, or can't be read.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().as_ref().map(Error::duplicate)
    }

    /// The sequence up to which all changes were handled. After a restart, some of the last are handled again.
    pub fn position(&self) -> Sequence {
        Sequence::new(self.position.load(Ordering::Acquire))
    }

    /// Stops the trigger and waits for the call that is running.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.cancellation.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.end();
    }
}

/// Changes handled between two writes of the position, if they follow each other at once.
const POSITION_INTERVAL: u64 = 100;
/// The longest wait before the trigger checks whether the database is closed.
const WAIT: Duration = Duration::from_secs(30);

/// The state of a trigger's thread.
struct Running<F> {
    database: Database,
    /// The id of the `_local` document with the position.
    id: String,
    options: TriggerOptions,
    function: F,
    cancellation: Cancellation,
    position: Sequence,
    /// The position, for [`Trigger::position`].
    shown_position: Arc<AtomicU64>,
    /// Changes that were handled since the position was written.
    unsaved_count: u64,
}

impl Database {
    /// Calls a function after commits, for each matching change, on a thread of its own: at least once, in the order of
    /// the feed, also for changes that were written while the program did not run.
    ///
    /// The name identifies the position, which is stored in the database. The function
    /// gets the newest state of a document; several writes between two calls are one change. A call that fails, or
    /// panics, is repeated as [`TriggerOptions::retry`] says; later changes wait. Writers never wait.
    ///
    /// ```
    /// # use std::sync::mpsc;
    /// # use std::time::Duration;
    /// # use stemmadb::{Database, field};
    /// # use stemmadb::messages::TriggerOptions;
    /// # fn main() -> stemmadb::Result<()> {
    /// let db = Database::in_memory();
    /// let (sender, paid) = mpsc::channel();
    /// let options = TriggerOptions::new().selector(field("state").eq("paid"));
    /// let trigger = db.trigger("send-receipt", options, move |change| Ok(sender.send(change.id.to_string())?))?;
    /// db.insert("order-1", &serde_json::json!({"state": "paid"}))?;
    /// assert_eq!(paid.recv_timeout(Duration::from_secs(30)).as_deref(), Ok("order-1"));
    /// trigger.stop();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a bad name, selector or pattern; `Conflict` if a trigger of this name runs; `Unavailable` if the
    /// system has no thread; those of a write.
    pub fn trigger(
        &self,
        name: &str,
        options: TriggerOptions,
        function: impl FnMut(&Change) -> std::result::Result<(), TriggerError> + Send + 'static,
    ) -> Result<Trigger> {
        if name.is_empty() {
            return Err(Error::invalid("a trigger needs a name").with_hint("its position is stored under it"));
        }
        let running_name = RunningName::take(self, name)?;
        let id = format!("_local/trigger-{name}");
        let stored = self.local_documents().get(&id)?.and_then(|(_, body)| body.get("sequence")?.as_u64());
        let position = stored.map(Sequence::new).or(options.since).unwrap_or_else(|| self.sequence());
        let cancellation = Cancellation::new();
        let (database, cancelled) = (self.clone(), cancellation.clone());
        let shown_position = Arc::new(AtomicU64::new(position.get()));
        let mut running = Running {
            database,
            id,
            options,
            function,
            cancellation: cancelled,
            position,
            shown_position: shown_position.clone(),
            unsaved_count: 0,
        };
        // Reports malformed options, and makes the beginning durable.
        let subscription = running.subscribe()?;
        if stored.is_none() {
            running.save()?;
        }
        let failure = Arc::new(Mutex::new(None));
        let failed = failure.clone();
        let thread = std::thread::Builder::new().name("stemma-trigger".to_owned());
        let thread = thread.spawn(move || {
            let _running_name = running_name;
            if let Err(error) = running.run(subscription) {
                *failed.lock() = Some(error);
            }
        });
        let thread = Some(thread.map_err(Error::no_thread)?);
        Ok(Trigger { cancellation, failure, position: shown_position, thread })
    }
}

impl<F: FnMut(&Change) -> std::result::Result<(), TriggerError>> Running<F> {
    fn subscribe(&self) -> Result<Subscription> {
        let mut subscription = self.database.subscribe(self.position).documents(true);
        if let Some(selector) = &self.options.selector {
            subscription = subscription.selector(selector)?;
        }
        match self.options.paths.is_empty() {
            true => Ok(subscription),
            false => subscription.paths(&self.options.paths),
        }
    }

    fn run(&mut self, mut subscription: Subscription) -> Result<()> {
        // A token that waits stands for any number of events.
        let (changed, woken) = mpsc::sync_channel(1);
        let cancelled = changed.clone();
        let _registered = self.cancellation.on_cancel(move || {
            cancelled.try_send(()).ok();
        });
        subscription.on_change(move || {
            changed.try_send(()).ok();
        });
        while !self.cancellation.is_cancelled() {
            match subscription.next_within(Duration::ZERO)? {
                Some(change) => {
                    if !self.handle(&change) {
                        break;
                    }
                    self.position = change.sequence;
                    self.shown_position.store(change.sequence.get(), Ordering::Release);
                    self.unsaved_count += 1;
                    if self.unsaved_count >= POSITION_INTERVAL {
                        self.save()?;
                    }
                }
                None => {
                    // Only changes are recorded: writing the position is published, too.
                    self.save_if_needed()?;
                    if subscription.is_closed() {
                        return Err(Error::closed("the database is closed"));
                    }
                    woken.recv_timeout(WAIT).ok();
                }
            }
        }
        self.save_if_needed()
    }

    /// Calls the function until it succeeds or its attempts are used up; false if the trigger is stopped.
    fn handle(&mut self, change: &Change) -> bool {
        let (mut wait, mut attempt_count) = (self.options.retry.first, 0);
        loop {
            let called = catch_unwind(AssertUnwindSafe(|| (self.function)(change)));
            let error = match called {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => error,
                Err(_) => "the function panicked".into(),
            };
            if attempt_count >= self.options.retry.attempts {
                if let Some(dead_letter) = &mut self.options.dead_letter {
                    dead_letter(change, &error);
                }
                return true;
            }
            attempt_count += 1;
            let (sender, stopped) = mpsc::channel();
            let _registered = self.cancellation.on_cancel(move || {
                sender.send(()).ok();
            });
            if stopped.recv_timeout(jittered(wait)).is_ok() {
                return false;
            }
            wait = (wait * 2).min(self.options.retry.max);
        }
    }

    fn save_if_needed(&mut self) -> Result<()> {
        if self.unsaved_count > 0 { self.save() } else { Ok(()) }
    }

    fn save(&mut self) -> Result<()> {
        let mut body = Object::new();
        body.insert("sequence", self.position.get());
        self.database.local_documents().put(&self.id, None, &Value::Object(body))?;
        self.unsaved_count = 0;
        Ok(())
    }
}

/// A random wait between half and all of `wait`, so that triggers that failed together don't repeat together.
fn jittered(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    wait / 2 + (wait / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}
