//! Long-running work on an open database, listed while it runs.
//!
//! Concurrency: any thread lists, any thread runs a task. The lock is held only to change or to copy the list.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::Store;
use crate::options::Progress;
use crate::sync::Mutex;

/// Long-running work on a database.
///
/// Returned by [`Maintenance::active_tasks`](crate::handles::Maintenance::active_tasks).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveTask {
    /// A number that no other task has had since the database was opened.
    pub number: u64,
    /// The kind of work.
    pub kind: ActiveTaskKind,
    /// The name of the index or view that is built, or where the backup is written; empty for other work.
    pub name: String,
    /// Bytes, documents or changes that are done; both are zero until the amount of work is known.
    pub progress: Progress,
    /// When it started.
    pub started: SystemTime,
    /// When its progress was last reported.
    pub updated: SystemTime,
}

/// The kind of an [`ActiveTask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActiveTaskKind {
    /// A compaction, requested or in the background. Its progress counts bytes of the log.
    Compaction,
    /// A check. Its progress counts bytes of the log and documents.
    Check,
    /// An encryption of everything with another key. Its progress counts bytes of the log.
    Reencryption,
    /// The build of a declared index, or the first read of an expiration rule. Its progress counts documents.
    Index,
    /// The build of a view, or an update by many changes. Its progress counts sequences.
    View,
    /// A backup, or a shipment of a continuous one. Its progress counts bytes.
    Backup,
}

/// The tasks of a store that are running, in the order of their start.
#[derive(Default)]
pub(super) struct ActiveTasks(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    last_number: u64,
    running: Vec<ActiveTask>,
}

/// Keeps a task in the list, until dropped.
pub(crate) struct ListedTask<'a> {
    store: &'a Store,
    number: u64,
}

impl Store {
    /// Lists a task that begins now, whose amount of work is not known yet.
    pub(crate) fn list_task(&self, kind: ActiveTaskKind, name: &str) -> ListedTask<'_> {
        self.list_task_at(kind, name, Progress { done: 0, total: 0 })
    }

    /// Lists a task that begins now, with its progress.
    pub(crate) fn list_task_at(&self, kind: ActiveTaskKind, name: &str, progress: Progress) -> ListedTask<'_> {
        let started = self.now();
        let mut tasks = self.active_tasks.0.lock();
        tasks.last_number += 1;
        let number = tasks.last_number;
        tasks.running.push(ActiveTask { number, kind, name: name.to_owned(), progress, started, updated: started });
        ListedTask { store: self, number }
    }

    /// The tasks that are running.
    pub(crate) fn active_tasks(&self) -> Vec<ActiveTask> {
        self.active_tasks.0.lock().running.clone()
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.parts.options.clock.now_us())
    }
}

impl ListedTask<'_> {
    /// Shows the progress of the task.
    pub(crate) fn show(&self, progress: Progress) {
        let updated = self.store.now();
        let mut tasks = self.store.active_tasks.0.lock();
        if let Some(task) = tasks.running.iter_mut().find(|task| task.number == self.number) {
            (task.progress, task.updated) = (progress, updated);
        }
    }

    /// A function that shows progress, and passes it on.
    pub(crate) fn showing<'p>(&'p self, report: &'p mut dyn FnMut(Progress)) -> impl FnMut(Progress) + 'p {
        move |progress| {
            self.show(progress);
            report(progress);
        }
    }
}

impl Drop for ListedTask<'_> {
    fn drop(&mut self) {
        self.store.active_tasks.0.lock().running.retain(|task| task.number != self.number);
    }
}
