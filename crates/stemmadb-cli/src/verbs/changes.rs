//! What changed, in order, and what changes next.
//!
//! A database in a directory belongs to one process at a time, so a follower does not keep it: it reads what is new, lets
//! go, and looks again when the log's files have changed.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::{Session, selector};
use crate::arguments::Changes;
use crate::face::{Database, Feed};
use crate::failure::{self, Failure, Result};
use crate::shell::interrupt;
use crate::show::{Look, Show};

/// How often a follower looks at the log's files.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// A follower reads again after this long even if nothing seems to have changed: a write between its reading and its first
/// look would go unnoticed otherwise.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Shows changes, and with `--follow` waits for more.
pub(super) fn run(changes: &Changes, session: Session<'_>) -> Result<()> {
    let mut feed = Feed {
        since: changes.since,
        documents: changes.docs,
        ids: changes.ids.clone(),
        selector: changes.selector.as_deref().map(selector).transpose()?,
        limit: changes.limit,
    };
    let on_terminal = if changes.follow || changes.docs { Look::Lines } else { Look::Table };
    let mut show = Show::new(Look::of(changes.form, on_terminal));
    if !changes.follow {
        return session.with(&changes.database, |db| read(db, &mut feed, &mut show));
    }
    if session.open.is_some() {
        return Err(Failure::usage("--follow would wait forever: the shell has the database to itself")
            .with_hint("leave the shell and use `stemma changes DATABASE --follow`"));
    }
    session.with(&changes.database, |db| read(db, &mut feed, &mut show))?;
    let mut follower = Follower { path: &changes.database, seen: log_files(&changes.database), waiting: None };
    while feed.limit != Some(0) {
        if let Some(db) = follower.next()? {
            let outcome = read(&db, &mut feed, &mut show);
            db.close()?;
            outcome?;
            follower.seen = log_files(&changes.database);
        }
    }
    Ok(())
}

/// Shows what there is; the feed then stands behind it.
fn read(db: &Database, feed: &mut Feed, show: &mut Show) -> Result<()> {
    let newest = db.sequence();
    for change in db.changes(feed)? {
        let change = change?;
        feed.since = change.sequence;
        feed.limit = feed.limit.map(|limit| limit.saturating_sub(1));
        show.row(change.object)?;
        interrupt::check()?;
    }
    if feed.limit != Some(0) {
        feed.since = feed.since.max(newest);
    }
    show.flush()
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
