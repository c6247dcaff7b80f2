//! `stemma update` and `stemma delete`: changes of one document, or of all that match.

use stemmadb::{Object, Value};

use super::{Session, argument, on, selector, write_result};
use crate::arguments::{Delete, OutputOptions, Update};
use crate::failure::{Failure, Result};
use crate::output::{OutputFormat, Printer};

/// Updates one document and prints its revision, or all that match and prints how many changed.
pub(super) fn update(update: &Update, session: Session<'_>) -> Result<()> {
    let durability = update.durability.durability;
    match (&update.selector, update.target.as_slice()) {
        (None, [id, patch]) => {
            let patch = argument("patch", patch)?;
            let revision = on!(session, with, &update.database, |db| match update.dry_run {
                true => db.check_update(id, update.rev.as_deref(), &patch),
                false => db.update(id, update.rev.as_deref(), &patch, durability),
            })?;
            print(update.output, write_result(id, &revision))
        }
        (Some(condition), [patch]) => {
            let (selector, patch) = (selector(condition)?, argument("patch", patch)?);
            let (name, count) = on!(session, with, &update.database, |db| match update.dry_run {
                true => Ok(("would_change", db.count_updates(&selector, &patch)?)),
                false => Ok(("changed", db.update_where(&selector, &patch, durability)?)),
            })?;
            print_count(update.output, name, count)
        }
        (None, _) => Err(Failure::usage("the id or the patch is missing")
            .with_hint("stemma update DATABASE ID PATCH, or stemma update DATABASE --where SELECTOR PATCH")),
        (Some(_), _) => {
            Err(Failure::usage("an id and --where exclude each other").with_hint("add {\"_id\": …} to the selector"))
        }
    }
}

/// Deletes one document and prints the revision of the deletion, or all that match and prints how many.
pub(super) fn delete(delete: &Delete, session: Session<'_>) -> Result<()> {
    let durability = delete.durability.durability;
    if let Some(id) = &delete.id {
        let revision = on!(session, with, &delete.database, |db| db.delete(id, delete.rev.as_deref(), durability))?;
        return print(delete.output, write_result(id, &revision));
    }
    let selector = selector(delete.selector.as_deref().unwrap_or_default())?;
    let (name, count) = on!(session, with, &delete.database, |db| match delete.dry_run {
        true => Ok(("would_delete", db.count(&selector, None)?)),
        false => Ok(("deleted", db.delete_where(&selector, durability)?)),
    })?;
    print_count(delete.output, name, count)
}

fn print_count(output: OutputOptions, name: &str, count: u64) -> Result<()> {
    print(output, [(name, Value::from(count))].into_iter().collect())
}

pub(super) fn print(output: OutputOptions, record: Object) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(output, OutputFormat::Table));
    printer.record(record)?;
    printer.flush()
}
