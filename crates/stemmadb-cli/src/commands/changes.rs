//! `stemma changes`: prints the changes feed.

use super::follow::{follow, refuse_in_shell};
use super::{Session, selector};
use crate::arguments::Changes;
use crate::database::{ChangesRequest, Database};
use crate::failure::Result;
use crate::output::{OutputFormat, Printer};
use crate::shell::interrupt;

/// Prints changes; with `--follow`, waits for more.
pub(super) fn run(changes: &Changes, session: Session<'_>) -> Result<()> {
    let mut request = ChangesRequest {
        since: changes.since,
        documents: changes.docs,
        ids: changes.ids.clone(),
        selector: changes.selector.as_deref().map(selector).transpose()?,
        paths: changes.path.clone(),
        limit: changes.limit,
    };
    let on_terminal = if changes.follow || changes.docs { OutputFormat::JsonLines } else { OutputFormat::Table };
    let mut printer = Printer::new(OutputFormat::choose(changes.output, on_terminal));
    if !changes.follow {
        return session.with_past(&changes.database, changes.past, |db| read(db, &mut request, &mut printer));
    }
    refuse_in_shell(session, "--follow", "changes DATABASE --follow")?;
    session.with(&changes.database, |db| read(db, &mut request, &mut printer))?;
    follow(&changes.database, |db| {
        read(db, &mut request, &mut printer)?;
        Ok(request.limit != Some(0))
    })
}

/// Prints the changes since `request.since`, then advances `request` past them.
fn read(db: &Database, request: &mut ChangesRequest, printer: &mut Printer) -> Result<()> {
    let newest = db.sequence();
    for change in db.changes(request)? {
        let change = change?;
        request.since = change.sequence;
        request.limit = request.limit.map(|limit| limit.saturating_sub(1));
        printer.row(change.object)?;
        interrupt::check()?;
    }
    if request.limit != Some(0) {
        request.since = request.since.max(newest);
    }
    printer.flush()
}
