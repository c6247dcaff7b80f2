//! `stemma log`, `diff`, `undelete`, `revert` and `history`: the past.

use stemmadb::past::At;
use stemmadb::{Object, Value};

use super::{Session, on, selector, write_result};
use crate::arguments::{Diff, History, Kept, Log, OutputOptions, Revert, Undelete};
use crate::failure::{Failure, Result};
use crate::output::{OutputFormat, Printer};
use crate::shell::interrupt;

/// Prints the stored revisions of a document.
pub(super) fn log(log: &Log, session: Session<'_>) -> Result<()> {
    let rows = on!(session, with, &log.database, |db| db.revisions(&log.id, log.docs))?;
    let mut printer = Printer::new(OutputFormat::choose(log.output, OutputFormat::Table));
    rows.into_iter().try_for_each(|row| printer.row(row))?;
    printer.flush()
}

/// Prints the documents that differ between two states.
pub(super) fn diff(diff: &Diff, session: Session<'_>) -> Result<()> {
    let selector = diff.selector.as_deref().map(selector).transpose()?;
    let mut printer = Printer::new(OutputFormat::choose(diff.output, OutputFormat::JsonLines));
    on!(session, with, &diff.database, |db| {
        for row in db.differences(diff.from, diff.to, selector.as_ref())? {
            printer.row(row?)?;
            interrupt::check()?;
        }
        printer.flush()
    })
}

/// Writes the last revision of a deleted document again.
pub(super) fn undelete(undelete: &Undelete, session: Session<'_>) -> Result<()> {
    let durability = undelete.durability.durability;
    let revision = on!(session, with, &undelete.database, |db| db.undelete(&undelete.id, durability))?;
    print(undelete.output, write_result(&undelete.id, &revision))
}

/// Sets documents to a state of the past, or prints how many would change.
pub(super) fn revert(revert: &Revert, session: Session<'_>) -> Result<()> {
    let selector = selector(&revert.selector)?;
    let (name, count) = on!(session, with, &revert.database, |db| match revert.dry_run {
        true => Ok(("would_change", db.count_reverts(&selector, revert.to)?)),
        false => Ok(("changed", db.revert(&selector, revert.to, revert.durability.durability)?)),
    })?;
    print(revert.output, [(name, Value::from(count))].into_iter().collect())
}

/// Changes what is kept of the past, and prints it.
pub(super) fn history(history: &History, session: Session<'_>) -> Result<()> {
    let settings = on!(session, with, &history.database, |db| {
        if let Some(name) = &history.release {
            db.release_pin(name)?;
        }
        if let Some(name) = &history.pin {
            db.pin_history(name, history.at.unwrap_or(At::Sequence(stemmadb::Sequence::new(db.newest()?))))?;
        }
        match (history.keep, &history.prefix) {
            (None, _) => {}
            (Some(Kept::Default), None) => {
                let hint = "give a time, a number of revisions, a size, everything or nothing";
                return Err(Failure::usage("`--keep default` needs --prefix").with_hint(hint));
            }
            (Some(Kept::Default), Some(prefix)) => db.keep_history_of_prefix(prefix, None)?,
            (Some(Kept::Retention(retention)), Some(prefix)) => db.keep_history_of_prefix(prefix, Some(retention))?,
            (Some(Kept::Retention(retention)), None) => db.keep_history(retention)?,
        }
        db.history_settings()
    })?;
    print(history.output, settings)
}

fn print(output: OutputOptions, record: Object) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(output, OutputFormat::Table));
    printer.record(record)?;
    printer.flush()
}
