//! `stemma backup`, `restore`, `branch` and `follow`.

use std::path::Path;
use std::time::{Duration, Instant};

use stemmadb::backup::BackupReport;
use stemmadb::{Object, Value};

use super::Session;
use super::follow::{READ_INTERVAL, log_files, refuse_in_shell};
use crate::arguments::{Backup, Branch, Follow, Restore};
use crate::database::{Database, list_backups, restore as restore_database, state, verify_backups};
use crate::failure::{self, Exit, Failure, Result};
use crate::output::{OutputFormat, Printer};
use crate::progress::Progress;
use crate::shell::interrupt;

/// How often a waiting follower looks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The bounds of the time between two attempts.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_mins(5);

/// Makes, lists or verifies backups.
pub(super) fn backup(backup: &Backup, session: Session<'_>) -> Result<()> {
    // Without a database, the only path is the target.
    let target = backup.target.as_ref().unwrap_or(&backup.database);
    if backup.verify {
        return verify(backup, target);
    }
    if backup.list {
        let mut printer = Printer::new(OutputFormat::choose(backup.output, OutputFormat::Table));
        list_backups(target)?.into_iter().try_for_each(|record| printer.row(record))?;
        return printer.flush();
    }
    let progress = Progress::for_steps("backup");
    let report = session.with(&backup.database, |db| db.back_up(target, backup.keep, false, &progress))?;
    drop(progress);
    warn_of_leftovers(&report);
    print_record(
        backup.output,
        [
            ("backup", report.number),
            ("sequence", report.sequence.get()),
            ("copied_bytes", report.copied_bytes),
            ("linked_bytes", report.linked_bytes),
            ("total_bytes", report.byte_count),
        ],
    )
}

/// Verifies the backups; exits with [`Exit::Corrupt`] if one is damaged.
fn verify(backup: &Backup, target: &Path) -> Result<()> {
    let progress = Progress::for_steps("verify");
    let report = verify_backups(target, &progress)?;
    drop(progress);
    print_record(
        backup.output,
        [
            ("backups", report.backup_count),
            ("files", report.file_count),
            ("bytes", report.byte_count),
            ("damaged_files", report.damages.len() as u64),
        ],
    )?;
    for damage in &report.damages {
        failure::notice(format_args!("{}, needed from backup {} on: {}", damage.file, damage.backup, damage.what));
    }
    match report.damages.len() {
        0 => Ok(()),
        count => Err(Failure::new(Exit::Corrupt, format!("{count} files of the backups are damaged"))
            .with_hint("restore a backup that does not need them, or make a new one in another directory")),
    }
}

/// Restores a database.
pub(super) fn restore(restore: &Restore, session: Session<'_>) -> Result<()> {
    if session.open.is_some() {
        return Err(Failure::usage("the shell has a database open").with_hint("leave the shell, then `stemma restore`"));
    }
    let at = state(restore.backup, restore.at.as_deref())?;
    let Restore { target, directory, force, no_check, .. } = restore;
    let progress = Progress::for_steps("restore");
    let report = restore_database(target, directory, at, *force, !no_check, &progress)?;
    drop(progress);
    let checked_count = report.check.map(|check| ("documents", check.document_count));
    let fields = [("backup", report.backup), ("sequence", report.sequence.get()), ("bytes", report.byte_count)];
    print_record(restore.output, fields.into_iter().chain(checked_count))
}

/// Creates a branch.
pub(super) fn branch(branch: &Branch, session: Session<'_>) -> Result<()> {
    let at = state(None, branch.at.as_deref())?;
    session.with(&branch.database, |db| db.branch(&branch.directory, at))
}

/// Makes a backup whenever the database has changed.
pub(super) fn run_follow(arguments: &Follow, session: Session<'_>) -> Result<()> {
    refuse_in_shell(session, "follow", "follow DATABASE TARGET")?;
    interrupt::catch();
    let path = &arguments.database;
    let mut sequence = session.with(path, |db| ship(db, arguments))?;
    let (mut shipped_files, mut shipped_at) = (Some(log_files(path)), Instant::now());
    let interval = arguments.interval.max(SHORTEST_INTERVAL);
    let mut delay = interval;
    loop {
        wait(delay);
        if interrupt::happened() {
            return Ok(());
        }
        if shipped_files.as_ref() == Some(&log_files(path)) && shipped_at.elapsed() < READ_INTERVAL {
            continue;
        }
        match ship_if_unlocked(arguments, sequence) {
            Ok(None) => delay = SHORTEST_INTERVAL,
            Ok(Some(shipped)) => {
                sequence = shipped;
                (shipped_files, shipped_at) = (Some(log_files(path)), Instant::now());
                delay = interval;
            }
            // A target that fails is tried again, at growing intervals.
            Err(failure) if matches!(failure.exit(), Exit::Unavailable | Exit::Locked) => {
                failure::notice(format_args!("{failure}; trying again"));
                shipped_files = None;
                delay = (delay * 2).min(LONGEST_INTERVAL);
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Makes a backup if the database has more than the sequence that was shipped; returns the newest one. `None` if
/// another process has the database open.
fn ship_if_unlocked(arguments: &Follow, shipped: u64) -> Result<Option<u64>> {
    let Some(db) = Database::open_if_unlocked(&arguments.database)? else { return Ok(None) };
    let outcome = if db.sequence() > shipped { ship(&db, arguments) } else { Ok(shipped) };
    db.close()?;
    outcome.map(Some)
}

/// Makes a backup; returns its newest sequence.
fn ship(db: &Database, arguments: &Follow) -> Result<u64> {
    let progress = Progress::for_steps("backup");
    let report = db.back_up(&arguments.target, arguments.keep, true, &progress)?;
    drop(progress);
    warn_of_leftovers(&report);
    failure::notice(format_args!("backup {} at sequence {}", report.number, report.sequence.get()));
    Ok(report.sequence.get())
}

/// Waits, or until an interrupt.
fn wait(delay: Duration) {
    let end = Instant::now() + delay;
    while !interrupt::happened() && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL.min(end.saturating_duration_since(Instant::now())));
    }
}

fn warn_of_leftovers(report: &BackupReport) {
    if let Some(error) = &report.cleanup_error {
        failure::notice(format_args!("the backup is complete, but old files were not deleted: {}", error.message()));
    }
}

fn print_record(
    output: crate::arguments::OutputOptions,
    fields: impl IntoIterator<Item = (&'static str, u64)>,
) -> Result<()> {
    let record: Object = fields.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
    let mut printer = Printer::new(OutputFormat::choose(output, OutputFormat::Table));
    printer.record(record)?;
    printer.flush()
}
