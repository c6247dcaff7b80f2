//! `stemma info`, `paths`, `check`, `rebuild` and `compact`: inspection and maintenance.

use stemmadb::{Object, Value};

use super::{Session, refuse_url};
use crate::arguments::{Check, Compact, Info, OutputOptions, Paths, Rebuild};
use crate::database::Database;
use crate::failure::{Exit, Failure, Result};
use crate::output::{OutputFormat, Printer};
use crate::progress::Progress;

/// Prints sizes, counts and settings.
pub(super) fn info(info: &Info, session: Session<'_>) -> Result<()> {
    let record = session.with(&info.database, |db| {
        let mut record = db.info()?;
        if let Some(target) = &info.backups {
            let lag = db.backup_lag(target)?;
            record.insert("backup", Value::from(lag.backup));
            record.insert("backup_sequence", Value::from(lag.sequence.get()));
            record.insert("backup_lag_sequences", Value::from(lag.lag_sequences));
            record.insert("backup_lag_seconds", Value::from(lag.lag.as_secs_f64()));
        }
        Ok(record)
    })?;
    print_record(info.output, record)
}

/// Prints each field path in the database.
pub(super) fn paths(paths: &Paths, session: Session<'_>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(paths.output, OutputFormat::Table));
    session.with(&paths.database, |db| db.paths()?.try_for_each(|path| printer.row(path)))?;
    printer.flush()
}

/// Verifies the database; exits with [`Exit::Corrupt`] if it is damaged.
pub(super) fn check(check: &Check, session: Session<'_>) -> Result<()> {
    let result = session.with(&check.database, |db| db.check(&Progress::for_steps("check")))?;
    print_record(check.output, result.report)?;
    let failure = match result.errors.as_slice() {
        [] => return Ok(()),
        [only] => Failure::new(Exit::Corrupt, only),
        [first, rest @ ..] => Failure::new(Exit::Corrupt, format!("{first}, and {} more", rest.len())),
    };
    Err(failure.with_hint(match result.rebuild_helps {
        true => "the log is intact: `stemma rebuild` rebuilds the indexes from it",
        false => "the log itself is damaged: restore a backup, or recover what is readable with `stemma salvage`",
    }))
}

/// Rebuilds all derived data from the log.
pub(super) fn rebuild(rebuild: &Rebuild, session: Session<'_>) -> Result<()> {
    refuse_url(&rebuild.database)?;
    if session.open.is_some() {
        return Err(
            Failure::usage("the shell has the database open").with_hint("leave the shell, then `stemma rebuild`")
        );
    }
    let progress = Progress::for_steps("rebuild");
    let database = Database::rebuild(&rebuild.database, &progress)?;
    drop(progress);
    let record = database.info();
    database.close()?;
    print_record(rebuild.output, record?)
}

/// Compacts the database and prints the number of bytes freed.
pub(super) fn compact(compact: &Compact, session: Session<'_>) -> Result<()> {
    let record = session.with(&compact.database, |db| {
        let freed_bytes = db.compact(&Progress::for_steps("compact"))?;
        let freed: Object = [("freed_bytes", Value::from(freed_bytes))].into_iter().collect();
        Ok(freed)
    })?;
    print_record(compact.output, record)
}

fn print_record(output: OutputOptions, record: Object) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(output, OutputFormat::Table));
    printer.record(record)?;
    printer.flush()
}
