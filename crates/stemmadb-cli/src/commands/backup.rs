//! `stemma backup`, `restore`, `branch` and `follow`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stemmadb::backup::{BackupReport, Shipper, Target};
use stemmadb::{Object, Value};
use stemmadb_server::Method;
use stemmadb_server::backup_target;

use super::Session;
use super::follow::{READ_INTERVAL, log_files, refuse_in_shell};
use crate::arguments::{Backup, Branch, Follow, Restore};
use crate::database::{
    Database, check_restore, list_backups, request, restore as restore_database, state, verify_backups,
};
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
    let report = session.with(&backup.database, |db| db.back_up(target, backup.keep, !backup.no_tree, &progress))?;
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
    let Restore { target, directory, force, no_check, .. } = restore;
    if let Some(url) = directory.to_str().filter(|text| text.contains("://")) {
        return restore_on_server(restore, url);
    }
    let at = state(restore.backup, restore.at.as_deref())?;
    let progress = Progress::for_steps("restore");
    if restore.revert {
        let count = session.with(directory, |db| db.revert_to_backup(target, at, &progress))?;
        drop(progress);
        return print_record(restore.output, [("changed_documents", count)]);
    }
    let report = restore_database(target, directory, at, *force, !no_check, &progress)?;
    drop(progress);
    let checked_count = report.check.map(|check| ("documents", check.document_count));
    let fields = [("backup", report.backup), ("sequence", report.sequence.get()), ("bytes", report.byte_count)];
    print_record(restore.output, fields.into_iter().chain(checked_count))
}

/// Has a server restore one of its backups.
fn restore_on_server(restore: &Restore, url: &str) -> Result<()> {
    if restore.force || restore.no_check {
        return Err(Failure::usage("--force and --no-check are for directories")
            .with_hint("restore to a new name, or use --revert"));
    }
    let mut body = Object::new();
    body.insert("target", restore.target.to_string_lossy().as_ref());
    body.insert("revert", restore.revert);
    if let Some(at) = &restore.at {
        body.insert("at", at.as_str());
    }
    if let Some(number) = restore.backup {
        body.insert("backup", number);
    }
    let answer = request(Method::POST, url, "/_restore", Some(&body.into()))?;
    let mut printer = Printer::new(OutputFormat::choose(restore.output, OutputFormat::Table));
    printer.record(answer.as_object().cloned().unwrap_or_default())?;
    printer.flush()
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
    let target = backup_target(&arguments.target, true)?;
    let mut shipper = Shipper::new(&*target);
    if let Some(keep) = arguments.keep {
        shipper = shipper.keep(keep);
    }
    let sequence = session.with(&arguments.database, |db| ship(db, &mut shipper))?;
    // There is something to check now.
    let checks = arguments.check.map(|interval| Checks::start(target.clone(), interval)).transpose()?;
    follow_changes(arguments, &mut shipper, sequence)?;
    match checks.is_some_and(|checks| checks.has_failed()) {
        true => Err(Failure::new(Exit::Corrupt, "a backup could not be restored, or its check found damage")
            .with_hint("the first error is above; `stemma backup --verify` names damaged files")),
        false => Ok(()),
    }
}

/// Ships what is later than `sequence`, until an interrupt.
fn follow_changes(arguments: &Follow, shipper: &mut Shipper<'_>, mut sequence: u64) -> Result<()> {
    let path = &arguments.database;
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
        match ship_if_unlocked(path, shipper, sequence) {
            Ok(None) => delay = SHORTEST_INTERVAL,
            Ok(Some(shipped)) => {
                sequence = shipped;
                (shipped_files, shipped_at) = (Some(log_files(path)), Instant::now());
                delay = interval;
            }
            // A target that fails is tried again, at growing intervals.
            Err(failure) if matches!(failure.exit(), Exit::Unavailable | Exit::Locked) => {
                let late = shipped_at.elapsed().as_secs();
                failure::notice(format_args!("{failure}; nothing was shipped for {late} s; trying again"));
                shipped_files = None;
                delay = (delay * 2).min(LONGEST_INTERVAL);
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Makes a backup if the database has more than the sequence that was shipped; returns the newest one. `None` if
/// another process has the database open.
fn ship_if_unlocked(path: &Path, shipper: &mut Shipper<'_>, shipped: u64) -> Result<Option<u64>> {
    let Some(db) = Database::open_if_unlocked(path)? else { return Ok(None) };
    let outcome = if db.sequence() > shipped { ship(&db, shipper) } else { Ok(shipped) };
    db.close()?;
    outcome.map(Some)
}

/// Makes a backup; returns its newest sequence.
fn ship(db: &Database, shipper: &mut Shipper<'_>) -> Result<u64> {
    let report = db.ship(shipper)?;
    warn_of_leftovers(&report);
    failure::notice(format_args!("backup {} at sequence {}", report.number, report.sequence.get()));
    Ok(report.sequence.get())
}

/// A thread that restores and checks the newest backup at intervals.
struct Checks {
    has_failed: Arc<AtomicBool>,
}

impl Checks {
    fn start(target: Arc<dyn Target>, interval: Duration) -> Result<Self> {
        let has_failed = Arc::new(AtomicBool::new(false));
        let failed = has_failed.clone();
        let check = move || {
            loop {
                std::thread::sleep(interval);
                match check_restore(&*target) {
                    Ok(report) => failure::notice(format_args!(
                        "check: backup {} was restored at sequence {}, and is sound",
                        report.backup,
                        report.sequence.get()
                    )),
                    Err(failure) => {
                        failed.store(true, Ordering::Release);
                        failure::notice(format_args!("check: the newest backup could not be restored: {failure}"));
                    }
                }
            }
        };
        // It ends with the process.
        let started = std::thread::Builder::new().name("stemma-check".to_owned()).spawn(check);
        started.map_err(stemmadb::Error::no_thread)?;
        Ok(Checks { has_failed })
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }
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
    if report.lost_count > 0 {
        failure::notice(format_args!(
            "the target has lost {} files of the last backup; they were put again",
            report.lost_count
        ));
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
