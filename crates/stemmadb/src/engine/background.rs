//! Background pool: a few threads that do the upkeep of all databases of the process.
//!
//! A database schedules work for a time; a thread of the pool does it then. Nothing polls: databases without due work
//! cost no processor time and no thread.
//!
//! Invariants:
//! - One kind of work of one database never runs twice at the same time. If it is scheduled while it runs, it runs
//!   again.
//! - Long work never occupies all threads, so a flush is never late because of a checkpoint.
//! - After [`Registration::stop`], no work of the database runs or begins.
//!
//! Concurrency: one lock guards the schedule of all databases. It is never held while work runs, and nothing else is
//! locked under it.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use super::Store;
use crate::sync::{Condvar, Mutex};
use crate::{Error, Result};

/// Threads that may do long work at the same time.
const LONG_MAX: usize = 3;
/// Threads in all: some are left for short work.
const THREADS_MAX: usize = LONG_MAX + 2;

/// A kind of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Checkpoints, and removal of what nothing references.
    Upkeep = 0,
    /// One step of a merge of the tree.
    Merge = 1,
    /// A flush for writes with interval durability.
    Flush = 2,
    /// Deletion of expired documents.
    Expire = 3,
    /// Compaction of one segment of the log.
    Compact = 4,
    /// A dictionary for compressed bodies.
    Train = 5,
    /// A copy of the tree in the store of the log.
    Ship = 6,
}

const WORK_COUNT: usize = 7;

impl Work {
    fn is_long(self) -> bool {
        matches!(self, Work::Upkeep | Work::Merge | Work::Compact | Work::Train | Work::Ship)
    }
}

/// The schedule of all databases.
struct Pool {
    schedule: Mutex<Schedule>,
    /// Signaled when work is added or has ended.
    changed: Condvar,
}

#[derive(Default)]
struct Schedule {
    databases: HashMap<u64, DatabaseSchedule>,
    /// Which work is due when. The number distinguishes work that is due at the same time.
    queue: BTreeMap<(Instant, u64), (u64, Work)>,
    next_number: u64,
    thread_count: usize,
    waiting_count: usize,
    long_count: usize,
}

/// The work of one database.
struct DatabaseSchedule {
    store: Weak<Store>,
    due: [Option<(Instant, u64)>; WORK_COUNT],
    is_running: [bool; WORK_COUNT],
    /// When work that is running has to run again.
    again_at: [Option<Instant>; WORK_COUNT],
    is_stopped: bool,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool { schedule: Mutex::default(), changed: Condvar::new() })
}

/// A database in the pool.
#[derive(Debug)]
pub(super) struct Registration {
    id: u64,
}

impl Registration {
    /// Adds a database, without work.
    ///
    /// # Errors
    /// `Unavailable` if the pool has no thread and none can be started.
    pub(super) fn new(store: Weak<Store>) -> Result<Self> {
        let pool = pool();
        let mut schedule = pool.schedule.lock();
        if schedule.thread_count == 0 {
            schedule.start_thread().map_err(Error::no_thread)?;
        }
        let id = schedule.next_number;
        schedule.next_number += 1;
        let database = DatabaseSchedule {
            store,
            due: Default::default(),
            is_running: Default::default(),
            again_at: Default::default(),
            is_stopped: false,
        };
        schedule.databases.insert(id, database);
        Ok(Registration { id })
    }

    /// Schedules work in `delay`, or earlier if it is due earlier already.
    pub(super) fn schedule(&self, work: Work, delay: Duration) {
        let pool = pool();
        if pool.schedule.lock().add(self.id, work, Instant::now() + delay) {
            pool.changed.notify_all();
        }
    }

    /// Whether work of the database is running now.
    pub(super) fn has_running_work(&self) -> bool {
        let schedule = pool().schedule.lock();
        schedule.databases.get(&self.id).is_some_and(|database| database.is_running.contains(&true))
    }

    /// Removes the database, after waiting for its running work.
    pub(super) fn stop(&self) {
        let pool = pool();
        let mut schedule = pool.schedule.lock();
        if let Some(database) = schedule.databases.get_mut(&self.id) {
            database.is_stopped = true;
            let due = std::mem::take(&mut database.due);
            due.into_iter().flatten().for_each(|key| _ = schedule.queue.remove(&key));
        }
        while schedule.databases.get(&self.id).is_some_and(|database| database.is_running.contains(&true)) {
            pool.changed.wait(&mut schedule);
        }
        schedule.databases.remove(&self.id);
    }
}

impl Schedule {
    /// Adds work; returns whether a thread has to be told.
    fn add(&mut self, id: u64, work: Work, at: Instant) -> bool {
        let number = self.next_number;
        let Some(database) = self.databases.get_mut(&id).filter(|database| !database.is_stopped) else { return false };
        let kind = work as usize;
        if database.is_running[kind] {
            let again_at = &mut database.again_at[kind];
            *again_at = Some(again_at.map_or(at, |earlier| earlier.min(at)));
            return false;
        }
        match database.due[kind] {
            Some((due, _)) if due <= at => return false,
            Some(key) => _ = self.queue.remove(&key),
            None => {}
        }
        database.due[kind] = Some((at, number));
        self.queue.insert((at, number), (id, work));
        self.next_number += 1;
        if self.waiting_count == 0 && self.thread_count < THREADS_MAX {
            // Without another thread, the running ones do the work later.
            self.start_thread().ok();
        }
        true
    }

    /// Takes the first work that is due and may run now.
    fn take(&mut self, now: Instant) -> Option<(u64, Work, Weak<Store>)> {
        let may_run = |work: Work| !work.is_long() || self.long_count < LONG_MAX;
        let due = self.queue.iter().take_while(|(key, _)| key.0 <= now);
        let (&key, &(id, work)) = due.into_iter().find(|(_, (_, work))| may_run(*work))?;
        self.queue.remove(&key);
        let database = self.databases.get_mut(&id)?;
        database.due[work as usize] = None;
        database.is_running[work as usize] = true;
        self.long_count += usize::from(work.is_long());
        Some((id, work, database.store.clone()))
    }

    /// Records that work has ended.
    fn end(&mut self, id: u64, work: Work) {
        self.long_count -= usize::from(work.is_long());
        let Some(database) = self.databases.get_mut(&id) else { return };
        database.is_running[work as usize] = false;
        if let Some(at) = database.again_at[work as usize].take() {
            self.add(id, work, at);
        }
    }

    fn start_thread(&mut self) -> std::io::Result<()> {
        std::thread::Builder::new().name("stemma-upkeep".to_owned()).spawn(run)?;
        self.thread_count += 1;
        Ok(())
    }
}

/// What each thread of the pool does, for as long as the process runs.
fn run() {
    let pool = pool();
    let mut schedule = pool.schedule.lock();
    loop {
        if let Some((id, work, store)) = schedule.take(Instant::now()) {
            drop(schedule);
            if let Some(store) = store.upgrade() {
                let done = std::panic::catch_unwind(AssertUnwindSafe(|| store.do_work(work)));
                if done.is_err() {
                    store.note_panic();
                }
            }
            schedule = pool.schedule.lock();
            schedule.end(id, work);
            pool.changed.notify_all();
            continue;
        }
        let next = schedule.queue.keys().find(|key| key.0 > Instant::now()).map(|key| key.0);
        schedule.waiting_count += 1;
        match next {
            Some(at) => _ = pool.changed.wait_until(&mut schedule, at),
            None => pool.changed.wait(&mut schedule),
        }
        schedule.waiting_count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Durability, Options};

    /// The names of this process's threads. Other tests run at the same time.
    fn upkeep_thread_count() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "stemma-upkeep").count()
    }

    #[test]
    fn many_databases_share_few_threads() {
        let databases: Vec<Database> = (0..200).map(|_| Database::in_memory()).collect();
        for (number, db) in databases.iter().enumerate() {
            let interval = Durability::Interval(std::time::Duration::from_millis(1));
            db.with_durability(interval).insert("a", &serde_json::json!({"number": number})).unwrap();
        }
        assert!(upkeep_thread_count() <= super::THREADS_MAX, "{} threads", upkeep_thread_count());
        for db in databases {
            while db.info().unwrap().flush_count == 0 {
                std::thread::yield_now();
            }
            db.close().unwrap();
        }
    }

    #[test]
    fn idle_memtable_is_merged_without_another_write() {
        let db = Database::in_memory_with(Options::new()).unwrap();
        let text = "x".repeat(2_000);
        (0..300).for_each(|number| _ = db.insert(&number.to_string(), &serde_json::json!({"text": text})).unwrap());
        while db.info().unwrap().memory_bytes > 0 {
            std::thread::yield_now();
        }
        assert_eq!(db.info().unwrap().document_count, 300);
    }
}
