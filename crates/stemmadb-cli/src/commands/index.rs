//! `stemma index`: creates, lists and drops declared indexes.

use super::{Session, on};
use crate::arguments::{CreateIndex, Index, IndexCommand, ListIndexes};
use crate::database::NewIndex;
use crate::failure::Result;
use crate::output::{OutputFormat, Printer};
use crate::progress::Progress;

/// Runs one of the index subcommands.
pub(super) fn run(index: &Index, session: Session<'_>) -> Result<()> {
    match &index.command {
        IndexCommand::Create(create) => self::create(index, create, session),
        IndexCommand::List(list) => self::list(index, list, session),
        IndexCommand::Drop(drop) => on!(session, with, &index.database, |db| db.drop_index(&drop.name)),
    }
}

fn create(index: &Index, create: &CreateIndex, session: Session<'_>) -> Result<()> {
    let new = NewIndex {
        paths: create.paths.split(',').collect(),
        is_unique: create.unique,
        collation: create.collation.as_deref(),
        name: create.name.as_deref(),
    };
    let record = on!(session, with, &index.database, |db| db.create_index(&new, &Progress::for_steps("index")))?;
    let mut printer = Printer::new(OutputFormat::choose(create.output, OutputFormat::Table));
    printer.record(record)?;
    printer.flush()
}

fn list(index: &Index, list: &ListIndexes, session: Session<'_>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(list.output, OutputFormat::Table));
    on!(session, with, &index.database, |db| db.indexes()?.into_iter().try_for_each(|row| printer.row(row)))?;
    printer.flush()
}
