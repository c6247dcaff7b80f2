//! Declared indexes: made, listed, taken away.

use super::Session;
use crate::arguments::{CreateIndex, Index, IndexAct, ListIndexes};
use crate::face::NewIndex;
use crate::failure::Result;
use crate::progress::Progress;
use crate::show::{Look, Show};

/// Does what is asked with the declared indexes.
pub(super) fn run(index: &Index, session: Session<'_>) -> Result<()> {
    match &index.act {
        IndexAct::Create(create) => self::create(index, create, session),
        IndexAct::List(list) => self::list(index, list, session),
        IndexAct::Drop(drop) => session.with(&index.database, |db| db.drop_index(&drop.name)),
    }
}

fn create(index: &Index, create: &CreateIndex, session: Session<'_>) -> Result<()> {
    let new = NewIndex {
        paths: create.paths.split(',').collect(),
        is_unique: create.unique,
        collation: create.collation.as_deref(),
        name: create.name.as_deref(),
    };
    let record = session.with(&index.database, |db| db.create_index(&new, &Progress::of_work("index")))?;
    let mut show = Show::new(Look::of(create.form, Look::Table));
    show.record(record)?;
    show.flush()
}

fn list(index: &Index, list: &ListIndexes, session: Session<'_>) -> Result<()> {
    let mut show = Show::new(Look::of(list.form, Look::Table));
    session.with(&index.database, |db| db.indexes().into_iter().try_for_each(|row| show.row(row)))?;
    show.flush()
}
