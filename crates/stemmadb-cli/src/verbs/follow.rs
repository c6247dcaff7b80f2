//! Reading a database again and again as others write it.
//!
//! A database in a directory belongs to one process at a time, so a follower does not keep it: it reads what is new, lets
//! go, and looks again when the log's files have changed.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::Session;
use crate::face::Database;
use crate::failure::{self, Failure, Result};
use crate::shell::interrupt;

/// How often a follower looks at the log's files.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A follower reads again after this long even if nothing seems to have changed: a write between its reading and its first
/// look would go unnoticed otherwise.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Calls `read` whenever the database at `path` has changed and is free, until it says false or an interrupt that is caught came.
pub(super) fn follow(path: &Path, mut read: impl FnMut(&Database) -> Result<bool>) -> Result<()> {
    let mut follower = Follower { path, seen: log_files(path), waiting: None };
    while !interrupt::happened() {
        if let Some(db) = follower.next()? {
            let outcome = read(&db);
            db.close()?;
            if !outcome? {
                return Ok(());
            }
            follower.seen = log_files(path);
        }
    }
    Ok(())
}

/// The shell has the database to itself, so nothing would ever happen.
pub(super) fn refuse_in_shell(session: Session<'_>, what: &str, command: &str) -> Result<()> {
    match session.open {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!("{what} would wait forever: the shell has the database to itself"))
            .with_hint(format!("leave the shell and use `stemma {command}`"))),
    }
}

/// Waits for the database to change and to be free.
struct Follower<'a> {
    path: &'a Path,
    seen: Vec<LogFile>,
    /// Since when another process has the database; `None` in it once that was said.
    waiting: Option<Option<Instant>>,
}

/// What tells whether a file was written.
type LogFile = (OsString, u64, Option<SystemTime>);

impl Follower<'_> {
    /// The database, once it has changed and nobody else has it; none if it is worth another try.
    fn next(&mut self) -> Result<Option<Database>> {
        let start = Instant::now();
        while self.waiting.is_none() && start.elapsed() < READ_INTERVAL && log_files(self.path) == self.seen {
            if interrupt::happened() {
                return Ok(None);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        let database = Database::existing_if_free(self.path)?;
        if database.is_some() {
            self.waiting = None;
            return Ok(database);
        }
        let since = self.waiting.get_or_insert(Some(Instant::now()));
        if since.is_some_and(|since| since.elapsed() > Duration::from_secs(2)) {
            failure::hint("waiting for the process that has the database open");
            *since = None;
        }
        std::thread::sleep(LOOK_INTERVAL);
        Ok(None)
    }
}

/// The log's files as they are now; what can't be read is as if it were not there, and opening will tell.
fn log_files(database: &Path) -> Vec<LogFile> {
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
