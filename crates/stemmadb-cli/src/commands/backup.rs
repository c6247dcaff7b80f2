//! `stemma backup`, `restore`, `branch` and `follow`.

use std::path::Path;
use std::time::Instant;

use stemmadb::backup::BackupReport;
use stemmadb::{Object, Value};

use super::Session;
use super::follow::{follow, refuse_in_shell};
use crate::arguments::{Backup, Branch, Follow, Restore};
use crate::database::{Database, State, list_backups, restore as restore_database, verify_backups};
use crate::failure::{self, Exit, Failure, Result};
use crate::output::{OutputFormat, Printer};
use crate::progress::Progress;
use crate::shell::interrupt;

/// How often a waiting follower looks for an interrupt.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

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
    let state = match (restore.sequence, restore.backup) {
        (Some(sequence), _) => State::Sequence(sequence),
        (None, Some(number)) => State::Backup(number),
        (None, None) => State::Latest,
    };
    let Restore { target, directory, force, no_check, .. } = restore;
    let progress = Progress::for_steps("restore");
    let report = restore_database(target, directory, &state, *force, !no_check, &progress)?;
    drop(progress);
    let checked_count = report.check.map(|check| ("documents", check.document_count));
    let fields = [("backup", report.backup), ("sequence", report.sequence.get()), ("bytes", report.byte_count)];
    print_record(restore.output, fields.into_iter().chain(checked_count))
}

/// Creates a branch.
pub(super) fn branch(branch: &Branch, session: Session<'_>) -> Result<()> {
    let state = branch.sequence.map_or(State::Latest, State::Sequence);
    session.with(&branch.database, |db| db.branch(&branch.directory, &state))
}

/// Makes a backup whenever the database has changed.
pub(super) fn run_follow(arguments: &Follow, session: Session<'_>) -> Result<()> {
    refuse_in_shell(session, "follow", "follow DATABASE TARGET")?;
    interrupt::catch();
    session.with(&arguments.database, |db| ship(db, arguments))?;
    let mut delay = arguments.interval;
    loop {
        wait(delay);
        let shipped = follow(&arguments.database, |db| {
            ship(db, arguments)?;
            delay = arguments.interval;
            wait(delay);
            Ok(true)
        });
        match shipped {
            // A target that fails is tried again, for longer and longer.
            Err(failure) if matches!(failure.exit(), Exit::Unavailable | Exit::Locked) => {
                failure::notice(format_args!("{failure}; trying again"));
                delay = (delay * 2).min(std::time::Duration::from_mins(5));
                // The database may not change again: ship what the failed attempt did not.
                wait(delay);
                match session.with(&arguments.database, |db| ship(db, arguments)) {
                    Err(again) if again.exit() != failure.exit() => return Err(again),
                    _ => {}
                }
            }
            outcome => return outcome,
        }
    }
}

fn ship(db: &Database, arguments: &Follow) -> Result<()> {
    let progress = Progress::for_steps("backup");
    let report = db.back_up(&arguments.target, arguments.keep, true, &progress)?;
    drop(progress);
    warn_of_leftovers(&report);
    failure::notice(format_args!("backup {} at sequence {}", report.number, report.sequence.get()));
    Ok(())
}

/// Waits, or until an interrupt.
fn wait(delay: std::time::Duration) {
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
