//! Read replicas: databases that follow the log of another process, which has it in a
//! [`LogStorage`], and answer reads at a known staleness.
//!
//! Frames are applied as they are polled. If the log can't be followed any more, because its owner has
//! compacted what was not read yet, or it was deleted and created again, the database is opened again in another
//! directory beside the first one, and takes its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::engine::directory;
use crate::engine::{Follower, Poll, is_gone};
use crate::options::Options;
use crate::revision::Sequence;
use crate::sync::{Condvar, Mutex, RwLock};
use crate::vfs::LogStorage;
use crate::{Error, Result};

/// How often opening begins again because the owner of the log has deleted a file meanwhile.
const ATTEMPTS_MAX: u32 = 10;

/// The pause before another attempt to open the database again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// The pause between two polls while a sequence is waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// A read replica of a database whose log is in a store: it never takes the log over and writes nothing to the store.
///
/// The log is polled at an interval. Each transaction that its owner was acknowledged is applied as a whole, and in
/// order. Queries, views, the changes feed, subscriptions and live queries work as on the owner. Writes return
/// `Unavailable`.
///
/// # Staleness
/// [`ReplicaStatus::staleness`] is a bound: everything that was acknowledged to the owner before that long ago is
/// visible here. It is at most the interval and the time of a poll while the store answers, and grows while it does
/// not; reads go on. [`Replica::refresh`] and [`Replica::wait_for`] poll at once.
///
/// # Cost
/// A poll of a log that did not change is one request to the store. Otherwise it reads what was appended, once. The
/// directory has copies of all segments of the log, and an index of its own, so reads don't ask the store, except for
/// attachments above 64 KiB and replaced revisions, when they are first read. Those may be deleted by the owner before:
/// then reading them fails, and the document has to be read again.
///
/// Opening copies the segments that the directory lacks, and begins with the index that it has, or else with the newest
/// copy of the owner's.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use stemmadb::replica::Replica;
/// use stemmadb::{Database, ErrorKind, Options};
/// # use stemmadb::log_storage::LogStorage;
///
/// # fn open(storage: Arc<dyn LogStorage>, directory: &std::path::Path) -> stemmadb::Result<()> {
/// let options = Options::new().log_storage(storage);
/// let replica = Replica::open(directory, options, Duration::from_millis(500))?;
/// assert!(replica.database().get("lem-1961")?.is_some());
/// assert!(replica.status().staleness < Duration::from_secs(1));
/// let refused = replica.database().insert("lem-1964", &serde_json::json!({})).unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Unavailable);
/// # Ok(())
/// # }
/// ```
pub struct Replica {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How current a replica is. Returned by [`Replica::status`].
#[derive(Debug)]
pub struct ReplicaStatus {
    /// The newest sequence of the replica.
    pub sequence: Sequence,
    /// Everything that was acknowledged to the owner of the log before this long ago is visible. Times while the
    /// machine sleeps may not count.
    pub staleness: Duration,
    /// Why the last poll failed, if it did.
    pub failure: Option<Error>,
    /// How often the database was opened again because the log could not be followed: see [`Replica::database`].
    pub reopen_count: u64,
    /// Why it was opened again the last time.
    pub reopen_cause: Option<Error>,
}

/// What the replica and its thread share.
struct Shared {
    path: PathBuf,
    options: Options,
    storage: Arc<dyn LogStorage>,
    /// Locked during a poll.
    following: Mutex<Following>,
    current: RwLock<Database>,
    state: Mutex<State>,
    is_stopped: Mutex<bool>,
    stopped: Condvar,
}

struct Following {
    follower: Follower,
    /// The number of its directory.
    generation: u32,
    /// Databases that were replaced, and that snapshots still read.
    replaced: Vec<Database>,
    /// Why the log can't be followed, and when the database is opened again.
    lost: Option<(Error, Instant)>,
}

struct State {
    /// Everything that was acknowledged before is visible.
    seen_at: Instant,
    failure: Option<Error>,
    reopen_count: u64,
    reopen_cause: Option<Error>,
}

impl Replica {
    /// Opens a replica of the database whose log is in [`Options::log_storage`], and polls the log at this interval.
    /// The directory `path` is created if it doesn't exist, and is the replica's own.
    ///
    /// Of the other options, those of the log and of writes have no effect: durability, size of segments, index policy,
    /// compression, creation, and `read_only`.
    ///
    /// # Errors
    /// `Invalid` without a log storage; `NotFound` if the store has no log of this database yet; `Unavailable` if the
    /// store can't be reached; those of [`Database::open`].
    pub fn open(path: impl AsRef<Path>, options: Options, interval: Duration) -> Result<Self> {
        let path = path.as_ref();
        let storage = options.log_storage.of(path).ok_or_else(|| {
            Error::invalid("a replica follows a log in a store, and none is set")
                .with_hint("set `Options::log_storage`")
        })?;
        let options = Options { is_replica: true, read_only: false, ..options };
        let generation = directory::generations(path)?.last().copied().unwrap_or(1);
        let opened = open_generation(path, &storage, &options, generation, None)?;
        directory::remove_other_generations(path, generation);
        let state = State { seen_at: opened.seen_at, failure: None, reopen_count: 0, reopen_cause: None };
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            storage,
            following: Mutex::new(Following {
                follower: opened.follower,
                generation,
                replaced: Vec::new(),
                lost: None,
            }),
            current: RwLock::new(opened.database),
            state: Mutex::new(state),
            is_stopped: Mutex::new(false),
            stopped: Condvar::new(),
            options,
        });
        let mut thread = None;
        if shared.options.background {
            let following = shared.clone();
            let builder = std::thread::Builder::new().name("stemma-replica".to_owned());
            thread = Some(builder.spawn(move || following.run(interval)).map_err(Error::no_thread)?);
        }
        Ok(Replica { shared, thread })
    }

    /// Returns the database. Cheap; ask for it for each piece of work.
    ///
    /// It stays the same as long as the log can be followed. Once it was opened again, an earlier one, its snapshots
    /// and iterators remain readable as of its last sequence until they are dropped; its feeds and live queries end.
    pub fn database(&self) -> Database {
        self.shared.current.read().clone()
    }

    /// Polls the log now. On success, everything that was acknowledged to its owner before the call is visible.
    ///
    /// # Errors
    /// `Unavailable` if the store can't be reached; `NotFound` if the log was deleted; `Closed` if the database was
    /// closed.
    pub fn refresh(&self) -> Result<()> {
        self.shared.poll(Some(Instant::now()))
    }

    /// Waits until the replica has a sequence, for example that of a write that was acknowledged to the owner: returns
    /// false if it does not within this time. Polls the log at once, and then every 10 ms.
    ///
    /// # Errors
    /// Those of [`Replica::refresh`] if the last poll failed.
    pub fn wait_for(&self, sequence: Sequence, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.database().sequence() >= sequence {
                return Ok(true);
            }
            let polled = self.refresh();
            if self.database().sequence() >= sequence {
                return Ok(true);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return polled.map(|()| false);
            }
            std::thread::sleep(rest.min(PAUSE));
        }
    }

    /// Returns how current the replica is. Costs no request.
    pub fn status(&self) -> ReplicaStatus {
        let state = self.shared.state.lock();
        ReplicaStatus {
            sequence: self.shared.current.read().sequence(),
            staleness: state.seen_at.elapsed(),
            failure: state.failure.as_ref().map(Error::duplicate),
            reopen_count: state.reopen_count,
            reopen_cause: state.reopen_cause.as_ref().map(Error::duplicate),
        }
    }

    /// Ends polling, and closes the database for all of its clones. Dropping the replica ends polling, too, and closes
    /// the database once its last clone is dropped.
    ///
    /// # Errors
    /// Those of [`Database::close`].
    pub fn close(mut self) -> Result<()> {
        self.stop();
        self.database().close()
    }

    fn stop(&mut self) {
        *self.shared.is_stopped.lock() = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended polling before.
            thread.join().ok();
        }
        self.shared.following.lock().follower.stop();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("path", &self.shared.path).field("status", &self.status()).finish()
    }
}

impl Following {
    /// Drops the databases that were replaced and that nothing reads any more.
    fn drop_unread(&mut self) {
        self.replaced.retain(|database| database.store().has_readers());
    }
}

impl Shared {
    /// Polls until the replica is stopped.
    fn run(&self, interval: Duration) {
        let mut is_stopped = self.is_stopped.lock();
        while !*is_stopped {
            let was_interrupted = !self.stopped.wait_for(&mut is_stopped, interval).timed_out();
            if was_interrupted {
                continue;
            }
            drop(is_stopped);
            // An error is kept in the state.
            self.poll(None).ok();
            is_stopped = self.is_stopped.lock();
        }
    }

    /// Polls, unless everything from before `since` was seen by another poll.
    fn poll(&self, since: Option<Instant>) -> Result<()> {
        let mut following = self.following.lock();
        following.drop_unread();
        if since.is_some_and(|since| self.state.lock().seen_at >= since) {
            return Ok(());
        }
        let asked_at = Instant::now();
        let polled = match following.lost.take() {
            Some((why, retry_at)) if asked_at < retry_at => {
                let refused = Error::unavailable(format!("the database could not be opened again: {}", why.message()));
                following.lost = Some((why, retry_at));
                Err(refused.with_hint("that is tried again"))
            }
            Some((why, _)) => Ok(Poll::Lost(why)),
            None => following.follower.poll(),
        };
        let seen_at = match polled {
            Ok(Poll::Current) => Ok(asked_at),
            Ok(Poll::Lost(why)) => self.reopen(&mut following, why),
            Err(error) => Err(error),
        };
        let mut state = self.state.lock();
        state.failure = seen_at.as_ref().err().map(Error::duplicate);
        state.seen_at = seen_at?;
        Ok(())
    }

    /// Opens the database again, in another directory, because its log can't be followed. Returns when the log was
    /// looked at.
    fn reopen(&self, following: &mut Following, why: Error) -> Result<Instant> {
        let (before, generation) = (following.generation, following.generation + 1);
        let opened = match open_generation(&self.path, &self.storage, &self.options, generation, Some(before)) {
            Ok(opened) => opened,
            Err(error) => {
                let error = error.within(why.message());
                following.lost = Some((why, Instant::now() + REOPEN_PAUSE));
                return Err(error);
            }
        };
        std::mem::replace(&mut following.follower, opened.follower).abandon();
        following.generation = generation;
        following.replaced.push(std::mem::replace(&mut *self.current.write(), opened.database));
        following.drop_unread();
        {
            let mut state = self.state.lock();
            state.reopen_count += 1;
            state.reopen_cause = Some(why);
        }
        directory::remove_other_generations(&self.path, generation);
        Ok(opened.seen_at)
    }
}

/// A replica that was opened.
struct Opened {
    database: Database,
    follower: Follower,
    seen_at: Instant,
}

/// Opens the replica with this number, which may use the copies that the one with the number `before` has.
fn open_generation(
    path: &Path,
    storage: &Arc<dyn LogStorage>,
    options: &Options,
    generation: u32,
    before: Option<u32>,
) -> Result<Opened> {
    let directory = directory::generation(path, generation);
    let before = before.map(|before| directory::generation(path, before));
    let open = || {
        let seen_at = Instant::now();
        let (opened, stored) =
            directory::open_replica(&directory, storage.clone(), options.clone(), before.as_deref())?;
        let observer = options.rebuild_observer.clone();
        let database = Database::start_opened(opened, &mut |progress| observer.report(progress))?;
        let follower = Follower::new(database.store(), stored);
        Ok(Opened { database, follower, seen_at })
    };
    let mut attempt = 1;
    loop {
        match open() {
            Err(error) if is_gone(&error) && attempt < ATTEMPTS_MAX => attempt += 1,
            opened => return opened,
        }
    }
}
