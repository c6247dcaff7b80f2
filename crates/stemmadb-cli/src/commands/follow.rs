//! Polls a database that other processes write.
//!
//! Only one process at a time can have a database open. A follower therefore opens it, reads the new changes, closes
//! it, and reopens it when the log's files have changed.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::Session;
use crate::database::Database;
use crate::failure::{self, Failure, Result};
use crate::shell::interrupt;

/// Interval between two checks of the log's files.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A follower reads at least this often, even if the files seem unchanged: otherwise it would miss a write that
/// happened between closing the database and listing its files.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Calls `read` each time the database at `path` has changed and is unlocked, until it returns false or an interrupt is
/// caught.
pub(super) fn follow(path: &Path, mut read: impl FnMut(&Database) -> Result<bool>) -> Result<()> {
    let mut follower = Follower { path, last_files: log_files(path), lock_wait: None };
    while !interrupt::happened() {
        if let Some(db) = follower.next()? {
            let outcome = read(&db);
            db.close()?;
            if !outcome? {
                return Ok(());
            }
            follower.last_files = log_files(path);
        }
    }
    Ok(())
}

/// Refuses to follow within the shell: it holds the database lock, so no other process can write.
pub(super) fn refuse_in_shell(session: Session<'_>, what: &str, command: &str) -> Result<()> {
    match session.open {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!("{what} would wait forever: the shell holds the database lock"))
            .with_hint(format!("leave the shell and use `stemma {command}`"))),
    }
}

/// Waits for the database to change and to be free.
struct Follower<'a> {
    path: &'a Path,
    last_files: Vec<LogFile>,
    /// Set while another process has the database open: since when, or `Some(None)` once a hint was printed.
    lock_wait: Option<Option<Instant>>,
}

/// Name, length and modification time of a log file; writes change them.
pub(super) type LogFile = (OsString, u64, Option<SystemTime>);

impl Follower<'_> {
    /// Opens the database once it has changed; `None` if the caller should try again.
    fn next(&mut self) -> Result<Option<Database>> {
        let start = Instant::now();
        while self.lock_wait.is_none() && start.elapsed() < READ_INTERVAL && log_files(self.path) == self.last_files {
            if interrupt::happened() {
                return Ok(None);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let database = Database::open_if_unlocked(self.path)?;
        if database.is_some() {
            self.lock_wait = None;
            return Ok(database);
        }
        let since = self.lock_wait.get_or_insert(Some(Instant::now()));
        if since.is_some_and(|since| since.elapsed() > Duration::from_secs(2)) {
            failure::hint("waiting for the process that has the database open");
            *since = None;
        }
        std::thread::sleep(POLL_INTERVAL);
        Ok(None)
    }
}

/// Lists the log's files. Unreadable ones are skipped: opening the database reports the error.
pub(super) fn log_files(database: &Path) -> Vec<LogFile> {
    let Ok(entries) = std::fs::read_dir(database.join("log")) else { return Vec::new() };
    let mut files: Vec<LogFile> = entries
        .flatten()
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((entry.file_name(), metadata.len(), metadata.modified().ok()))
        })
        .collect();
    files.sort();
    files
}
