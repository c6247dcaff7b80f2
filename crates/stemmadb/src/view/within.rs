//! A view within a transaction: as it would be of the documents that the transaction sees, its own writes among them.
//!
//! What the view says at some position is brought, in memory and for this one reading, to the state that the transaction is upon, and then
//! its own writes are mapped. Where the view has come further than that, as it may beside an attempt, the documents that were written since
//! are mapped as they were.

use std::sync::Arc;

use super::cell::{Cell, Newest, Reading};
use super::definition::Mapping;
use super::layout::{self, SlotNumber};
use super::state::{State, Working, is_mapped};
use crate::Result;
use crate::document::Document;
use crate::engine::Transaction;
use crate::read::Snapshot;
use crate::revision::Sequence;
use crate::transact::{Attempt, Test};

/// Documents mapped at once.
const BATCH_COUNT: usize = 512;

/// What a view can be asked within: a [`Transaction`] or an [`Attempt`] at one.
pub trait ViewSession: sealed::Sealed {
    /// The transaction that is looked through.
    #[doc(hidden)]
    fn transaction(&mut self) -> &Transaction<'_>;

    /// Notes that every document which this says yes of was read.
    #[doc(hidden)]
    fn depend(&mut self, is_read: Test);
}

impl ViewSession for Transaction<'_> {
    fn transaction(&mut self) -> &Transaction<'_> {
        self
    }

    fn depend(&mut self, _: Test) {}
}

impl ViewSession for Attempt<'_> {
    fn transaction(&mut self) -> &Transaction<'_> {
        Attempt::transaction(self)
    }

    fn depend(&mut self, is_read: Test) {
        Attempt::depend(self, is_read);
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for crate::Transaction<'_> {}
    impl Sealed for crate::Attempt<'_> {}
}

/// The view as the session sees it; to be read through what is depended on.
pub(super) fn reading<S: ViewSession>(cell: &Cell, session: &mut S) -> Result<Reading> {
    let mapping = cell.mapping.clone();
    // A row that comes, goes or changes is of a document that has rows before or after.
    session.depend(Box::new(move |document| has_rows(&*mapping, document)));
    let transaction = session.transaction();
    let snapshot = transaction.snapshot()?;
    let base = transaction.base();
    let (mut working, is_made) = begin(cell, base)?;
    for written in transaction.written()? {
        working.apply(written.number, written.new.as_ref())?;
    }
    if let Some(ended) = snapshot.ended()? {
        ended.iter().try_for_each(|number| working.apply(number, None))?;
    }
    match is_made {
        true => working.settle(cell.reducer.as_deref())?,
        false => working.reduce_all(cell.reducer.as_deref())?,
    }
    let rows = working.layered().clone();
    drop(working);
    Ok(Reading { snapshot, rows, reducer: cell.reducer.clone(), is_stale: false, position: base.sequence() })
}

fn has_rows(mapping: &dyn Mapping, document: &Document) -> Result<bool> {
    if !is_mapped(mapping, document) {
        return Ok(false);
    }
    let emitted = mapping.map(&[document])?;
    // One that can't be mapped has no rows, but who knows what it will have.
    Ok(emitted.iter().all(|emitted| emitted.as_ref().map_or(true, |rows| !rows.is_empty())))
}

/// The rows of the documents of `base`; and whether all but those that changed are reduced, or none are.
fn begin<'c>(cell: &'c Cell, base: &Snapshot) -> Result<(Working<'c>, bool)> {
    let Some(Newest { tree, prefix, state }) = cell.newest()? else {
        let nothing: Arc<[u8]> = layout::slot_prefix(SlotNumber(u64::MAX)).into();
        let working = Working::begin(&*cell.mapping, base.tree().clone(), nothing, &State::default());
        return Ok((follow(working, base)?, false));
    };
    let is_ahead = state.position > base.sequence();
    let mut working = Working::begin(&*cell.mapping, tree, prefix, &state);
    if !is_ahead {
        return Ok((follow(working, base)?, true));
    }
    // What the view has of these is later; each is listed once, at its latest event.
    let now = cell.store()?.snapshot()?;
    let mut after = base.sequence();
    while after < now.sequence() {
        let found = now.events_after(after, BATCH_COUNT)?;
        for (_, number) in found.events {
            let before = base.state(number)?.filter(|state| state.is_live());
            let before = before.map(|state| base.winner(&state)).transpose()?;
            working.apply(number, before.as_ref())?;
        }
        after = found.reached;
    }
    Ok((working, true))
}

fn follow<'c>(mut working: Working<'c>, base: &Snapshot) -> Result<Working<'c>> {
    let end: Sequence = base.sequence();
    while working.position() < end {
        working.follow(base, BATCH_COUNT)?;
    }
    Ok(working)
}
