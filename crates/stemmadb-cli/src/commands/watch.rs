//! `stemma watch`: runs a live query.

use super::follow::{follow, refuse_in_shell};
use super::{Session, selector};
use crate::arguments::Watch;
use crate::database::{Database, LiveQuery};
use crate::failure::Result;
use crate::output::{OutputFormat, Printer};
use crate::shell::interrupt;

/// Prints the events of a live query until interrupted.
pub(super) fn run(watch: &Watch, session: Session<'_>) -> Result<()> {
    refuse_in_shell(session, "watch", "watch DATABASE SELECTOR")?;
    let mut query = LiveQuery::new(selector(&watch.selector)?, watch.docs);
    let mut printer = Printer::new(OutputFormat::choose(watch.output, OutputFormat::JsonLines));
    let mut remaining = watch.limit.unwrap_or(u64::MAX);
    let mut read = |db: &Database| {
        query.poll(db, |event| {
            if remaining > 0 {
                remaining -= 1;
                printer.row(event)?;
            }
            interrupt::check()
        })?;
        printer.flush()?;
        Ok(remaining > 0)
    };
    match session.with(&watch.database, &mut read)? {
        true => follow(&watch.database, read),
        false => Ok(()),
    }
}
